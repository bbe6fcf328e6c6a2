"""RecShard's problem as arrays: place items on alike devices so that the slowest is fast.

Item j has rows in order of hotness. A row of density ρ (bytes read per step and stored byte)
in memory t costs ρ·c_t per byte, c_0 < c_1 < …; X_t bytes fit into memories 0 … t together.

One device. By the exchange argument the hottest rows belong into the fastest memory. With
F_S(x) the bytes read of the hottest x bytes of a set S, and R_S = F_S(∞):

    time(S) = c_last·R_S − Σ_t (c_{t+1} − c_t)·F_S(X_t)

Duality. F_S(x) = min over prices λ ≥ 0 of Σ_{j∈S} ψ_j(λ) + λx, where ψ_j(λ) adds up ρ − λ over
the bytes of j with ρ > λ. So time(S) is the largest, over λ, of a sum over items: an item is
a vector over a grid of prices, vectors add, and a device's time is the largest entry. With
more than two memories each boundary t has its own λ, and the largest entries add up.

Bounds. Pooling all memories bounds the mean, hence the slowest device, of any placement:
cut rows (and columns: a piece of a row stores at least its share of the row's bytes) only
lie on more devices. Items that stay whole get at most X_t each, and add bounds from the
largest item, from items that must share a device, and from large items beside which
little else fits (`bound`).

Cut items (`split`): everything is cut at the pooled prices, large items are dealt out rank by
rank, pieces are placed as vectors (time, bytes per memory), and runs of ranks, as short as
a row, change hands until all devices are even: nothing but rounding is left of the gap.
Whole items (`whole`): many greedy starts, best moves and swaps on vectors, exact filling,
whose prices join the grid; few items are tried in all ways (`exhaust`).
"""
