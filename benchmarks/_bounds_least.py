"""The least that any legal plan can take: a bound over everything that a band can say.

A step takes at least any weighted mean over holders of their memory time and work, and for each
level at least the mean over devices of what their links carry (`cost/README.md`). Means are sums
over rows, so at prices λ for a byte of each memory every row may choose its way alone, and what
all rows choose, less λ·capacity, is below every plan.

Two things are not sums over rows.

*Partial sums.* If rows with the share T of a table's lookups go by sums, a reader needs at least
v(T) of them a sample (`Bags.sums`): owners apart send more, never less. v is concave, so m_h·v(T)/T
of them at least are of the way h that has the share m_h, each for c_h. Where T lies between two
masses, v(T) is above the chord a + b·T between them, and v(T)/T above its value θ at the larger. So
if no sum is sent for less than μ, the table costs at least both of

    a·μ + Σ rows min over ways, c_h ≥ μ [ time + λ·bytes + b·c_h·p ]
          Σ rows min over ways, c_h ≥ μ [ time + λ·bytes + θ·c_h·p ]

and the least over pairs of masses and over μ holds wherever T lies. (The first is exact where all
sums cost the same, the second where all rows go by sums.) A table that also has rows that do not go
by sums goes through its lookups twice (`cost/bundling.py`).

*Columns.* A row whose columns lie apart is several rows in narrower tables, and nothing of it is
cheaper than its share of the width, but for one thing: bytes that were moved for granularity's
sake alone may be saved. Where they can be (`_wastes`), the row may also choose a way without them;
its parts then ask twice, or one column of it is copied to every device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from rowtier.band import Band
from rowtier.cluster import Cluster, Tier
from rowtier.cost.amounts import whole_bytes
from rowtier.cost.options import CostOptions
from rowtier.cost.tally import outputs_work_s
from rowtier.cost.terms import RowTerms, row_terms
from rowtier.cost.time import link_s_per_byte
from rowtier.cost.touch import LOOKUPS, Bags, table_basis
from rowtier.cost.tree import Tree, tree_of
from rowtier.jit import compiled
from rowtier.plan.constraints import Constraints
from rowtier.plan.options import PlanOptions
from rowtier.plan.solve.menu import memories
from rowtier.plan.solve.prices import least_fixed_s
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile, TableStats
from rowtier.tables import Table

# Where chords of v meet: closer where v(T)/T falls.
MASSES = np.concatenate(([0.0], np.geomspace(1e-5, 0.05, 40), np.geomspace(0.05, 1.0, 61)[1:]))
SAFETY = 1 - 1e-9  # rounding errors must not lift a bound above the truth
NEARLY_FREE_S = 1e-30  # of a sum; 0 says that a way sends rows


class Holding(NamedTuple):
    """A way to keep and to send a row: a band of one row, and who holds it."""

    band: Band
    kind: int  # of holder, as in `Tree.kinds`
    memory: int  # which of `menu.memories`


@lru_cache(maxsize=64)
def holdings(cluster: Cluster, pooled: bool) -> tuple[Holding, ...]:
    """Every way that a band can say, but for those that cost no less than another.

    `members`, `order` and `offset` say which holders of a kind have which rows: on average over
    holders all the same. `columns` is the caller's. Of a copy on every device `exchange`,
    `coalesced` and `staged` say nothing, nor does `sync` of a row that has no copies; sums are
    asked for lookup by lookup, and those that are `staged` are no fewer for a reader.
    """
    tree, found = tree_of(cluster), []
    for (memory, kind, tier), scope in product(_memories(cluster), cluster.scopes):
        level = tree.scopes[scope]
        here = np.flatnonzero(tree.kinds[tree.members[level][0]] == kind)
        if not len(here):
            continue
        whole = Band(start=0, stop=1, scope=scope, tier=tier, members=(int(here[0]),))
        for changes in _ways(level, len(cluster.levels), pooled):
            found.append(Holding(whole.model_copy(update=changes), kind, memory))
    return tuple(found)


def _ways(level: int, top: int, pooled: bool) -> Iterator[dict[str, object]]:
    if level == 0:
        ways: list[dict[str, object]] = [{}]
    else:
        ways = [{"coalesced": False}, {"coalesced": True}]
        ways += [{"coalesced": True, "staged": True}] * (level > 1)
        ways += [{"exchange": "sums"}] * pooled
    for way, sync in product(ways, ("dense", "sparse") if level < top else ("dense",)):
        yield {**way, "sync": sync}


def _memories(cluster: Cluster) -> Iterator[tuple[int, int, str]]:
    """Every memory as `menu.memories` counts them: its number, kind of holder and tier."""
    owners = [(0, cluster.device.tiers)]
    owners += [(kind, server.tiers) for kind, server in enumerate(cluster.servers, start=1)]
    every = [(kind, tier.name) for kind, tiers in owners for tier in tiers]
    for memory, (kind, name) in enumerate(every):
        yield memory, kind, name


@dataclass(frozen=True, eq=False)
class Weights:
    """How much the mean over the holders of each kind counts; together 1."""

    by_kind: tuple[float, ...]

    @property
    def devices(self) -> float:
        """The share of devices."""
        return self.by_kind[0]

    def tilted(self, towards_devices: float) -> Weights:
        """The same, devices counting so much more, and servers less."""
        if len(self.by_kind) == 1:
            return self
        devices = min(1.0, max(0.0, self.devices + towards_devices))
        rest = sum(self.by_kind[1:])
        others = [
            weight / rest if rest else 1 / len(self.by_kind[1:]) for weight in self.by_kind[1:]
        ]
        return Weights((devices, *((1 - devices) * share for share in others)))


@dataclass(frozen=True, eq=False)
class TableChoice:
    """What the rows of a table choose from; arrays are ways, or ways × buckets."""

    ways: tuple[Holding, ...]  # the first of all: rows whose columns lie together
    kind: Ints
    memory: Ints
    busy_s: Floats  # memory and work of the holder, the mean over holders of the kind
    reading_s: Floats  # work of a reader
    links_s: Floats
    kept_bytes: Floats  # for each device, on average
    sum_links_s: Floats  # what links take for v(T) = 1; 0 for ways that send rows
    sum_work_s: Floats  # work of a reader for the same; the holder's is as much, and it is its own
    widths: Floats
    mass: Floats  # of one row in each bucket
    chords: Floats  # of v: a, b and θ
    again_s: float  # work of a reader for going through all lookups once more

    def least_s(self, prices: Floats, weights: Weights, scale: Floats) -> float:
        """The least that the table costs; `scale` is devices over holders of each kind."""
        cost, slope = self._priced(prices, weights, scale)
        again_s = weights.devices * self.again_s
        return float(least_cost(cost, slope, self.widths, self.mass, self.chords, again_s)[0])

    def chosen(self, prices: Floats, weights: Weights, scale: Floats, *, sums: bool = True) -> Ints:
        """The way that each bucket takes where the table costs the least; none is cut."""
        cost, slope = (each[: len(self.ways)] for each in self._priced(prices, weights, scale))
        again_s = weights.devices * self.again_s
        _, least, rise = least_cost(cost, slope, self.widths, self.mass, self.chords, again_s)
        if not sums or not np.isfinite(rise):
            cost = np.where(slope[:, None] > 0, np.inf, cost)
            return np.asarray(cost.argmin(axis=0))
        cost = cost + rise * slope[:, None] * self.mass
        cost[(slope > 0) & (slope < least)] = np.inf
        return np.asarray(cost.argmin(axis=0))

    def _priced(self, prices: Floats, weights: Weights, scale: Floats) -> tuple[Floats, Floats]:
        """Ways × buckets: what a row costs; and what a sum costs, 0 for ways that send rows."""
        held = np.array(weights.by_kind)[self.kind]
        cost = held[:, None] * self.busy_s + weights.devices * self.reading_s + self.links_s
        cost = cost + (prices[self.memory] * self.kept_bytes)[:, None]
        slope = self.sum_links_s + self.sum_work_s * (weights.devices + held * scale[self.kind])
        return cost, slope


@compiled
def least_cost(
    cost: Floats, slope: Floats, widths: Floats, mass: Floats, chords: Floats, again_s: float
) -> tuple[float, float, float]:
    """The least over chords and over the cheapest way that sums may be sent in.

    And what the cheapest sum costs there, and how many there are for each share of lookups
    (endless: nothing goes by sums).
    """
    ways, buckets = cost.shape
    fetched = np.full(buckets, np.inf)
    for way in range(ways):
        if slope[way] == 0:
            for bucket in range(buckets):
                fetched[bucket] = min(fetched[bucket], cost[way, bucket])
    best, best_least, best_rise = 0.0, 0.0, np.inf
    for bucket in range(buckets):
        best += widths[bucket] * fetched[bucket]
    slopes = np.unique(slope[slope > 0])
    summed = np.full((len(slopes), buckets), np.inf)
    for way in range(ways):
        if slope[way] > 0:
            at = np.searchsorted(slopes, slope[way])
            for bucket in range(buckets):
                summed[at, bucket] = min(summed[at, bucket], cost[way, bucket])
    nothing = np.full(buckets, np.inf)
    for least in range(len(slopes)):
        for chord in range(len(chords)):
            start, rise, mean = chords[chord, 0], chords[chord, 1], chords[chord, 2]
            for others in (fetched, nothing):  # beside rows that do not go by sums, or alone
                total = start * slopes[least] + (again_s if others[0] < np.inf else 0.0)
                total += _least_sum(others, summed[least:], rise * slopes[least:], widths, mass)
                if total >= best:
                    continue
                other = again_s if others[0] < np.inf else 0.0
                other += _least_sum(others, summed[least:], mean * slopes[least:], widths, mass)
                if other < best:
                    best, best_least = max(total, other), slopes[least]
                    best_rise = mean if other > total else rise
    return best, best_least, best_rise


@compiled
def _least_sum(
    fetched: Floats, summed: Floats, rises: Floats, widths: Floats, mass: Floats
) -> float:
    """What all rows cost if each chooses alone, and sums cost so much for each share of lookups."""
    total = 0.0
    for bucket in range(len(fetched)):
        one = fetched[bucket]
        for at in range(len(rises)):
            one = min(one, summed[at, bucket] + rises[at] * mass[bucket])
        if widths[bucket] > 0:
            total += widths[bucket] * one
    return total


def choice_of(
    stats: TableStats,
    profile: Profile,
    cluster: Cluster,
    cost: CostOptions,
    constraints: Constraints,
    sync_weight: float,
) -> TableChoice:
    """Price every way for every bucket of a table."""
    tree, table = tree_of(cluster), stats.table
    ways = _allowed(holdings(cluster, table.pooling != "none"), table, cluster, constraints)
    basis = table_basis(stats, profile, tree.sizes, rest=True)
    found = [
        _Row.of(
            way, row_terms(way.band, table, basis, cluster, cost), table, tree, cost, sync_weight
        )
        for way in ways
    ]
    if table.embedding_dim > 1 and _wastes(table, cluster):
        found += _cut(ways, table, basis, cluster, cost, sync_weight)
    rows = table.num_embeddings
    v = Bags.of(stats).sums(MASSES) * profile.batch_size if stats.lookups else 0.0 * MASSES
    rises = np.diff(v) / np.diff(MASSES)
    return TableChoice(
        tuple(ways),
        np.array([one.kind for one in found], dtype=np.int64),
        np.array([one.memory for one in found], dtype=np.int64),
        np.stack([one.busy_s for one in found]),
        np.stack([one.reading_s for one in found]),
        np.stack([one.links_s for one in found]),
        np.array([one.kept_bytes for one in found]),
        np.array([one.sum_links_s for one in found]),
        np.array([one.sum_work_s for one in found]),
        np.append(stats.curve.widths, rows - stats.curve.ranks).astype(np.float64),
        np.append(stats.curve.probabilities, 0.0),
        np.stack([v[:-1] - rises * MASSES[:-1], rises, v[1:] / MASSES[1:]], axis=1),
        cluster.work.lookup_s * profile.lookups_per_step(stats),
    )


def _allowed(
    ways: tuple[Holding, ...], table: Table, cluster: Cluster, constraints: Constraints
) -> list[Holding]:
    """The ways that the table's pins leave."""
    pin, alone = constraints.pin(table.name), constraints.one_owner(table.name)
    kept = [way for way in ways if pin.scope in (None, way.band.scope)]
    if pin.tier is not None:  # a server's tier may have the same name
        kept = [way for way in kept if way.kind == 0 and way.band.tier == pin.tier]
    if alone and cluster.num_devices > 1:
        kept = [way for way in kept if way.kind == 0 and way.band.scope == cluster.top]
    return kept


class _Row(NamedTuple):
    """One way, priced."""

    kind: int
    memory: int
    busy_s: Floats
    reading_s: Floats
    links_s: Floats
    kept_bytes: float
    sum_links_s: float
    sum_work_s: float
    asking_s: Floats  # the part of `links_s` that does not depend on the row's width

    @classmethod
    def of(
        cls, way: Holding, terms: RowTerms, table: Table, tree: Tree, cost: CostOptions,
        sync_weight: float,
    ) -> _Row:  # fmt: skip
        """From a row's terms, which deal all that holders do to the devices."""
        sync_s = sync_weight * terms.sync_s.sum(axis=0) if way.kind == 0 else 0.0
        sum_links_s, sum_work_s = _sums(way, table, tree, cost)
        asking_s = link_s_per_byte(tree) @ terms.id_bytes / terms.group_devices
        return cls(
            way.kind,
            way.memory,
            (terms.memory_s + terms.serving_s) * _scale(tree)[way.kind],
            terms.reading_s,
            terms.exchange_s.sum(axis=0) + sync_s,
            terms.stored_bytes / terms.group_devices,
            sum_links_s,
            sum_work_s,
            asking_s,
        )

    def narrower(self, width: float, beside: _Row) -> _Row:
        """The same for a share of the width, with at least some columns kept as another way says.

        What the other way's memory costs is left out, and what servers do beside devices.
        """
        rest, on_device = 1 - width, float(self.kind == 0)
        return self._replace(
            busy_s=width * self.busy_s + rest * on_device * beside.busy_s,
            reading_s=width * self.reading_s + rest * beside.reading_s,
            links_s=width * self.links_s + rest * beside.links_s,
            kept_bytes=width * self.kept_bytes,
            sum_links_s=width * self.sum_links_s,
            sum_work_s=width * self.sum_work_s,
        )


def _scale(tree: Tree) -> Floats:
    """Devices for each holder of every kind."""
    counts = np.bincount(tree.kinds, minlength=len(tree.racks) + 1)
    return np.asarray(tree.devices / counts)


def _sums(way: Holding, table: Table, tree: Tree, cost: CostOptions) -> tuple[float, float]:
    """Seconds of links and of a reader's work, for each sum that a sample needs."""
    if way.band.exchange != "sums":
        return 0.0, 0.0
    level, passes = tree.scopes[way.band.scope], 2 if cost.training else 1
    attached = 0 if way.kind == 0 else tree.racks[way.kind - 1].level
    readers = tree.readers(level, attached) / tree.sizes[level]
    links_s = passes * table.row_bytes * float(link_s_per_byte(tree) @ readers)
    links_s = max(links_s, NEARLY_FREE_S)  # in groups of one, and still no row that is fetched
    return links_s, passes * tree.cluster.work.sum_copy_s(table.row_bytes)


def _wastes(table: Table, cluster: Cluster) -> bool:
    """Whether a narrower row moves fewer bytes per column in some memory."""
    tiers = [*cluster.device.tiers, *(tier for server in cluster.servers for tier in server.tiers)]
    sizes = [
        [whole_bytes(width * table.item_bytes + state, tier) / width
         for width in range(1, table.embedding_dim + 1)
         for state in [table.state_bytes(width) * beside]]
        for tier in tiers
        for beside in (0, 1)
    ]  # fmt: skip
    return any(min(each) < each[-1] * (1 - 1e-12) for each in sizes)


@lru_cache(maxsize=64)
def _ungrained(cluster: Cluster) -> Cluster:
    """The same cluster if an access moved no more than it needs."""

    def fine(tiers: tuple[Tier, ...]) -> tuple[Tier, ...]:
        return tuple(tier.model_copy(update={"granularity_bytes": 1}) for tier in tiers)

    device = cluster.device.model_copy(update={"tiers": fine(cluster.device.tiers)})
    servers = tuple(s.model_copy(update={"tiers": fine(s.tiers)}) for s in cluster.servers)
    return cluster.model_copy(update={"device": device, "servers": servers})


def _cut(
    ways: list[Holding], table: Table, basis: Floats, cluster: Cluster, cost: CostOptions,
    sync_weight: float,
) -> Iterator[_Row]:  # fmt: skip
    """Rows whose columns lie apart: parts that ask twice, or are copied to all devices in part."""
    fine, tree = _ungrained(cluster), tree_of(cluster)
    copied: list[_Row] = []
    asked: list[_Row] = []
    for way in ways:
        terms = row_terms(way.band, table, basis, fine, cost)
        row = _Row.of(way, terms, table, tree, cost, sync_weight)
        (asked if tree.scopes[way.band.scope] else copied).append(row)
    yield from copied
    if asked:
        asking_s = np.min([row.asking_s for row in asked], axis=0)
        looking_s = cluster.work.lookup_s * basis[LOOKUPS]
        for row in asked:
            yield row._replace(links_s=row.links_s + asking_s, reading_s=row.reading_s + looking_s)
    if asked and copied:
        names = ("busy_s", "reading_s", "links_s")
        least = {name: np.min([getattr(row, name) for row in copied], axis=0) for name in names}
        for row in asked:
            yield row.narrower(1 - 1 / table.embedding_dim, copied[0]._replace(**least))


def least_of(
    profile: Profile, cluster: Cluster, options: PlanOptions, cost: CostOptions, sync_weight: float
) -> Least:
    """Everything that the bound of a problem needs."""
    wanted = options.constraints
    outputs_s = sum(outputs_work_s(stats, profile, cluster, cost) for stats in profile.stats)
    return Least(
        tuple(choice_of(s, profile, cluster, cost, wanted, sync_weight) for s in profile.stats),
        np.array([size for _, size in memories(cluster, options.reserved)]),
        least_fixed_s(profile, cluster, cost, sync_weight) - outputs_s,
        outputs_s,
        sync_weight * cost.dense_s * cluster.work.hidden,
        _scale(tree_of(cluster)),
    )


@dataclass(frozen=True, eq=False)
class Least:
    """The bound of a whole problem at any prices and weights."""

    choices: tuple[TableChoice, ...]
    capacity: Floats  # of each memory, for each device on average
    fixed_s: float  # that no plan avoids, but for what devices alone do
    outputs_s: float  # work of a device for what the model gets
    hidden_s: float  # of sync, beside the rest of the model
    scale: Floats

    def at(self, prices: Floats, weights: Weights) -> float:
        """Seconds that no plan beats."""
        tables = sum(choice.least_s(prices, weights, self.scale) for choice in self.choices)
        found = tables - float(prices @ self.capacity) + weights.devices * self.outputs_s
        return max(0.0, SAFETY * (found + self.fixed_s) - self.hidden_s)

    def best(self, prices: Floats) -> tuple[float, Weights]:
        """The best bound at these prices over weights: it is concave in them."""
        kinds = len(self.scale)
        if kinds == 1:
            only = Weights((1.0,))
            return self.at(prices, only), only
        tried = []
        for kind in range(1, kinds):
            low, high = 0.0, 1.0
            for _ in range(_THIRDS):
                a, b = low + (high - low) / 3, high - (high - low) / 3
                ways = [_two(x, kind, kinds) for x in (a, b)]
                found = [(self.at(prices, one), one) for one in ways]
                tried += found
                low, high = (a, high) if found[0][0] < found[1][0] else (low, b)
        tried.append((self.at(prices, one := _two(1.0, 1, kinds)), one))
        return max(tried, key=lambda pair: pair[0])


_THIRDS = 12  # the interval of weights is shortened by a third so often


def _two(devices: float, kind: int, kinds: int) -> Weights:
    """Weights of devices and of one kind of servers."""
    return Weights(tuple(devices if k == 0 else (1 - devices) * (k == kind) for k in range(kinds)))
