"""The cost model once more, by walking over every row, reader and message. Slow on purpose.

Shares nothing with `rowtier.cost`: no buckets, no closed forms, no group sums. Expected
messages are sent one by one from holder to holder, and added up.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from cost.mixed_naive import mixed_tables
from cost.sums_naive import walk_sums

from rowtier import Band, Cluster, Profile, TableStats
from rowtier.band import Bands
from rowtier.cost.options import CostOptions
from rowtier.profile.order import RowOrder

Amounts = dict[tuple[int, int], float]


@dataclass
class Walk:
    """What a walk over all messages finds, by (holder, level) or (holder, tier column)."""

    bands: Bands
    profile: Profile
    cluster: Cluster
    order: RowOrder | None
    options: CostOptions
    sent: dict[str, Amounts] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )
    received: dict[str, Amounts] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )
    read: Amounts = field(default_factory=lambda: defaultdict(float))
    written: Amounts = field(default_factory=lambda: defaultdict(float))
    waiting: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    rows: dict[tuple[int, int, str], int] = field(default_factory=lambda: defaultdict(int))
    pairs: set[tuple[str, int, int]] = field(default_factory=set)
    by_table: dict[tuple[str, str, int], float] = field(default_factory=lambda: defaultdict(float))
    extra_levels: set[int] = field(default_factory=set)
    work: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    table_work: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    table: str = ""

    def __post_init__(self) -> None:
        cluster = self.cluster
        self.K = len(cluster.levels)
        self.W = cluster.num_devices
        self.groups = [
            [cluster.members(level, group) for group in range(cluster.num_groups(level))]
            for level in range(self.K + 1)
        ]
        self.passes = 2 if self.options.training else 1
        placed = [(stats.table, self.bands[stats.table.name]) for stats in self.profile.stats]
        self.mixed = mixed_tables(placed, cluster)
        for stats in self.profile.stats:
            self.table = stats.table.name
            Table(self, stats).walk()

    def does(self, who: int, seconds: float) -> None:
        """A holder works for so long."""
        self.work[who] += seconds
        self.table_work[self.table] += seconds

    def copy_s(self, size_bytes: float) -> float:
        """Seconds of writing a row to a buffer or of reading it there."""
        rate = self.cluster.work.buffer_bytes_per_s
        return self.cluster.work.row_s + (size_bytes / rate if rate else 0.0)

    def n(self, level: int) -> int:
        return self.cluster.group_size(level)

    def distance(self, a: int, b: int) -> int:
        for level in range(self.K + 1):
            if any(a in group and b in group for group in self.groups[level]):
                return level
        raise AssertionError("two holders of one cluster meet at the top")

    def group_of(self, holder: int, level: int) -> int | None:
        for index, group in enumerate(self.groups[level]):
            if holder in group:
                return index
        return None

    def children(self, level: int, group: int) -> list[int]:
        fan = self.n(level) // self.n(level - 1)
        return list(range(group * fan, (group + 1) * fan))

    def device(self, level: int, group: int, index: int) -> int:
        return group * self.n(level) + index % self.n(level)

    def send(self, phase: str, source: int, target: int, amount: float) -> None:
        if amount == 0:
            return
        assert source != target
        level = self.distance(source, target)
        self.sent[phase][source, level] += amount
        self.received[phase][target, level] += amount
        self.pairs.add((phase, source, target))
        self.by_table[self.table, phase.split()[0], level] += amount

    def attached(self, level: int, group: int) -> list[int]:
        """Servers of a group that are in none of its children."""
        inside = {h for child in self.children(level, group) for h in self.groups[level - 1][child]}
        return [holder for holder in self.groups[level][group] if holder not in inside]


@dataclass
class Table:
    """The walk over one table."""

    walk_: Walk
    stats: TableStats

    def __post_init__(self) -> None:
        walk, stats = self.walk_, self.stats
        self.bands = walk.bands[stats.table.name]
        self.L = walk.profile.batch_size * stats.lookups / max(stats.samples, 1)
        self.p = [0.0] * stats.table.num_embeddings
        start = 0
        for stop, lookups in zip(stats.curve.stops, stats.curve.lookups, strict=True):
            for rank in range(start, stop):
                self.p[rank] = lookups / (stop - start) / sum(stats.curve.lookups)
            start = stop
        self.ids = 4 if walk.options.ids == "narrow" else 8
        known = walk.order is not None or stats.counts is not None
        self.touched = 0
        self.row_of: list[int] | None = None
        if known:
            hot = walk.order[stats.table.name] if walk.order is not None else stats.counts.rows
            cold = sorted(set(range(stats.table.num_embeddings)) - set(hot.tolist()))
            self.row_of = hot.tolist() + cold
            self.touched = len(hot)

    def u(self, rank: int, level: int) -> float:
        lookups, p = self.L * self.walk_.n(level), self.p[rank]
        if lookups < 1:
            return lookups * p
        return 1.0 if p >= 1 else -math.expm1(lookups * math.log1p(-p))

    def _give_outputs(self) -> None:
        """Every reader writes what its samples get, and reads the gradients of it."""
        walk, table = self.walk_, self.stats.table
        lines = walk.profile.batch_size * len(table.features)
        lines = self.L if table.pooling == "none" else lines
        for reader in range(walk.W):
            numbers_s = 4 * table.embedding_dim * walk.cluster.work.output_byte_s
            walk.does(reader, walk.passes * lines * numbers_s)

    def walk(self) -> None:
        self._give_outputs()
        self.mass: list[dict[int, float]] = []
        for band in self.bands:
            self.mass.append(defaultdict(float))
            self._walk_band(band, self.mass[-1])
        if self.L:
            walk_sums(self.walk_, self.stats, self.bands, self.mass)

    def _homes(self, band: Band, members: tuple[int, ...], rank: int) -> Iterator[tuple]:
        """Where a row may lie, with what probability: (weight, member, place for gateways)."""
        m = len(members)
        block = -(-band.rows // m)
        if band.order == "spread":
            yield 1.0, (rank - band.start + band.offset) % m, rank - band.start
        elif self.row_of is None:
            for place in range(band.rows):
                yield 1 / band.rows, place // block, place
        else:
            ranks = sorted(range(band.start, band.stop), key=lambda r: self.row_of[r])
            place = ranks.index(rank)
            if rank < self.touched:
                yield 1.0, place // block, place
            else:  # rows never seen share the gateways evenly
                level = self.walk_.cluster.level_of(band.scope)
                gateways = self.walk_.n(level - 1) if level and band.staged else 1
                gateways = gateways if band.exchange == "rows" else 1
                for gateway in range(gateways):
                    yield 1 / gateways, place // block, gateway

    def _walk_band(self, band: Band, mass: dict[int, float]) -> None:
        walk, cluster = self.walk_, self.walk_.cluster
        level = cluster.level_of(band.scope)
        members = band.member_list(walk.n(level))
        for rank in range(band.start, band.stop):
            for weight, member, place in self._homes(band, members, rank):
                for group in range(cluster.num_groups(level)):
                    owner = walk.groups[level][group][members[member]]
                    mass[owner] += weight * self.p[rank]
                    self._exchange(band, level, group, owner, rank, place, weight)
                    self._memory(band, level, owner, rank, weight)
                if walk.options.training:
                    self._sync(band, level, members[member], rank, weight)
        self._count_rows(band, level, members)

    def _count_rows(self, band: Band, level: int, members: tuple[int, ...]) -> None:
        """Rows per holder: places are whole, whoever's rows they are."""
        walk, table = self.walk_, self.stats.table
        width = (band.columns or (0, table.embedding_dim))[1] - (band.columns or (0, 0))[0]
        column = walk.cluster.tier_names.index(band.tier)
        state = {"sgd": 0, "rowwise_adagrad": 4, "adagrad": 4 * width, "adam": 8 * width}
        state |= {"momentum": 4 * width, "adamw": 8 * width}
        block = -(-band.rows // len(members))
        for place in range(band.rows):
            turn = (place + band.offset) % len(members)
            member = turn if band.order == "spread" else place // block
            for group in walk.groups[level]:
                walk.rows[group[members[member]], column, "weights"] += width * table.item_bytes
                walk.rows[group[members[member]], column, "state"] += state[table.optimizer]

    def _exchange(
        self, band: Band, level: int, group: int, owner: int, rank: int, place: int, weight: float
    ) -> None:
        """Send a row to the readers of one group."""
        walk, table = self.walk_, self.stats.table
        width = (band.columns or (0, table.embedding_dim))[1] - (band.columns or (0, 0))[0]
        row_bytes = width * table.item_bytes
        readers = [holder for holder in walk.groups[level][group] if holder < walk.W]
        self._look_up(band, level, readers, rank, weight, row_bytes)
        if band.exchange == "rows" and band.staged and level:
            self._pass_on(band, level, group, owner, rank, place, weight * row_bytes, owner, weight)
            return
        rows = band.exchange == "rows"
        once = level == 0 or (rows and (band.coalesced or band.staged))
        asks = self.u(rank, 0) if once else self.L * self.p[rank]
        id_bytes = self.ids + 4 * (not rows and table.name in walk.options.weighted)
        for reader in readers:
            if reader != owner:
                walk.send("ids", reader, owner, weight * asks * id_bytes)
                if rows:
                    walk.send("forward", owner, reader, weight * asks * row_bytes)
            walk.does(owner, walk.passes * weight * asks * walk.copy_s(row_bytes))

    def _look_up(
        self, band: Band, level: int, readers: list[int], rank: int, weight: float, row_bytes: int
    ) -> None:
        """What readers do with lookups of a row, and with the row or the gradient."""
        walk, work = self.walk_, self.walk_.cluster.work
        lookups = weight * self.L * self.p[rank]
        once = level == 0 or (band.exchange == "rows" and (band.coalesced or band.staged))
        asks = weight * self.u(rank, 0) if once else lookups
        for reader in readers:
            walk.does(reader, lookups * work.lookup_s * (2 if walk.table in walk.mixed else 1))
            if band.exchange == "rows" or level == 0:  # nobody else adds them up
                read_s = lookups * (walk.copy_s(row_bytes) - work.row_s) + asks * work.row_s
                walk.does(reader, walk.passes * read_s)
                walk.does(reader, asks * (work.distinct_s if once else work.plain_s))

    def _pass_on(
        self, band: Band, level: int, group: int, source: int, rank: int, place: int,
        row_bytes: float, owner: int, weight: float,
    ) -> None:  # fmt: skip
        """`source` has the row: hand it to every child group that needs it, and so on down."""
        walk = self.walk_
        if level == 0:
            return
        for child in walk.children(level, group):
            holder, need = source, self.u(rank, level - 1)
            walk.does(source, walk.passes * need * weight * walk.copy_s(row_bytes / weight))
            if source not in walk.groups[level - 1][child]:
                holder = walk.device(level - 1, child, place + band.offset)
                walk.send("forward", source, holder, need * row_bytes)
                walk.send("ids", holder, source, need * weight * self.ids)
            self._pass_on(band, level - 1, child, holder, rank, place, row_bytes, owner, weight)

    def _memory(self, band: Band, level: int, owner: int, rank: int, weight: float) -> None:
        walk, table = self.walk_, self.stats.table
        width = (band.columns or (0, table.embedding_dim))[1] - (band.columns or (0, 0))[0]
        state = {"sgd": 0, "rowwise_adagrad": 4, "adagrad": 4 * width, "adam": 8 * width}
        state |= {"momentum": 4 * width, "adamw": 8 * width}
        row, stored = width * table.item_bytes, width * table.item_bytes + state[table.optimizer]
        tiers = walk.cluster.tiers_of(owner)
        tier = next(t for t in tiers if t.name == band.tier)
        names = walk.cluster.tier_names
        first, here = names.index(tiers[0].name), names.index(tier.name)

        def whole(size: int, grain: int) -> int:
            return math.ceil(size / grain) * grain

        reads = weight * self.u(rank, level)  # after that it is in a cache
        walk.read[owner, first] += reads * whole(row, tiers[0].granularity_bytes)
        copies = walk.n(level) < walk.W
        if walk.options.training:
            update = self.u(rank, walk.K)
            moved = weight * update * whole(stored, tier.granularity_bytes)
            walk.read[owner, here] += moved
            walk.written[owner, here] += moved
            like = {"momentum": "sgd", "adamw": "adam"}.get(table.optimizer, table.optimizer)
            walk.does(owner, weight * update * getattr(walk.cluster.work.update, like))
            if copies:
                sparse = band.sync == "sparse"
                waiting = update * (row + self.ids) if sparse else row
                walk.waiting[owner] += weight * waiting
        elif tier is not tiers[0]:
            moved = weight * self.u(rank, level) * whole(row, tier.granularity_bytes)
            walk.read[owner, here] += moved

    def _sync(self, band: Band, k: int, member: int, rank: int, weight: float) -> None:
        """All-reduce by level; the copy that adds up is any of those that meet, equally often."""
        walk, table = self.walk_, self.stats.table
        width = (band.columns or (0, table.embedding_dim))[1] - (band.columns or (0, 0))[0]
        row_bytes = width * table.item_bytes
        for level in range(k + 1, walk.K + 1):
            fans = [walk.n(j) // walk.n(j - 1) for j in range(k + 1, level)]
            below = math.prod(fans)
            fan = walk.n(level) // walk.n(level - 1)
            up = 1.0 if band.sync == "dense" else self.u(rank, level - 1)
            down = 1.0 if band.sync == "dense" else self.u(rank, walk.K)
            for group in range(walk.cluster.num_groups(level)):
                for path in product(*(range(f) for f in fans)):
                    offset = sum(d * math.prod(fans[:i]) for i, d in enumerate(path))
                    copies = [
                        walk.groups[k][child * below + offset][member]
                        for child in walk.children(level, group)
                    ]
                    for root in copies:
                        part = weight / below / fan
                        for copy in copies:
                            if copy != root:
                                self._sync_pair(copy, root, part * up, row_bytes, band, "up")
                                self._sync_pair(root, copy, part * down, row_bytes, band, "down")

    def _sync_pair(
        self, source: int, target: int, part: float, row_bytes: int, band: Band, leg: str
    ) -> None:
        self.walk_.send(f"sync {leg}", source, target, part * row_bytes)
        for who in (source, target):
            self.walk_.does(who, part * self.walk_.copy_s(row_bytes))
        if band.sync == "sparse":
            self.walk_.send("sync_ids", source, target, part * self.ids)


def table_of(amounts: Amounts, holders: int, columns: int, first: int = 0) -> np.ndarray:
    """Amounts as an array, holders × columns that count from `first`."""
    array = np.zeros((holders, columns))
    for (holder, column), amount in amounts.items():
        array[holder, column - first] += amount
    return array
