"""How much each holder's load differs from step to step: the bands walked once more, for variances.

Samples are taken to be independent of each other, a sample's lookups of each other given how many
they are, and tables of each other. Then whether a group touches a row varies by u·(1 − u), and of
nested groups i inside j the covariance is u_i·(1 − u_j), whatever the rows' heat. Groups that do
not meet, and rows, are independent, but for one thing: a batch does not bring any number of
lookups. With Var N of them instead of N, as independent events would have, each load gains
(Var N − N)·g², where g is what one lookup more adds to it. With one id in each sample Var N is 0,
and what is one holder's gain is another's loss.

What varies is counted as if it were amounts: squares add up over independent rows and readers as
amounts do, on the same paths (`links.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.amounts import Amounts, Parts, RowSizes, amounts_of
from rowtier.cost.bundling import pieces_run
from rowtier.cost.deal import Dealt, deal, known_rows
from rowtier.cost.links import Flow, Sending, add_sums
from rowtier.cost.options import CostOptions
from rowtier.cost.rates import Way
from rowtier.cost.tally import SENDING, SumsBand, summed_masses
from rowtier.cost.time import own_s_per_byte
from rowtier.cost.touch import LOOKUPS, BagLengths, table_basis, touched
from rowtier.cost.tree import Tree, tree_of
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.order import RowOrder
from rowtier.profile.profile import Profile, TableStats

_OWN = slice(0, None, 2)  # where `_busy` has what is a holder's own


@dataclass(frozen=True, eq=False)
class CostRequest:
    """What a cost was asked for."""

    bands: Bands
    profile: Profile
    cluster: Cluster
    order: RowOrder | None
    options: CostOptions


@dataclass(frozen=True, eq=False)
class Variances:
    """Variances from step to step: seconds² of holders, bytes² of holders (row) and levels."""

    own: Floats  # memory that nobody shares, and work
    shared: Floats  # memory that others share: what each adds to it
    common: Floats  # of updates that all devices make alike, since all have copies
    ids: Flow
    forward: Flow
    sync: Floats


def variances_of(asked: CostRequest, tier_counts: Floats) -> Variances:
    """Walk over a placement; `tier_counts` is 0 for tiers that a kind does not wait for."""
    walk = _Walk(asked, tier_counts)
    for stats in asked.profile.stats:
        walk.add(stats)
    return walk.variances()


def excess_lookups(stats: TableStats) -> list[tuple[BagLengths, float]]:
    """Per feature its bags, and Var N − N of a sample's lookups: 0 if they come one by one."""
    found = []
    for feature in stats.features:
        bags = BagLengths.of(replace(stats, features=(feature,)))
        mean = float(bags.lengths @ bags.weights)
        found.append((bags, float(bags.lengths**2 @ bags.weights) - mean**2 - mean))
    return found


@dataclass(frozen=True, eq=False)
class _Touches:
    """What varies of a band's rows, added up over rows: by pairs of the basis, and by lookup."""

    basis_rows: Ints
    pairs: tuple[tuple[int, int], ...]  # the smaller group of two first
    dealt: Dealt  # pairs, then what one lookup adds to each of the basis

    @classmethod
    def of(
        cls, band: Band, table: _Table, amounts: Amounts, members: int, gateways: int
    ) -> _Touches:
        used = amounts.basis_rows[:-1]
        pairs = tuple(combinations_with_replacement(range(len(used)), 2))
        basis, missed = table.basis[used], 1 - table.basis[used]
        missed[used == LOOKUPS] = 1.0  # one lookup does not make another needless
        curve = table.stats.curve
        hits = np.where((used == LOOKUPS)[:, None], 1.0, curve.once) * curve.probabilities
        values = np.stack([*(basis[i] * missed[j] for i, j in pairs), *(hits * missed)])
        return cls(used, pairs, deal(band, curve, values, members, gateways, table.rows))

    def quadratic(self, weights: Floats, groups: Floats) -> Floats:
        """Factors of the pairs in the variance of Σ weights · touches of so many groups."""
        factors = [
            (1 if i == j else 2) * groups[i] * weights[i] * weights[j] for i, j in self.pairs
        ]
        return np.array(factors)

    def crossed(self, weights: Floats, others: Floats) -> Floats:
        """Factors of the pairs in twice the covariance of Σ weights · touches and Σ others · …"""
        return np.array([
            2 * weights[i] * others[j] + 2 * (i != j) * weights[j] * others[i]
            for i, j in self.pairs
        ])  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Table:
    """One table as the walk sees it."""

    stats: TableStats
    basis: Floats
    rows: Ints | None
    again_s: float  # of each lookup, for being gone through twice
    output_s: float  # of each lookup and column, for what the model gets


class _Flows:
    """Variances of one kind of flow, while tables are added."""

    def __init__(self, tree: Tree):
        self._tree = tree
        self.touches = Sending(tree)
        self._sent, self._received = np.zeros((2, tree.holders, tree.levels))
        self._begin()

    def _begin(self) -> None:
        self.squares, self.marginal = Sending(self._tree), Sending(self._tree)

    def settle(self, excess: float) -> None:
        """Readers' lookups are their own, but a reader's rows come from all holders together."""
        if excess:
            self._sent += excess * self.squares.flow().sent
            self._received += excess * self.marginal.flow().received ** 2
        self._begin()

    def flow(self) -> Flow:
        found = self.touches.flow()
        sent, received = found.sent + self._sent, found.received + self._received
        return Flow(np.maximum(sent, 0.0), np.maximum(received, 0.0))


class _Walk:
    """Variances by holder while tables are added."""

    def __init__(self, asked: CostRequest, tier_counts: Floats):
        self.asked, self.tree = asked, tree_of(asked.cluster)
        tree = self.tree
        tiers = asked.cluster.device.tiers
        shared = [tree.columns[tier.name] for tier in tiers if asked.cluster.sharers(tier) > 1]
        rates = [own_s_per_byte(tree, kind) for kind in range(len(tree.tiers))]
        self._rates = np.stack(rates) * tier_counts
        self._together = self._rates * np.isin(np.arange(len(tree.columns)), shared)
        self._together[1:] = 0.0  # servers share nothing
        self.ids, self.forward = _Flows(tree), _Flows(tree)
        self.packed, self.relayed = _Flows(tree), Sending(tree)
        self._busy = np.zeros((3, tree.holders))  # own, shared, own with common updates
        self._sync = np.zeros((tree.holders, tree.levels))
        placed = [(s.table, asked.bands[s.table.name]) for s in asked.profile.stats]
        self._pieces = pieces_run(placed, tree)

    def variances(self) -> Variances:
        """What the walk came to."""
        packed, devices = self.packed.flow(), self.tree.devices
        self._busy[_OWN] += (packed.sent + packed.received).sum(axis=1)
        self._busy[_OWN, :devices] += self.relayed.handed_on
        own, shared, whole = np.maximum(self._busy, 0.0)
        common = np.maximum(whole - own, 0.0)
        return Variances(own, shared, common, self.ids.flow(), self.forward.flow(), self._sync)

    def add(self, stats: TableStats) -> None:
        """Add the bands of a table."""
        asked, tree = self.asked, self.tree
        if not stats.lookups:
            return
        passes, work = 2 if asked.options.training else 1, asked.cluster.work
        line_s = passes * 4 * work.output_byte_s * (stats.table.pooling == "none")
        table = _Table(
            stats,
            table_basis(stats, asked.profile, tree.sizes),
            known_rows(stats, asked.order),
            self._pieces.again_s(stats.table.name, work),
            line_s,
        )
        bags = excess_lookups(stats)
        excess = asked.profile.batch_size * sum(more for _, more in bags)
        marginal = np.zeros((3, tree.holders, tree.levels + 1))
        reading = np.zeros(2)  # variance of every reader, and what one lookup adds
        pooled = [
            self._add_band(table, band, marginal, reading) for band in asked.bands[stats.table.name]
        ]
        self.ids.settle(excess)
        self.forward.settle(excess)
        meet = np.minimum.outer(tree.sizes, tree.sizes)  # devices that move two of the basis
        self._busy += excess * np.einsum("shi,ij,shj->sh", marginal, meet, marginal)
        here = marginal[_OWN, : tree.devices].sum(axis=2)
        more = reading[1] ** 2 + 2 * reading[1] * here
        self._busy[_OWN, : tree.devices] += reading[0] + excess * more
        sums = [band for band in pooled if band is not None]
        for of_feature, more in bags if sums else ():
            self._add_sums(stats, sums, of_feature, more)

    def _add_band(
        self, table: _Table, band: Band, marginal: Floats, reading: Floats
    ) -> SumsBand | None:
        """Add a band, except for partial sums."""
        tree, way, options = self.tree, Way.of(band, self.tree), self.asked.options
        positions = tree.positions(band, way.level)
        count, gateways = len(positions), tree.sizes[way.level - 1] if way.by_gateways else 1
        sizes = RowSizes.of(table.stats.table, band, options)
        by_kind = [
            (kind, amounts_of(tree, way, kind, band.tier, sizes, options.training), at)
            for kind, at in tree.by_kind(way.level, positions)
        ]
        touches = _Touches.of(band, table, by_kind[0][1], count, gateways)
        varied = touches.dealt.by_member(count)
        pairs, lookup = np.split(varied, [len(touches.pairs)])
        groups, spans = _groups(tree, way, touches.basis_rows)
        common = (touches.basis_rows == touched(tree.levels)) & (way.level == 0 < tree.levels)
        reads = self._reading(table, band, by_kind[0][1])
        for kind, amounts, at in by_kind:
            parts = Parts.of(tree, amounts.matrix[:, :-1])
            holders = tree.members[way.level][:, positions[at]]
            for share, weights in enumerate(self._weights(parts, kind, common)):
                each = weights / groups
                self._busy[share, holders] += touches.quadratic(each, groups) @ pairs[:, at]
                if kind == 0:  # a device reads, too
                    self._busy[share, holders] += touches.crossed(each, reads) @ pairs[:, at]
                for place, span in enumerate(spans):
                    marginal[share, holders, span] += each[place] * lookup[place, at]
        own = touches.quadratic(reads, np.ones(len(reads)))
        reading += own @ pairs.sum(axis=1), reads @ lookup.sum(axis=1)
        self._add_sync(way, touches, sizes, pairs, tree.members[way.level][:, positions])
        self._add_links(way, touches, sizes, positions, varied)
        if way.exchange == "rows" or not way.level:
            return None
        columns = band.columns or (0, table.stats.table.embedding_dim)
        masses = lookup[by_kind[0][1].at(LOOKUPS)]
        return SumsBand(columns, way.staged, way.level, positions, masses)

    def _weights(
        self, parts: Parts, kind: int, common: NDArray[np.bool_]
    ) -> tuple[Floats, Floats, Floats]:
        """Seconds of a holder for each of the basis: own, in shared memory, own and common.

        What any device touches, all devices update that have a copy.
        """
        moved = parts.read + parts.written
        shared = self._together[kind] @ moved
        whole = self._rates[kind] @ moved - shared + parts.serving[0]
        return np.where(common, 0.0, whole), shared, whole

    def _reading(self, table: _Table, band: Band, amounts: Amounts) -> Floats:
        """Seconds of a reader for each of the basis."""
        weights = Parts.of(self.tree, amounts.matrix[:, :-1]).reading[0].copy()
        line_s = table.output_s * band.width(table.stats.table.embedding_dim)
        weights[amounts.at(LOOKUPS)] += table.again_s + line_s
        return np.asarray(weights)

    def _add_sync(
        self, way: Way, touches: _Touches, sizes: RowSizes, pairs: Floats, holders: Ints
    ) -> None:
        """Gradients to whoever adds them up, and sums of the rows that a copy adds up itself."""
        tree = self.tree
        if way.sync == "dense" or not self.asked.options.training:
            return
        basis = touches.basis_rows.tolist()
        alone = {basis[i]: row for row, (i, j) in enumerate(touches.pairs) if i == j}
        square = float(sizes.weight_bytes + sizes.id_bytes) ** 2
        for level in range(way.level + 1, tree.levels + 1):
            below, here = tree.sizes[level - 1], tree.sizes[level]
            share = tree.sizes[way.level] / below * (1 - below / here)
            if not share:
                continue
            sent = pairs[alone[touched(level - 1)]]
            totals = (tree.fan_out(level) - 1) * pairs[alone[touched(tree.levels)]]
            self._sync[holders, level - 1] += square * share * (sent + totals)

    def _add_links(
        self, way: Way, touches: _Touches, sizes: RowSizes, positions: Ints, varied: Floats
    ) -> None:
        """Ids, and rows of a `rows` band, to each reader or from gateway to gateway."""
        if not way.level:
            return
        sent = [(self.ids, float(sizes.asked_bytes))]
        if way.exchange == "rows":
            sent.append((self.forward, float(sizes.weight_bytes)))
        if way.by_gateways:
            self._add_staged(way, touches, sizes, positions, sent)
            return
        asked = touches.basis_rows.tolist().index(way.asked)
        rows = varied[touches.pairs.index((asked, asked))]
        lookup = varied[len(touches.pairs) + asked]
        members = self.tree.members[way.level][:, positions]
        for flows, size in sent:
            flows.touches.add_flat(way.level, members, size**2 * rows)
            flows.squares.add_flat(way.level, members, size**2 * lookup**2)
            flows.marginal.add_flat(way.level, members, size * lookup)

    def _add_staged(
        self, way: Way, touches: _Touches, sizes: RowSizes, positions: Ints,
        sent: list[tuple[_Flows, float]],
    ) -> None:  # fmt: skip
        tree, dealt, basis = self.tree, touches.dealt, touches.basis_rows.tolist()
        members, gateways = tree.members[way.level], tree.sizes[way.level - 1]
        groups = [basis.index(touched(level)) for level in range(way.level)]
        rows = dealt.sums[[touches.pairs.index((at, at)) for at in groups]]
        lookup = dealt.sums[[len(touches.pairs) + at for at in groups]]
        readers = np.array(tree.sizes[: way.level], dtype=np.float64)[:, None]

        def placed(amounts: Floats) -> Floats:
            where = positions[dealt.member] * gateways + dealt.gateway
            places = members.shape[1] * gateways
            held = np.stack([np.bincount(where, each, places) for each in amounts])
            return np.asarray(held.reshape(way.level, -1, gateways), dtype=np.float64)

        for flows, size in sent:
            flows.touches.add_staged(way.level, members, placed(size**2 * rows))
            flows.squares.add_staged(way.level, members, placed(size**2 * readers * lookup**2))
            marginal = placed(size * np.sqrt(readers) * lookup)
            flows.marginal.add_staged(way.level, members, marginal)
        passes = 2 if self.asked.options.training else 1
        copy_s = passes * self.asked.cluster.work.copy_s(sizes.weight_bytes)
        if copy_s:
            self.relayed.add_staged(way.level, members, placed(copy_s**2 * rows))

    def _add_sums(
        self, stats: TableStats, pooled: list[SumsBand], bags: BagLengths, more: float
    ) -> None:
        """Partial sums of one feature: a sample needs one of an owner or not."""
        tree, batch = self.tree, self.asked.profile.batch_size
        work, passes = self.asked.cluster.work, 2 if self.asked.options.training else 1
        either, lookup, square = (
            kind(bags.lengths, bags.weights) for kind in (_Either, _Lookup, _Squared)
        )
        for width, staged, masses in summed_masses(tree, pooled):
            sum_bytes = width * stats.table.item_bytes
            sum_s = passes * work.sum_copy_s(sum_bytes)
            for flows, size in ((self.forward, sum_bytes), (self.packed, sum_s)):
                SENDING[staged](flows.touches, tree, masses, either, size**2 * batch)
                if not staged:  # what is counted by pairs already is not to be counted twice
                    add_sums(flows.touches, tree, masses, square, -(size**2) * batch * more)
                    add_sums(flows.squares, tree, masses, square, size**2)
                    add_sums(flows.marginal, tree, masses, lookup, size)
            own = np.add.reduce(list(masses.values()))[: tree.devices]
            self._busy[_OWN, : tree.devices] += 4 * sum_s**2 * batch * either.sums(own)
        for flows in (self.forward, self.packed):
            flows.settle(batch * more)


class _Either(BagLengths):
    """Variance of whether a sample needs a sum of a holder."""

    def sums(self, mass: Floats) -> Floats:
        v = super().sums(mass)
        return v * (1 - v)


class _Lookup(BagLengths):
    """Sums that one lookup more makes needed."""

    def sums(self, mass: Floats) -> Floats:
        return mass * (1 - super().sums(mass))


class _Squared(_Lookup):
    """The same, squared."""

    def sums(self, mass: Floats) -> Floats:
        return super().sums(mass) ** 2


def _groups(tree: Tree, way: Way, basis_rows: Ints) -> tuple[Floats, list[int]]:
    """For each of the basis the groups that a row's holder counts it of; the level they fill.

    Below the scope these are all groups of it; with gateways, those of the holder's own group.
    """
    groups, spans = [], []
    for row in basis_rows.tolist():
        level = 0 if row == LOOKUPS else row - touched(0)
        inside = level < way.level
        near = way.by_gateways and row != LOOKUPS
        span = (level + 1 if near else way.level) if inside else level
        groups.append(tree.sizes[span] / tree.sizes[level])
        spans.append(span)
    return np.array(groups), spans
