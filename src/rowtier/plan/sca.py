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
memory with room; the hottest rows are nearer if they must. The cache gets what is left of the
fastest: rows, optimizer state, gradients that wait for sync and exchange buffers are counted. What
rows may use of fast memory besides goes to the hottest that devices are home to
(`tiers.py`), which changes no byte on a link. Remap tables belong to host memory, which is
not limited here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rowtier.band import Band, Bands
from rowtier.cluster import DEVICE, Cluster
from rowtier.cost.memory import Room, band_bytes
from rowtier.cost.options import CostOptions
from rowtier.cost.step import StepCost, step_cost
from rowtier.cost.terms import row_terms
from rowtier.cost.touch import table_basis, touched
from rowtier.cost.tree import tree_of
from rowtier.cost.views import objective
from rowtier.plan.binding import binding
from rowtier.plan.covers import SCA
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import GIGA, Certificate, Plan, Price
from rowtier.plan.tiers import Run, cut_by_tiers, device_sizes, spread
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile, TableStats

FORWARD = CostOptions(training=False)
_ROUNDS = 20  # of aiming lower, because devices are not quite alike


def plan(profile: Profile, cluster: Cluster, options: PlanOptions) -> Plan:
    """Give every row a home, and cache the rows that save the most bytes on the links."""
    homes = _homes(profile, cluster, options)
    items = _items(homes, profile, cluster, options)
    fast = cluster.device.tiers[0]
    usable = options.reserved.least_left(fast) // cluster.sharers(fast)  # of each device
    before = step_cost(homes, profile, cluster)
    left = usable - float(_used(before).mean())
    most_saved, price = _knapsack_value(items, left + 1.0)  # buffers were rounded up
    cached = _fill(items, profile, cluster, usable, left, homes)
    bands = _nearer(cached, profile, cluster, options)
    moved = objective("sca", bands, profile, cluster, options=FORWARD)
    moved_uncached = objective("sca", homes, profile, cluster, options=FORWARD)
    certificate = Certificate(
        view="sca",
        objective=moved,
        bound=max(0.0, min(moved, moved_uncached - most_saved)),
        covers=SCA,
        binding=_binding(price, step_cost(bands, profile, cluster), left, options),
        prices=(Price(resource=fast.name, unit="GB", saves=price * GIGA),),
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
class CacheItem:
    """One table: what caching a row of each bucket saves, and the memory it takes.

    Bytes of memory are a device's, on average: the copy, less its part of the home if homes need
    that memory, less the buffers through which the row no longer passes.
    """

    stats: TableStats
    homes: tuple[Band, ...]  # by position
    copies: tuple[Band, ...]  # dense, sparse
    stops: Ints  # of buckets, which homes cut; none if nothing may be cached
    saved: Floats  # of one row, on all links of a forward pass
    kept: Floats  # by one row
    sync: Floats  # copies × buckets: bytes to keep one row equal

    @classmethod
    def of(
        cls, stats: TableStats, homes: tuple[Band, ...], basis: Floats, cluster: Cluster, full: bool
    ) -> CacheItem:
        """Price every bucket of a table; rows that are never looked up stay at home.

        `full`: homes need fast memory, so that every copy makes room for other rows there. No
        columns in `basis`: nothing may be cached.
        """
        ends, known = np.array([home.stop for home in homes]), stats.curve.stops[: basis.shape[1]]
        stops = np.union1d(known, ends[ends < known.max(initial=0)])
        basis = basis[:, np.searchsorted(known, stops)]
        dense = Band(start=0, stop=1, scope=DEVICE, tier=cluster.device.tiers[0].name)
        copies = (dense, dense.model_copy(update={"sync": "sparse"}))
        copied = [row_terms(copy, stats.table, basis, cluster) for copy in copies]
        kept = np.min([terms.buffer_bytes for terms in copied], axis=0) + copied[0].stored_bytes
        saved = np.zeros(len(stops))
        for index, home in enumerate(homes):
            here = np.searchsorted(ends, stops) == index
            at_home = row_terms(home, stats.table, basis[:, here], cluster)
            saved[here] = (at_home.forward_bytes + at_home.id_bytes).sum(axis=0)
            beside = at_home.buffer_bytes / 2  # the other half of the buffers is the servers'
            if home.members == "all":
                beside = at_home.buffer_bytes + at_home.stored_bytes * full
            kept[here] -= beside / at_home.group_devices
        sync = np.stack([(t.sync_bytes + t.sync_id_bytes).sum(axis=0) for t in copied])
        return cls(stats, homes, copies, stops, saved, kept, sync)

    @cached_property
    def widths(self) -> Ints:
        """Rows of each bucket."""
        return np.diff(self.stops, prepend=0)

    @property
    def bytes_per_saving(self) -> Floats:
        """Memory per byte saved; rises with the position among rows that have the same holders."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.saved > 0, self.kept / self.saved, np.inf)

    def bands(self, cached: int, offset: int) -> tuple[Band, ...]:
        """The hottest rows cached, synced the way that moves fewer bytes; the others at home."""
        found = []
        if cached:
            ends = np.minimum(self.stops, cached)
            sync = self.sync @ np.diff(ends, prepend=0)
            copy = self.copies[int(np.argmin(sync))]
            found.append(copy.model_copy(update={"stop": cached}))
        for home in self.homes:
            if cached < home.stop:
                changes = {"start": max(cached, home.start), "offset": offset}
                found.append(home.model_copy(update=changes))
        return tuple(found)


def _homes(profile: Profile, cluster: Cluster, options: PlanOptions) -> Bands:
    """One home for every row: on servers, then in slow memory of devices, then wherever it fits."""
    home = Band(
        start=0, stop=1, scope=cluster.top, tier=cluster.device.tiers[0].name, coalesced=True
    )
    homes = {s.table.name: home for s in profile.stats}
    return spread(profile, cluster, options, homes, spare_devices=True)


def _items(
    homes: Bands, profile: Profile, cluster: Cluster, options: PlanOptions
) -> list[CacheItem]:
    """All tables; those that are pinned elsewhere, or that not all devices hold, are not cached."""
    fast, sizes = cluster.device.tiers[0].name, tree_of(cluster).sizes
    even = {"all", *(cluster.server_members(server) for server in cluster.servers)}
    full = any(b.tier == fast and b.members == "all" for bands in homes.values() for b in bands)
    items = []
    for stats in profile.stats:
        mine, pin = homes[stats.table.name], options.constraints.pin(stats.table.name)
        basis = table_basis(stats, profile, sizes)
        if pin.scope or pin.tier not in (None, fast) or not {b.members for b in mine} <= even:
            basis = basis[:, :0]
        items.append(CacheItem.of(stats, mine, basis, cluster, full))
    return items


def _nearer(bands: Bands, profile: Profile, cluster: Cluster, options: PlanOptions) -> Bands:
    """The same holders, with what rows may still use of fast memory filled by the hottest.

    If all must fit, buffers are left their part of it.
    """
    room, runs = Room(cluster, options.reserved), []
    found: dict[str, list[Band]] = {}
    for stats in profile.stats:
        name, mine = stats.table.name, bands[stats.table.name]
        pinned = options.constraints.pin(name).tier is not None
        moved = [b for b in mine if b.coalesced and b.members == "all" and not pinned]
        found[name] = [b for b in mine if b not in moved]
        for band in found[name]:
            room.take(band_bytes(stats.table, band, cluster), band.tier)
        runs += [Run(stats, home) for home in _joined(moved)]
    sizes = device_sizes(cluster, room)
    if options.fit == "all":
        fast = cluster.device.tiers[0].name
        buffers = step_cost(bands, profile, cluster).memory.buffers[: cluster.num_devices, 0]
        sizes[fast] = max(0, sizes[fast] - int(buffers.max()))
    for run, pieces in zip(runs, cut_by_tiers(runs, sizes, profile, cluster), strict=True):
        if sum(piece.rows for piece in pieces) < run.band.rows:
            return bands
        found[run.stats.table.name] += pieces
    return {name: tuple(sorted(mine, key=lambda band: band.start)) for name, mine in found.items()}


def _joined(bands: Sequence[Band]) -> list[Band]:
    """Bands of which one begins where the other ends, as one."""
    found: list[Band] = []
    for band in bands:
        if found and found[-1].stop == band.start:
            found[-1] = found[-1].model_copy(update={"stop": band.stop})
        else:
            found.append(band)
    return found


def _used(cost: StepCost) -> Ints:
    """Bytes of the fastest memory that each device uses."""
    return (cost.memory.rows + cost.memory.buffers)[: cost.cluster.num_devices, 0]


def _fill(
    items: Sequence[CacheItem],
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


class _Buckets(NamedTuple):
    """Buckets of all tables that save anything, best first."""

    owner: Ints  # whose each is
    widths: Ints
    saved: Floats  # by a row of it
    ratio: Floats  # bytes per saving
    taken: Floats  # rows that fit, not always a whole number of them


def _taken(items: Sequence[CacheItem], left: float, by_position: bool) -> _Buckets:
    """What fits into so many bytes; `by_position`: no bucket before hotter ones of its table.

    Buckets that take no memory, or even free some, always fit.
    """
    ratios = [item.bytes_per_saving for item in items]
    ratio = np.concatenate([np.maximum.accumulate(r) for r in ratios] if by_position else ratios)
    order = np.argsort(ratio, kind="stable")
    order = order[np.isfinite(ratio[order])]
    owner = np.repeat(np.arange(len(items)), [len(item.widths) for item in items])[order]
    widths, kept, saved = (
        np.concatenate([getattr(item, name) for item in items])[order]
        for name in ("widths", "kept", "saved")
    )
    paid = np.maximum(kept, 0.0) * widths
    room = left - np.minimum(kept, 0.0) @ widths - (np.cumsum(paid) - paid)
    with np.errstate(divide="ignore", invalid="ignore"):
        rows = np.where(kept > 0, np.clip(room / kept, 0.0, widths), widths)
    return _Buckets(owner, widths, saved, ratio[order], rows)


def _cached_rows(items: Sequence[CacheItem], left: float) -> list[int]:
    """How many of each table's hottest rows fit into so many bytes of every device."""
    found = _taken(items, left, by_position=True)
    return [int(rows) for rows in np.bincount(found.owner, found.taken + 1e-9, len(items))]


def _knapsack_value(items: Sequence[CacheItem], left: float) -> tuple[float, float]:
    """The most that a cache of so many bytes can save, and what one more byte would save."""
    found = _taken(items, left, by_position=False)
    partial = np.flatnonzero(found.taken < found.widths)
    price = float(1 / found.ratio[partial[0]]) if len(partial) else 0.0
    return sum((found.saved * found.taken).tolist()), price


def _plain_bytes(homes: Bands, profile: Profile, cluster: Cluster) -> float:
    single = {"coalesced": False}
    plain = {n: tuple(b.model_copy(update=single) for b in bands) for n, bands in homes.items()}
    return objective("sca", plain, profile, cluster, options=FORWARD)


def _binding(price: float, cost: StepCost, left: float, options: PlanOptions) -> str:
    """What stops the plan from being better, in words."""
    if not price:
        return "nothing: every row that is looked up is cached"
    tier = cost.cluster.device.tiers[0].name
    says = f"capacity of {tier}: one more MiB per device saves {price * 2**20:.3g} bytes a step"
    if left <= 0:
        says = f"{tier}: rows and exchange buffers fill it, so nothing can be cached"
    return binding(cost, tier, says, options.reserved)
