"""Why a table is cut where it is: what a row costs on both sides of a cut, and elsewhere.

A row of a hot home saves time and takes memory. At a cut that is right, the last row on the
hot side saves more per byte than memory is worth, and the first row on the cold side less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from rowtier.band import Band
from rowtier.cost.load import Load, total_load
from rowtier.cost.memory import pools
from rowtier.cost.terms import row_terms, sums_seconds, sums_work_seconds
from rowtier.cost.time import memory_time_s
from rowtier.cost.touch import LOOKUPS, basis_of, table_basis
from rowtier.cost.tree import tree_of
from rowtier.errors import UserError
from rowtier.evaluate.phrases import more_ms
from rowtier.evaluate.words import home
from rowtier.plan.joint.homes import homes_of
from rowtier.plan.plan import GIGA, Plan
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import TableStats
from rowtier.units import show_count

Run = tuple[Band, ...]  # bands that together keep all columns of some positions
_STEP = 1e-3  # share of a mass that a slope is measured over
_SHIFT = 0.01  # share of the rows beside a cut by which it is moved for a trial


@dataclass(frozen=True, eq=False)
class HomePart:
    """Positions with one kind of home; in several pieces where owners share them."""

    start: int
    stop: int
    home: str  # in words
    runs: tuple[Run, ...]
    lookups: float  # share of the table's
    kept_bytes: int  # all copies

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        pieces = len(self.runs)
        names = ("start", "stop", "home", "lookups", "kept_bytes")
        return {name: getattr(self, name) for name in names} | {"pieces": pieces}


@dataclass(frozen=True)
class Shift:
    """A cut moved by some rows: what that does to the step."""

    rows: int  # below zero: fewer rows in the hot home
    step_s: float  # that the step gets longer
    fits: bool


@dataclass(frozen=True)
class Edge:
    """A cut between two homes, seen from both sides.

    What the hot home saves of a step if devices are loaded alike, in seconds for each GB of
    memory that it takes more of on every device; or for each row, where it takes no more.
    `price`: what memory is worth. `shifts` are exact, with all that is uneven.
    """

    position: int
    hot: str
    cold: str
    tier: str | None  # whose memory the hot home takes more of
    last_hot: float
    first_cold: float
    price: float | None
    shifts: tuple[Shift, Shift]  # down and up

    @property
    def says(self) -> str:
        """The edge in words."""
        said = (
            f"{_saving(self.last_hot)} at the last hot row and would "
            f"{_saving(self.first_cold, 'save', 'cost')} at the first cold one"
        )
        if self.tier is None:
            said = f"the hot home takes no more memory; it {said}"
        else:
            said = f"a GB of {self.tier} {said}"
        if self.price is not None:
            said += f"; {self._worth(self.price)}"
        return f"{said}; {self._shifted()}"

    def _worth(self, worth: float) -> str:
        price = f"the price of {self.tier}, {_tiny(worth)} a GB"
        if not worth:
            return f"{self.tier} is not scarce, so its price is 0"
        if self.last_hot < worth:
            return f"both are below {price}: the rows fill memory that nothing else could use"
        if self.first_cold > worth:
            return f"both are above {price}: the memory of these rows' own holders is full"
        return f"{price}, lies between the two"

    def _shifted(self) -> str:
        ends = [more_ms(s.step_s) + ("" if s.fits else " (does not fit)") for s in self.shifts]
        rows = self.shifts[1].rows
        return (
            f"{show_count(rows)} row{'s' if rows > 1 else ''} fewer or more in the hot home: "
            f"{ends[0]} or {ends[1]} a step"
        )


@dataclass(frozen=True)
class Alternative:
    """Another home for a part of a table, and what that changes."""

    start: int
    stop: int
    home: str
    step_s: float  # that the step gets longer
    lacks_bytes: int  # on the fullest memory; 0 if it fits
    lacks_tier: str | None


@dataclass(frozen=True, eq=False)
class TableStory:
    """One table: its parts, the cuts between them, and the homes that were not chosen."""

    name: str
    parts: tuple[HomePart, ...]
    edges: tuple[Edge, ...]
    alternatives: tuple[Alternative, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        return {
            "name": self.name,
            "parts": [part.to_dict() for part in self.parts],
            "edges": [
                vars(edge) | {"says": edge.says, "shifts": [dict(vars(s)) for s in edge.shifts]}
                for edge in self.edges
            ],
            "alternatives": [dict(vars(other)) for other in self.alternatives],
        }


def tell_table(plan: Plan, name: str) -> TableStory:
    """Tell why the rows of a table are where they are."""
    trial = _Trial.of(plan, _stats(plan, name))
    parts = tuple(_parts(plan, trial.stats))
    edges = tuple(_edge(trial, hot, cold) for hot, cold in pairwise(parts))
    return TableStory(name, parts, edges, tuple(_alternatives(trial, parts)))


@dataclass(frozen=True, eq=False)
class _Trial:
    """A plan in which the bands of one table can be exchanged: all others cost what they did."""

    plan: Plan
    stats: TableStats
    rest: Load
    now_s: float
    idle: int  # the device whose memory has the least to do

    @classmethod
    def of(cls, plan: Plan, stats: TableStats) -> _Trial:
        profile, cluster = plan.profile, plan.cluster
        loads = {
            s.table.name: Load.of(s, plan.bands[s.table.name], profile, cluster)
            for s in plan.profile.stats
        }
        whole = total_load(loads.values())
        busy_s = memory_time_s(tree_of(cluster), whole.moved)[: cluster.num_devices]
        rest = whole - loads[stats.table.name]
        return cls(plan, stats, rest, float(whole.step_s(cluster)), int(busy_s.argmin()))

    def changed(self, bands: Iterable[Band]) -> tuple[float, int, str | None]:
        """How much longer a step gets with other bands, and what which memory lacks for rows."""
        plan = self.plan
        one = Load.of(self.stats, tuple(bands), plan.profile, plan.cluster)
        load = self.rest + one
        return float(load.step_s(plan.cluster)) - self.now_s, *_lacking(plan, load)

    def shifted(self, position: int, rows: int) -> Shift:
        """The cut at a position moved by some rows."""
        moved = {position: position + rows}
        bands = [
            band.model_copy(
                update={
                    "start": moved.get(band.start, band.start),
                    "stop": moved.get(band.stop, band.stop),
                }
            )
            for band in self.plan.bands[self.stats.table.name]
        ]
        bands = [band for band in bands if band.start < band.stop]
        more_s, lacks, _ = self.changed(bands)
        return Shift(rows, more_s, not lacks)


def _stats(plan: Plan, name: str) -> TableStats:
    names = [stats.table.name for stats in plan.profile.stats]
    if name not in names:
        from difflib import get_close_matches

        near = get_close_matches(name, names, n=3) or names[:5]
        raise UserError(f"the plan has no table {name!r}; there are {', '.join(near)} …")
    return plan.profile[name]


def _runs(bands: Sequence[Band]) -> Iterator[tuple[int, int, Run]]:
    """Positions between neighbouring edges of bands, and who keeps them."""
    for start, stop in pairwise(sorted({edge for b in bands for edge in (b.start, b.stop)})):
        here = [b for b in bands if b.start <= start and stop <= b.stop]
        yield start, stop, tuple(sorted(here, key=lambda band: band.columns or (0, 0)))


def _kind(run: Run) -> frozenset[tuple[object, ...]]:
    """What makes homes different but for who of the members it is."""
    return frozenset(
        (b.scope, b.tier, b.exchange, b.coalesced, b.staged, b.sync, b.members == "all", b.order)
        for b in run
    )


def _parts(plan: Plan, stats: TableStats) -> Iterator[HomePart]:
    told: list[list[tuple[int, int, Run]]] = []
    for entry in _runs(plan.bands[stats.table.name]):
        if told and _kind(told[-1][-1][2]) == _kind(entry[2]):
            told[-1].append(entry)
        else:
            told.append([entry])
    for group in told:
        start, stop = group[0][0], group[-1][1]
        said = home(group[0][2], plan.cluster)
        if len(group) > 1:
            said = f"{len(group)} pieces on different owners, the first: {said}"
        lookups = float(stats.curve.share(stop) - stats.curve.share(start))
        kept = sum(_kept_bytes(plan, stats, *entry) for entry in group)
        yield HomePart(start, stop, said, tuple(run for *_, run in group), lookups, kept)


def _kept_bytes(plan: Plan, stats: TableStats, start: int, stop: int, run: Run) -> int:
    copies = {b: plan.cluster.num_groups(plan.cluster.level_of(b.scope)) for b in run}
    table = stats.table
    return sum(
        copies[band] * (stop - start) * (width * table.item_bytes + table.state_bytes(width))
        for band in run
        for width in (band.width(table.embedding_dim),)
    )


def _edge(trial: _Trial, hot: HomePart, cold: HomePart) -> Edge:
    plan, stats, position = trial.plan, trial.stats, hot.stop
    basis = _basis_at(plan, stats, np.array([position - 1, position]))
    before, after = hot.runs[-1], cold.runs[0]
    slow_s = _row_seconds(plan, stats, after, cold, basis)
    saved = slow_s - _row_seconds(plan, stats, before, hot, basis)
    taken = _memory(plan, stats, before)
    for tier, amount in _memory(plan, stats, after).items():
        taken[tier] = taken.get(tier, 0.0) - amount
    scarce: str | None = max(taken, key=lambda name: taken[name])
    assert scarce is not None
    price = _memory_prices(plan).get(scarce)
    if taken[scarce] > 0:
        saved = saved / taken[scarce] * GIGA
    else:
        scarce = price = None
    rows = max(1, round(_SHIFT * min(_last_rows(before, position), _last_rows(after, position))))
    shifts = trial.shifted(position, -rows), trial.shifted(position, rows)
    last, first = saved.tolist()
    return Edge(position, hot.home, cold.home, scarce, last, first, price, shifts)


def _last_rows(run: Run, position: int) -> int:
    """Rows of a run's bands on its side of a cut."""
    return min(max(band.stop - position, position - band.start) for band in run) - 1


def _memory_prices(plan: Plan) -> dict[str, float]:
    certificate = plan.certificate
    if certificate is None or not certificate.times_a_step:
        return {}
    return {price.resource: price.saves for price in certificate.prices if price.unit == "GB"}


def _basis_at(plan: Plan, stats: TableStats, positions: Ints) -> Floats:
    """What the rows of some positions expect per step (`cost/touch.py`), a column each."""
    basis = table_basis(stats, plan.profile, tree_of(plan.cluster).sizes, rest=True)
    return basis[:, stats.curve.stops.searchsorted(positions, side="right")]


def _row_seconds(plan: Plan, stats: TableStats, run: Run, part: HomePart, basis: Floats) -> Floats:
    """A row's part of the step if it were kept by a run's bands, devices loaded alike."""
    table, seconds = stats.table, np.zeros(2)
    for band in run:
        terms = row_terms(band, table, basis, plan.cluster, plan.assumed)
        seconds += terms.step_s()
        if band.exchange == "sums":
            share = band.width(table.embedding_dim) / table.embedding_dim
            heat = basis[LOOKUPS] / max(plan.profile.lookups_per_step(stats), 1e-300)
            seconds += share * _sums_slope(plan, stats, band, part) * heat
    return seconds


def _sums_slope(plan: Plan, stats: TableStats, band: Band, part: HomePart) -> float:
    """Seconds of partial sums for each share of the lookups that comes to a band's owners."""
    level = plan.cluster.level_of(band.scope)
    owners = len(band.member_list(plan.cluster.group_size(level)))
    curve = stats.curve
    mass = float(curve.share(band.stop) - curve.share(band.start)) or part.lookups
    if not mass:
        return 0.0
    masses = np.array([mass * (1 - _STEP), mass]) / owners
    facts = (stats, plan.profile, plan.cluster, plan.assumed, masses)
    less, all_of_it = sums_seconds(*facts) + sums_work_seconds(*facts)
    return float(owners * (all_of_it - less) / (mass * _STEP))


def _memory(plan: Plan, stats: TableStats, run: Run) -> dict[str, float]:
    """Bytes that a row takes of each tier, for each device on average."""
    taken: dict[str, float] = {}
    never = basis_of(np.zeros(1), 0.0, tree_of(plan.cluster).sizes)
    for band in run:
        terms = row_terms(band, stats.table, never, plan.cluster)
        taken[band.tier] = taken.get(band.tier, 0.0) + terms.stored_bytes / terms.group_devices
    return taken


def _alternatives(trial: _Trial, parts: Sequence[HomePart]) -> Iterator[Alternative]:
    """Every other home of every part, the others left as they are; the cheapest first."""
    cluster, mine = trial.plan.cluster, trial.plan.bands[trial.stats.table.name]
    for part in parts:
        found = []
        for band in _other_homes(trial, part):
            more_s, lacks, tier = trial.changed((*_outside(mine, part), band))
            words = home((band,), cluster)
            found.append(Alternative(part.start, part.stop, words, more_s, lacks, tier))
        yield from sorted(found, key=lambda other: (other.lacks_bytes > 0, other.step_s))


def _other_homes(trial: _Trial, part: HomePart) -> Iterator[Band]:
    cluster, first, idle = trial.plan.cluster, part.runs[0][0], trial.idle
    own = first.members if first.members != "all" and len(first.members) == 1 else (idle,)
    for option in homes_of(cluster, "sums" in trial.stats.table.exchanges):
        band = option.placed(part.start, part.stop, first.offset)
        if band.exchange == "sums" and option.kind == 0:
            there = own if first.scope == cluster.top == band.scope else (idle,)
            size = cluster.group_size(option.level)
            band = band.model_copy(update={"members": (there[0] % size,)})
        elif option.level and not band.coalesced:
            continue  # no better than the same rows, each sent once
        if len(part.runs[0]) > 1 or _kind((band,)) != _kind(part.runs[0]):
            yield band


def _outside(bands: Sequence[Band], part: HomePart) -> Iterator[Band]:
    """The bands of a table without some positions."""
    for band in bands:
        if band.start < part.start:
            yield band.model_copy(update={"stop": min(band.stop, part.start)})
        if band.stop > part.stop:
            yield band.model_copy(update={"start": max(band.start, part.stop)})


def _lacking(plan: Plan, load: Load) -> tuple[int, str | None]:
    """The most that any memory would lack for the rows, and its tier."""
    columns = {name: column for column, name in enumerate(plan.cluster.tier_names)}
    worst: tuple[int, str | None] = (0, None)
    for pool in pools(plan.cluster):
        used = load.kept[list(pool.holders), columns[pool.tier]].sum()
        over = round(used) - pool.capacity_bytes
        worst = max(worst, (over, pool.tier), key=lambda pair: pair[0])
    return worst


def _saving(seconds: float, saves: str = "saves", costs: str = "costs") -> str:
    return f"{saves if seconds >= 0 else costs} {_tiny(abs(seconds))}"


def _tiny(seconds: float) -> str:
    """A duration of any size for people."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9)):
        if abs(seconds) * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns" if seconds else "nothing"
