"""RecShard's problem as arrays: items on alike devices, so that the slowest is fast.

A row of density ρ (bytes read per step and stored byte) costs ρ·c_t per byte in memory t,
c_0 < c_1 < …, and X_t bytes fit into the memories 0 … t of a device together.

One device. The hottest rows belong into the fastest memory. With F_S(x) the bytes read of the
hottest x bytes of the items S:  time(S) = c_last·F_S(∞) − Σ_t (c_{t+1} − c_t)·F_S(X_t).

Duality. F_S(x) = min over prices λ ≥ 0 of Σ_{j∈S} ψ_j(λ) + λx, where ψ_j(λ) adds up ρ − λ over the
bytes of j with ρ > λ. So an item is a vector over a grid of prices, vectors add, and the
time of a device is the largest entry of its sum, less what its memory is worth at that
price (with more than two memories: the largest entry for each boundary, added up).

Bounds (`bound`). The pool of all memories bounds the mean, hence the slowest device: cuts do
not help it, for pieces of a row store at least their share of its bytes. Whole items get
at most X_t each, and add bounds: the largest item alone, items that must share a device,
and large items beside which little else fits.

Cut items (`split`, `level`). All is cut at the pooled prices, large items are dealt out rank by
rank, pieces placed by time and bytes, and runs of ranks, as short as a row, change hands
until devices are even: what is left of the gap is rounding. Whole items (`whole`, `balance`):
greedy starts, best moves and swaps of vectors, exact filling, whose prices join the
grid; a great deluge at last; few items are tried in all ways (`exhaust`).

`make` is the method; `parts` turns tables into items and what was found into bands.
"""

from rowtier.plan.recshard.make import plan

__all__ = ["plan"]
