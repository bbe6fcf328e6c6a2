"""Replay once more, in plain Python: every id of every sample, one message at a time.

Shares nothing with `rowtier.evaluate` and `rowtier.cost`: no classes, no stamps, no kernels.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
from cost.mixed_naive import mixed_tables

from rowtier import Band, Plan, Table
from rowtier.cost.options import CostOptions

Bag = list[int]  # rows that one sample looks up with one feature


@dataclass
class NaiveStep:
    """One step. `batch[feature][sample]` is a bag; device d reads the d-th run of samples."""

    plan: Plan
    batch: dict[str, list[Bag]]
    options: CostOptions
    sent: dict = field(default_factory=lambda: defaultdict(float))
    received: dict = field(default_factory=lambda: defaultdict(float))
    served: dict = field(default_factory=lambda: defaultdict(int))
    read: dict = field(default_factory=lambda: defaultdict(float))
    written: dict = field(default_factory=lambda: defaultdict(float))
    distinct: list = field(default_factory=list)
    extra: set = field(default_factory=set)
    work: dict = field(default_factory=lambda: defaultdict(float))  # seconds of each holder

    def __post_init__(self) -> None:
        cluster = self.cluster = self.plan.cluster
        self.K, self.W = len(cluster.levels), cluster.num_devices
        self.groups = [
            [cluster.members(k, g) for g in range(cluster.num_groups(k))] for k in range(self.K + 1)
        ]
        samples = len(next(iter(self.batch.values())))
        self.per_device = samples // self.W
        self.away = [False] * samples
        self.distinct = [[0] * len(groups) for groups in self.groups]
        self.table_rows: dict[str, int] = {}
        self.passes = 2 if self.options.training else 1
        for table, bands in self.plan:
            self._table(table, bands)

    @property
    def home_samples(self) -> int:
        return self.away.count(False)

    def n(self, level: int) -> int:
        return self.cluster.group_size(level)

    def distance(self, a: int, b: int) -> int:
        for level in range(self.K + 1):
            if any(a in group and b in group for group in self.groups[level]):
                return level
        raise AssertionError

    def send(self, kind: str, source: int, target: int, amount: float) -> None:
        if amount and source != target:
            level = self.distance(source, target)
            self.sent[kind, source, level] += amount
            self.received[kind, target, level] += amount

    def copy_s(self, size_bytes: float) -> float:
        rate = self.cluster.work.buffer_bytes_per_s
        return self.cluster.work.row_s + (size_bytes / rate if rate else 0.0)

    def array(self, amounts: dict, kind: str) -> np.ndarray:
        found = np.zeros((self.cluster.num_holders, self.K))
        for (what, holder, level), amount in amounts.items():
            if what == kind:
                found[holder, level - 1] += amount
        return found

    def tiers(self, amounts: dict) -> np.ndarray:
        found = np.zeros((self.cluster.num_holders, len(self.cluster.tier_names)))
        for (holder, tier), amount in amounts.items():
            found[holder, tier] += amount
        return found

    def _table(self, table: Table, bands: tuple[Band, ...]) -> None:
        self.is_mixed = table.name in mixed_tables(list(self.plan), self.cluster)
        lookups = [Counter() for _ in range(self.W)]  # per device: row -> times
        for feature in table.features:
            for sample, bag in enumerate(self.batch[feature]):
                for row in bag:
                    lookups[sample // self.per_device][row] += 1
        self.looked = lookups
        for device in range(self.W):
            lines = self.per_device * len(table.features)
            lines = lookups[device].total() if table.pooling == "none" else lines
            line_s = 4 * table.embedding_dim * self.cluster.work.output_byte_s
            self.work[device] += self.passes * lines * line_s
        touched = [
            [{row for d in group if d < self.W for row in lookups[d]} for group in groups]
            for groups in self.groups
        ]
        self.touched = touched
        for level in range(self.K + 1):
            for group, found in enumerate(touched[level]):
                self.distinct[level][group] += len(found)
        self.table_rows[table.name] = len(touched[self.K][0])
        by_rank = self.plan.rows_in_order(table.name).tolist()
        owners: list[dict[int, tuple[int, int, int]]] = []  # per band: row -> position, place, slot
        for band in bands:
            owners.append(self._dealt(band, by_rank[band.start : band.stop]))
            for row, dealt in owners[-1].items():
                self._row(table, band, row, *dealt)
        for feature in table.features:
            for sample, bag in enumerate(self.batch[feature]):
                self._sums(table, bands, owners, sample // self.per_device, bag)
                for band, owner in zip(bands, owners, strict=True):
                    for row in bag:
                        if row in owner:
                            holder = self._holder(band, sample // self.per_device, owner[row][0])
                            self.away[sample] |= holder != sample // self.per_device

    def _holder(self, band: Band, device: int, position: int) -> int:
        level = self.cluster.level_of(band.scope)
        return self.groups[level][device // self.n(level)][position]

    def _dealt(self, band: Band, rows: list[int]) -> dict[int, tuple[int, int, int]]:
        level = self.cluster.level_of(band.scope)
        members = list(range(self.n(level))) if band.members == "all" else list(band.members)
        m = len(members)
        if band.order == "spread":
            return {r: (members[(x + band.offset) % m], x, x // m) for x, r in enumerate(rows)}
        block = -(-len(rows) // m)
        return {r: (members[x // block], x, x % block) for x, r in enumerate(sorted(rows))}

    def _row(
        self, table: Table, band: Band, row: int, position: int, place: int, slot: int
    ) -> None:
        level = self.cluster.level_of(band.scope)
        width = (band.columns or (0, table.embedding_dim))[1] - (band.columns or (0, 0))[0]
        row_bytes = width * table.item_bytes
        id_bytes = 4 if self.options.ids == "narrow" else 8
        names = self.cluster.tier_names
        for group, holders in enumerate(self.groups[level]):
            owner = holders[position]
            readers = [h for h in holders if h < self.W]
            for reader in readers:
                self.served[owner, names.index(band.tier)] += self.looked[reader][row]
            self._look_up(band, level, readers, row, row_bytes)
            if band.exchange == "rows" and band.staged and level:
                self._pass_on(level, group, owner, owner, row, place + band.offset, row_bytes)
            else:
                once = band.exchange == "rows" and (band.coalesced or band.staged)
                once = once or level == 0
                weighted = band.exchange == "sums" and table.name in self.options.weighted
                for reader in readers:
                    asks = self.looked[reader][row]
                    asks = min(asks, 1) if once else asks
                    self.send("ids", reader, owner, asks * (id_bytes + 4 * weighted))
                    self.work[owner] += self.passes * asks * self.copy_s(row_bytes)
                    if band.exchange == "rows":
                        self.send("forward", owner, reader, asks * row_bytes)
            needed = row in self.touched[level][group]
            self._memory(table, band, owner, row, width, needed)
        if self.options.training:
            self._sync(band, level, position, slot, row, row_bytes, id_bytes)

    def _look_up(
        self, band: Band, level: int, readers: list[int], row: int, row_bytes: int
    ) -> None:
        """What readers do with each lookup, and with rows that they asked for."""
        work = self.cluster.work
        once = level == 0 or (band.exchange == "rows" and (band.coalesced or band.staged))
        for reader in readers:
            lookups = self.looked[reader][row]
            asks = min(lookups, 1) if once else lookups
            self.work[reader] += lookups * work.lookup_s * (2 if self.is_mixed else 1)
            if band.exchange == "rows" or level == 0:
                added_s = lookups * (self.copy_s(row_bytes) - work.row_s)
                self.work[reader] += self.passes * (added_s + asks * work.row_s)
                self.work[reader] += asks * (work.distinct_s if once else work.plain_s)

    def _pass_on(
        self, level: int, group: int, source: int, owner: int, row: int, place: int, row_bytes: int
    ) -> None:
        if level == 0:
            return
        id_bytes = 4 if self.options.ids == "narrow" else 8
        fan = self.n(level) // self.n(level - 1)
        for child in range(group * fan, (group + 1) * fan):
            holder = source
            if row in self.touched[level - 1][child]:
                self.work[source] += self.passes * self.copy_s(row_bytes)
            if source not in self.groups[level - 1][child]:
                holder = child * self.n(level - 1) + place % self.n(level - 1)
                if row in self.touched[level - 1][child]:
                    self.send("forward", source, holder, row_bytes)
                    self.send("ids", holder, source, id_bytes)
            self._pass_on(level - 1, child, holder, owner, row, place, row_bytes)

    def _memory(
        self,
        table: Table,
        band: Band,
        owner: int,
        row: int,
        width: int,
        needed: bool,
    ) -> None:
        state = {"sgd": 0, "rowwise_adagrad": 4, "adagrad": 4 * width, "adam": 8 * width}
        state |= {"momentum": 4 * width, "adamw": 8 * width}
        size = width * table.item_bytes
        tiers = self.cluster.tiers_of(owner)
        tier = next(t for t in tiers if t.name == band.tier)
        first = self.cluster.tier_names.index(tiers[0].name)
        here = self.cluster.tier_names.index(tier.name)

        def whole(amount: int, grain: int) -> int:
            return math.ceil(amount / grain) * grain

        self.read[owner, first] += needed * whole(size, tiers[0].granularity_bytes)
        if self.options.training:
            if row in self.touched[self.K][0]:
                moved = whole(size + state[table.optimizer], tier.granularity_bytes)
                self.read[owner, here] += moved
                self.written[owner, here] += moved
                like = {"momentum": "sgd", "adamw": "adam"}.get(table.optimizer, table.optimizer)
                self.work[owner] += getattr(self.cluster.work.update, like)
        elif tier is not tiers[0] and needed:
            self.read[owner, here] += whole(size, tier.granularity_bytes)

    def _sync(
        self, band: Band, k: int, position: int, slot: int, row: int, row_bytes: int, id_bytes: int
    ) -> None:
        dense = band.sync == "dense"
        speaks = [group[position] for group in self.groups[k]]  # one copy for each group below
        for level in range(k + 1, self.K + 1):
            fan = self.n(level) // self.n(level - 1)
            slot, digit = divmod(slot, fan)
            adders = speaks[digit::fan]
            for child, copy in enumerate(speaks):
                up = dense or row in self.touched[level - 1][child]
                down = dense or row in self.touched[self.K][0]
                adder = adders[child // fan]
                for sender, target, happens in ((copy, adder, up), (adder, copy, down)):
                    self.send("sync", sender, target, happens * row_bytes)
                    self.send("sync_ids", sender, target, (not dense) * happens * id_bytes)
                    for who in (sender, target):
                        self.work[who] += (sender != target) * happens * self.copy_s(row_bytes)
            speaks = adders

    def _sums(
        self, table: Table, bands: tuple[Band, ...], owners: list, reader: int, bag: Bag
    ) -> None:
        pooled = [
            (band, owner)
            for band, owner in zip(bands, owners, strict=True)
            if band.exchange == "sums" and self.cluster.level_of(band.scope)
        ]
        edges = {edge for band, _ in pooled for edge in band.columns or (0, table.embedding_dim)}
        for column in range(table.embedding_dim):
            # Columns that the same bands have travel as one sum, which is packed as one row.
            rate = self.cluster.work.buffer_bytes_per_s
            self.sum_s = table.item_bytes / rate if rate else 0.0
            self.sum_s += self.cluster.work.sum_s if column in edges else 0.0
            for staged in (False, True):
                hit = {
                    self._holder(band, reader, owner[row][0])
                    for band, owner in pooled
                    if band.staged == staged
                    if (band.columns or (0, 10**9))[0] <= column < (band.columns or (0, 10**9))[1]
                    for row in bag
                    if row in owner
                }
                if reader in hit:
                    self.work[reader] += 2 * self.passes * self.sum_s
                if staged:
                    self._staged(reader, hit, table.item_bytes)
                else:
                    for owner in hit - {reader}:
                        self._send_sum(owner, reader, table.item_bytes)

    def _send_sum(self, source: int, target: int, item_bytes: int) -> None:
        """The one packs it, the other unpacks it, and if training both do so with gradients."""
        assert source != target
        self.send("forward", source, target, item_bytes)
        for who in (source, target):
            self.work[who] += self.passes * self.sum_s

    def _staged(self, reader: int, hit: set[int], item_bytes: int) -> None:
        for far in range(1, self.K + 1):
            group = reader // self.n(far)
            fan = self.n(far) // self.n(far - 1)
            for child in range(group * fan, (group + 1) * fan):
                inside = self.groups[far - 1][child]
                if reader not in inside and hit & set(inside):
                    collector = child * self.n(far - 1) + reader % self.n(far - 1)
                    self._send_sum(collector, reader, item_bytes)
                    self._collect(far - 1, child, reader, hit, item_bytes)
            for server in self._attached(far, group) & hit:
                self._send_sum(server, reader, item_bytes)

    def _attached(self, level: int, group: int) -> set[int]:
        fan = self.n(level) // self.n(level - 1)
        inside = {
            h for c in range(group * fan, (group + 1) * fan) for h in self.groups[level - 1][c]
        }
        return set(self.groups[level][group]) - inside

    def _collect(self, level: int, group: int, reader: int, hit: set[int], item: int) -> None:
        if level == 0:
            return
        collector = group * self.n(level) + reader % self.n(level)
        fan = self.n(level) // self.n(level - 1)
        for child in range(group * fan, (group + 1) * fan):
            if not hit & set(self.groups[level - 1][child]):
                continue
            source = child * self.n(level - 1) + reader % self.n(level - 1)
            if source != collector:
                self._send_sum(source, collector, item)
                self.extra.add(level)
            self._collect(level - 1, child, reader, hit, item)
        for server in self._attached(level, group) & hit:
            self._send_sum(server, collector, item)
            self.extra.add(level)


def naive_steps(
    plan: Plan, data: dict[str, list[Bag]], batch_size: int, options: CostOptions
) -> list[NaiveStep]:
    """Every whole step of the data."""
    size = batch_size * plan.cluster.num_devices
    samples = len(next(iter(data.values())))
    return [
        NaiveStep(plan, {f: bags[at : at + size] for f, bags in data.items()}, options)
        for at in range(0, samples - size + 1, size)
    ]
