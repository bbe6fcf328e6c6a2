"""Rows that holders share evenly, cut by memory tiers: the hottest per stored byte in the fastest.

What has a scope and members, but no tier yet, is a *run* of positions. A run over m members is cut
at every m-th of its positions only: each member keeps one row of every *layer* of m, and memories
are filled to the row (`fill.py`). Tables that fit whole stay whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.memory import Room, band_bytes
from rowtier.cost.terms import row_terms
from rowtier.cost.touch import table_basis
from rowtier.cost.tree import tree_of
from rowtier.plan.infeasible import why_infeasible
from rowtier.plan.options import PlanOptions
from rowtier.plan.pack import packed
from rowtier.plan.recshard.fill import fill_tiers
from rowtier.plan.recshard.heat import Item, heat_of
from rowtier.profile.profile import Profile, TableStats


class Run(NamedTuple):
    """Positions of a table that the members of a band hold evenly; its tier is open."""

    stats: TableStats
    band: Band

    def members(self, cluster: Cluster) -> int:
        """How many hold it in each group of its scope."""
        group_devices = cluster.group_size(cluster.level_of(self.band.scope))
        return len(self.band.member_list(group_devices))


Sizes = Mapping[str, int]  # bytes that each member may use of its tiers, fastest first


def device_sizes(cluster: Cluster, room: Room) -> dict[str, int]:
    """Bytes of every tier that are left on each device if all take the same."""
    return {tier.name: int(room.free_of_each(tier.name)) for tier in cluster.device.tiers}


def cut_by_tiers(
    runs: Sequence[Run], sizes: Sizes, profile: Profile, cluster: Cluster
) -> list[tuple[Band, ...]]:
    """The bands of each run, fastest tier first; rows that find no room have none."""
    if not runs or not sizes:
        return [() for _ in runs]
    heat = heat_of([_layers(run, next(iter(sizes)), profile, cluster) for run in runs])
    cuts = np.zeros((len(sizes), len(runs)), dtype=np.int64)
    fill_tiers(heat, np.arange(len(runs)), np.array(list(sizes.values()), dtype=np.int64), cuts)
    found = []
    for run, layers in zip(runs, cuts.T.tolist(), strict=True):
        start, stop, members = run.band.start, run.band.stop, run.members(cluster)
        ends = [min(stop, start + count * members) for count in layers]
        pieces = zip(sizes, [start, *ends], ends, strict=False)
        found.append(tuple(_piece(run.band, *piece) for piece in pieces if piece[1] < piece[2]))
    return found


def _piece(band: Band, tier: str, start: int, stop: int) -> Band:
    return band.model_copy(update={"tier": tier, "start": start, "stop": stop})


def _layers(run: Run, tier: str, profile: Profile, cluster: Cluster) -> Item:
    """A run as what each member keeps of it: rates are seconds of memory per layer."""
    (stats, band), members = run, run.members(cluster)
    basis = table_basis(stats, profile, tree_of(cluster).sizes)
    home = band.model_copy(update={"tier": tier})
    row_s = row_terms(home, stats.table, basis, cluster).memory_s
    edges = np.concatenate(([0], stats.curve.stops))
    until_s = np.concatenate(([0.0], np.cumsum(row_s * stats.curve.widths)))
    positions = np.clip(stats.curve.stops, band.start, band.stop) - band.start
    stops = np.unique(-(-positions[positions > 0] // members))
    ends = np.minimum(band.start + np.concatenate(([0], stops)) * members, band.stop)
    rates = np.diff(np.interp(ends, edges, until_s)) / np.diff(stops, prepend=0)
    return Item(stops, rates, -(-band.rows // members), stats.table.stored_row_bytes)


def spread(
    profile: Profile,
    cluster: Cluster,
    options: PlanOptions,
    homes: Mapping[str, Band],
    *,
    spare_devices: bool = False,
) -> Bands:
    """Every table kept once and evenly, as its home says but for positions, members and tier.

    Devices hold the rows, the hottest in their fastest memory; where they have no room left,
    servers do. With `spare_devices` servers come first, then slow memory of devices: only the
    hottest rows, for which these have no room, lie in fast memory.
    """
    for spare in (True, False) if spare_devices else (False,):
        found = _Spread(profile, cluster, options, homes).bands(spare)
        if found is not None:
            return found
    anywhere = packed(profile, cluster, options)  # not evenly, if devices have different room
    if anywhere is None:
        raise why_infeasible(profile, cluster, options)
    same = {"exchange", "coalesced"}  # dealt one by one, since blocks may be a row larger
    like = {name: home.model_dump(include=same) for name, home in homes.items()}
    return {
        name: tuple(band.model_copy(update=like[name]) for band in bands)
        for name, bands in anywhere.items()
    }


class _Spread:
    """Tables that are being spread, and the room that is left."""

    def __init__(
        self, profile: Profile, cluster: Cluster, options: PlanOptions, homes: Mapping[str, Band]
    ):
        self.profile, self.cluster, self.homes = profile, cluster, homes
        self.room = Room(cluster, options.reserved)
        self.pins = {s.table.name: options.constraints.pin(s.table.name).tier for s in self.stats}
        self.found: dict[str, tuple[Band, ...]] = {s.table.name: () for s in self.stats}

    @property
    def stats(self) -> tuple[TableStats, ...]:
        return self.profile.stats

    def bands(self, spare: bool) -> Bands | None:
        """The placement, or None if some rows find no room."""
        for tier in self.cluster.device.tiers:
            here = {tier.name: device_sizes(self.cluster, self.room)[tier.name]}
            self._place([s for s in self.stats if self.pins[s.table.name] == tier.name], here)
        free = [s for s in self.stats if self.pins[s.table.name] is None]
        sizes = device_sizes(self.cluster, self.room)
        self._place(free, self._only_needed(free, sizes) if spare else sizes)
        for members, server_sizes in self._servers():
            self._place(free, server_sizes, members)
        whole = (self._next_rank(s) == s.table.num_embeddings for s in self.stats)
        return self.found if all(whole) else None

    def _next_rank(self, stats: TableStats) -> int:
        bands = self.found[stats.table.name]
        return bands[-1].stop if bands else 0

    def _place(
        self, tables: Sequence[TableStats], sizes: Sizes, members: tuple[int, ...] | str = "all"
    ) -> None:
        """Give holders what has no place yet, as much as they have room for."""
        runs = []
        for stats in tables:
            start, stop = self._next_rank(stats), stats.table.num_embeddings
            if start < stop:
                where = {"members": members, "start": start, "stop": stop}
                home = self.homes[stats.table.name]
                runs.append(Run(stats, home.model_copy(update=where)))
        pieces = cut_by_tiers(runs, sizes, self.profile, self.cluster)
        for run, bands in zip(runs, pieces, strict=True):
            self.found[run.stats.table.name] += bands
            for band in bands:
                self.room.take(band_bytes(run.stats.table, band, self.cluster), band.tier)

    def _servers(self) -> Iterator[tuple[tuple[int, ...], dict[str, int]]]:
        """The servers of each kind, and bytes of every tier that are left on each."""
        group = self.cluster.members(len(self.cluster.levels))
        for server in self.cluster.servers:
            members = self.cluster.server_members(server)
            sizes = {
                tier.name: min(self.room.free_bytes(group[m], tier.name) for m in members)
                for tier in server.tiers
            }
            yield members, sizes

    def _only_needed(self, tables: Sequence[TableStats], sizes: Sizes) -> dict[str, int]:
        """Of each tier of devices what servers and slower tiers have no room for.

        Up to a row of each memory may stay empty, since rows are not cut to fill it.
        """
        devices = self.cluster.num_devices
        row_bytes = max((s.table.stored_row_bytes for s in tables), default=0)
        layers = [-(-s.table.num_embeddings // devices) for s in tables]
        needed = sum(n * s.table.stored_row_bytes for n, s in zip(layers, tables, strict=True))
        for members, there in self._servers():
            room = sum(max(0, size - row_bytes) for size in there.values())
            needed -= room * len(members) // devices
        found = {}
        for tier in reversed(list(sizes)):
            found[tier] = min(sizes[tier], max(0, needed))
            needed -= max(0, sizes[tier] - row_bytes)
        return {tier: found[tier] for tier in sizes}
