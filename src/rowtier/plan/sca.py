"""`sca`: every row has one home, distinct rows travel once, and the likeliest are cached.

"Stochastic Communication Avoidance for Recommendation Systems" (arXiv 2411.01611) asks what a
system with lookup tables communicates in expectation, on any topology. *Coalescing* sends each
distinct row of a device's batch once: E[distinct] = Σ 1 − (1 − p)^L. *Caching* keeps rows on
every device; what that saves per byte rises with p, so the best cache holds rows in order of
saving per byte across all tables: a knapsack whose items can be cut, exact to one row.

The paper counts the forward exchange, and so does the objective: the view "sca" of a forward
pass, `CostOptions(training=False)`. Under exact synchronous training copies must be kept equal
as well: for one row that takes s·(u_j−1 + u_top) where fetching it and returning its gradient
takes 2·s·u_0 for each link, and u_top ≥ u_j−1 ≥ u_0. So, ids aside, a copy never moves fewer
bytes than a row that devices hold; one that only servers hold all devices fetch, which can be
more than keeping a few copies equal. Plan.origin["sca"] reports both counts.

Rows are not staged: a gateway's requests replace n·u_0 bytes on the outer links by u_1, and add
(n − 1)·u_0 on the inner ones, so all links together carry u_1 − u_0 ≥ 0 more. Staging moves bytes
to faster links; it never makes them fewer, and this view counts all bytes alike.

Homes are on the servers where there are any with room, else on all devices, in their slowest
memory with room. The cache gets what is left of the fastest: rows, optimizer state, gradients
that wait for sync and exchange buffers are counted. Remap tables belong to host memory, which is
not limited here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rowtier.band import Band, Bands
from rowtier.cluster import DEVICE, Cluster
from rowtier.cost.memory import Room
from rowtier.cost.options import CostOptions
from rowtier.cost.step import StepCost, step_cost
from rowtier.cost.terms import RowTerms, row_terms
from rowtier.cost.touch import table_basis, touched
from rowtier.cost.tree import tree_of
from rowtier.cost.views import objective
from rowtier.plan.binding import binding
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import GIGA, Certificate, Plan, Price
from rowtier.plan.row_wise import first_with_room
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile, TableStats
from rowtier.tables import Table

FORWARD = CostOptions(training=False)
_ROUNDS = 20  # of aiming lower, because devices are not quite alike


def plan(profile: Profile, cluster: Cluster, options: PlanOptions) -> Plan:
    """Give every row a home, and cache the rows that save the most bytes on the links."""
    homes = _homes(profile, cluster, options)
    items = [Item.of(s, homes[s.table.name], profile, cluster) for s in profile.stats]
    usable = _usable_bytes(cluster, options)
    uncached = {name: (home,) for name, home in homes.items()}
    before = step_cost(uncached, profile, cluster)
    left = usable - float(_used(before).mean())
    most_saved, price = _knapsack_value(items, left + 1.0)  # buffers were rounded up
    bands = _fill(items, profile, cluster, usable, left, uncached)
    moved = objective("sca", bands, profile, cluster, options=FORWARD)
    moved_uncached = objective("sca", uncached, profile, cluster, options=FORWARD)
    certificate = Certificate(
        view="sca",
        objective=moved,
        bound=max(0.0, min(moved, moved_uncached - most_saved)),
        binding=_binding(price, step_cost(bands, profile, cluster), left, options),
        prices=_prices(price, cluster),
    )
    origin = {
        "bytes": moved,
        "bytes_without_cache": moved_uncached,
        "bytes_without_coalescing": _plain_bytes(homes, profile, cluster),
        "bytes_with_sync": objective("sca", bands, profile, cluster),
        "bytes_with_sync_without_cache": float(before.links.total_bytes.sum()),
        "split_cost_rows": split_cost_rows(profile, cluster.num_devices),
    }
    built = Plan.build("sca", profile, cluster, bands, certificate)
    return dataclasses.replace(built, origin={"sca": origin})


def split_cost_rows(profile: Profile, workers: int) -> float:
    """Rows that a batch fetches more often because it is split over so many workers.

    K·Σ(1 − (1 − p)^(B/K)) − Σ(1 − (1 − p)^B), where B are the lookups of all of them.
    """
    extra = 0.0
    for stats in profile.stats:
        basis = table_basis(stats, profile, (1, workers))
        apart, together = workers * basis[touched(0)], basis[touched(1)]
        extra += float((apart - together) @ stats.curve.widths)
    return extra


@dataclass(frozen=True, eq=False)
class Item:
    """One table: what caching a row of each bucket saves, and the memory it takes.

    Bytes of memory are a device's, on average: the copy, less its part of the home if that is
    in the same memory, less the buffers through which the row no longer passes.
    """

    stats: TableStats
    home: Band
    copies: tuple[Band, ...]  # dense, sparse
    widths: Ints
    saved: Floats  # of one row, on all links of a forward pass
    kept: Floats  # by one row
    sync: Floats  # copies × buckets: bytes to keep one row equal

    @classmethod
    def of(cls, stats: TableStats, home: Band, profile: Profile, cluster: Cluster) -> Item:
        """Price every bucket of a table; rows that are never looked up stay at home."""
        basis = table_basis(stats, profile, tree_of(cluster).sizes)
        fast = cluster.device.tiers[0].name
        dense = Band(start=0, stop=1, scope=DEVICE, tier=fast)
        copies = (dense, dense.model_copy(update={"sync": "sparse"}))
        at_home = row_terms(home, stats.table, basis, cluster)
        copied = [row_terms(copy, stats.table, basis, cluster) for copy in copies]
        kept = np.min([terms.buffer_bytes for terms in copied], axis=0) + copied[0].stored_bytes
        if home.members == "all":
            beside = at_home.stored_bytes * (home.tier == fast) + at_home.buffer_bytes
        else:  # the other half of the buffers is the servers'
            beside = at_home.buffer_bytes / 2
        kept = kept - beside / at_home.group_devices
        return cls(
            stats,
            home,
            copies,
            stats.curve.widths,
            (at_home.forward_bytes + at_home.id_bytes).sum(axis=0),
            kept,
            np.stack([_sync_bytes(terms) for terms in copied]),
        )

    @property
    def bytes_per_saving(self) -> Floats:
        """Memory per byte saved: rises with the rank, up to rounding, which is taken out."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(self.saved > 0, self.kept / self.saved, np.inf)
        return np.asarray(np.maximum.accumulate(ratio))

    def bands(self, cached: int, offset: int) -> tuple[Band, ...]:
        """The hottest rows cached, synced the way that moves fewer bytes; the others at home."""
        rows, found = self.stats.table.num_embeddings, []
        if cached:
            ends = np.minimum(self.stats.curve.stops, cached)
            sync = self.sync @ np.diff(ends, prepend=0)
            copy = self.copies[int(np.argmin(sync))]
            found.append(copy.model_copy(update={"stop": cached}))
        if cached < rows:
            changes = {"start": cached, "stop": rows, "offset": offset}
            found.append(self.home.model_copy(update=changes))
        return tuple(found)


def _sync_bytes(terms: RowTerms) -> Floats:
    return np.asarray((terms.sync_bytes + terms.sync_id_bytes).sum(axis=0))


def _homes(profile: Profile, cluster: Cluster, options: PlanOptions) -> dict[str, Band]:
    room = Room(cluster, options.reserved)
    return {
        s.table.name: first_with_room(s.table, list(_candidates(s.table, cluster)), room, cluster)
        for s in profile.stats
    }


def _candidates(table: Table, cluster: Cluster) -> Iterator[Band]:
    """Servers, fastest memory first; then devices, from the slowest memory inwards.

    A single device caches nothing, and has everything as near as it can be.
    """
    whole = Band(
        start=0,
        stop=table.num_embeddings,
        scope=cluster.top,
        tier=cluster.device.tiers[0].name,
        coalesced=True,
    )
    for server in cluster.servers:
        members = cluster.server_members(server)
        for tier in server.tiers:
            yield whole.model_copy(update={"members": members, "tier": tier.name})
    inwards = slice(None, None, -1 if cluster.num_devices > 1 else 1)
    for tier in cluster.device.tiers[inwards]:
        yield whole.model_copy(update={"tier": tier.name})


def _usable_bytes(cluster: Cluster, options: PlanOptions) -> int:
    """Bytes of the fastest memory for each device."""
    fast = cluster.device.tiers[0]
    shared = cluster.level_of(fast.shared_by) if fast.shared_by else 0
    return options.reserved.least_left(fast) // cluster.group_size(shared)


def _used(cost: StepCost) -> Ints:
    """Bytes of the fastest memory that each device uses."""
    return (cost.memory.rows + cost.memory.buffers)[: cost.cluster.num_devices, 0]


def _fill(
    items: Sequence[Item],
    profile: Profile,
    cluster: Cluster,
    usable: int,
    left: float,
    uncached: Bands,
) -> Bands:
    """Fill the cache; if the fullest device then exceeds its memory, aim lower by that much.

    And by a row, then two, then four, since less than a row may change nothing.
    """
    row_bytes = max(item.stats.table.stored_row_bytes for item in items)
    for turn in range(_ROUNDS):
        cached = _cached_rows(items, left)
        bands = {
            item.stats.table.name: item.bands(rows, offset=index)
            for index, (item, rows) in enumerate(zip(items, cached, strict=True))
        }
        excess = int(_used(step_cost(bands, profile, cluster)).max()) - usable
        if excess <= 0:
            return bands
        left -= excess + row_bytes * 2**turn
    return uncached


def _in_order(items: Sequence[Item]) -> tuple[Ints, Ints, Floats]:
    """All buckets that save anything, best first: whose they are, which, and bytes per saving."""
    owner = np.repeat(np.arange(len(items)), [len(item.widths) for item in items])
    bucket = np.concatenate([np.arange(len(item.widths)) for item in items])
    ratio = np.concatenate([item.bytes_per_saving for item in items])
    order = np.lexsort((bucket, owner, ratio))
    order = order[np.isfinite(ratio[order])]
    return owner[order], bucket[order], ratio[order]


def _taken(items: Sequence[Item], left: float) -> tuple[Ints, Ints, Floats, Floats]:
    """Rows of each bucket that fit, best buckets first, and not always whole numbers of them.

    Buckets that take no memory, or even free some, always fit.
    """
    owner, bucket, ratio = _in_order(items)
    widths = np.concatenate([item.widths for item in items]).astype(np.float64)
    kept = np.concatenate([item.kept for item in items])
    first = np.cumsum([0, *(len(item.widths) for item in items)])[owner]
    widths, kept = widths[first + bucket], kept[first + bucket]
    free = np.cumsum(np.where(kept <= 0, kept * widths, 0.0))
    taken_before = np.cumsum(np.maximum(kept, 0.0) * widths) - np.maximum(kept, 0.0) * widths
    room = left - (free[-1] if len(free) else 0.0) - taken_before
    with np.errstate(divide="ignore", invalid="ignore"):
        rows = np.where(kept > 0, np.clip(room / kept, 0.0, widths), widths)
    return owner, bucket, rows, ratio


def _cached_rows(items: Sequence[Item], left: float) -> list[int]:
    """How many of each table's hottest rows fit into so many bytes of every device."""
    owner, _, rows, _ = _taken(items, left)
    cached = np.bincount(owner, rows + 1e-9, len(items)) if len(owner) else np.zeros(len(items))
    return [int(rows) for rows in cached]


def _knapsack_value(items: Sequence[Item], left: float) -> tuple[float, float]:
    """The most that a cache of so many bytes can save, and what one more byte would save."""
    owner, bucket, rows, ratio = _taken(items, left)
    saved = sum(float(items[o].saved[b]) * r for o, b, r in zip(owner, bucket, rows, strict=True))
    widths = np.array([items[o].widths[b] for o, b in zip(owner, bucket, strict=True)])
    partial = np.flatnonzero(rows < widths)
    return saved, float(1 / ratio[partial[0]]) if len(partial) else 0.0


def _plain_bytes(homes: dict[str, Band], profile: Profile, cluster: Cluster) -> float:
    plain = {n: (band.model_copy(update={"coalesced": False}),) for n, band in homes.items()}
    return objective("sca", plain, profile, cluster, options=FORWARD)


def _prices(price: float, cluster: Cluster) -> tuple[Price, ...]:
    """What one more GB of fast memory on every device saves, in bytes a step."""
    return (Price(resource=cluster.device.tiers[0].name, unit="GB", saves=price * GIGA),)


def _binding(price: float, cost: StepCost, left: float, options: PlanOptions) -> str:
    """What stops the plan from being better, in words."""
    if not price:
        return "nothing: every row that is looked up is cached"
    tier = cost.cluster.device.tiers[0].name
    says = f"capacity of {tier}: one more MiB per device saves {price * 2**20:.3g} bytes a step"
    if left <= 0:
        says = f"{tier}: rows and exchange buffers fill it, so nothing can be cached"
    return binding(cost, tier, says, options.reserved)
