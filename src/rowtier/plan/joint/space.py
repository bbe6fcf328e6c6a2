"""Placements of one table that a search tries, and what each asks of every holder.

Runs of ranks are *painted*: given to a way, over the bands that were there. What rows ask adds up
over runs, so the load of most placements is a sum of a few that were worked out; partial sums that
one owner sends for two runs are worked out together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.cost.bundling import bundle_key, pieces_run
from rowtier.cost.load import Load, chosen, side_by_side, stacked, total_load
from rowtier.cost.options import CostOptions
from rowtier.cost.tree import tree_of
from rowtier.plan.joint.owners import Way
from rowtier.profile.curve import Ints
from rowtier.profile.profile import Profile, TableStats
from rowtier.tables import Exchange

MOST_CUTS = 3  # places where a table is cut that may be moved
_MORE_CUTS = 7  # of a table: these, and places where its heat changes
_FEW_CUTS = 5  # the same where all placements are tried
MOST_TABLES = 2  # of which all placements are tried
_MOST_CHANGED = 6  # bands of a table that are tried in other ways on the same holders
_MOST_AT_ONCE = 40_000  # placements of a table that are tried whatever it has now

Coat = tuple[int, int, Way]  # a run of ranks, and what it is painted with
Painted = tuple[tuple[Band, ...], tuple[Coat, ...]]  # bands, and coats over them


@dataclass(frozen=True, eq=False)
class Placements:
    """Placements of one table, as bands that are painted over; loads side by side."""

    made: Callable[[int], Painted]  # each by its number
    loads: Load

    def bands(self, at: int) -> tuple[Band, ...]:
        """One of them."""
        return _covered(*self.made(at))


def together(parts: Sequence[Placements]) -> Placements:
    """All of several."""
    stops = np.cumsum([part.loads.work_s.shape[-1] for part in parts]).tolist()

    def made(at: int) -> Painted:
        part = bisect_right(stops, at)
        return parts[part].made(at - stops[part - 1] if part else at)

    return Placements(made, side_by_side([part.loads for part in parts]))


def _covered(bands: tuple[Band, ...], coats: tuple[Coat, ...]) -> tuple[Band, ...]:
    for coat in coats:
        bands = painted(bands, *coat)
    return bands


def painted(now: tuple[Band, ...], start: int, stop: int, way: Way) -> tuple[Band, ...]:
    """The same bands with a run of ranks given to a way; rank r is with the r-th member, again."""
    there = {"start": start, "stop": stop, "offset": start}
    return (*_outside(now, start, stop), *(band.model_copy(update=there) for band in way))


def _outside(now: tuple[Band, ...], start: int, stop: int) -> tuple[Band, ...]:
    left = [_run(band, band.start, min(band.stop, start)) for band in now if band.start < start]
    return (*left, *(_run(b, max(b.start, stop), b.stop) for b in now if b.stop > stop))


def _run(band: Band, start: int, stop: int) -> Band:
    return band.model_copy(update={"start": start, "stop": stop})


@dataclass(frozen=True, eq=False)
class TableSpace:
    """All that one table may try; loads of single bands are kept."""

    stats: TableStats
    ways: list[Way]
    exchanges: tuple[Exchange, ...]  # that are open to it
    profile: Profile
    cluster: Cluster
    cost: CostOptions
    spent: list[int]  # loads that were worked out, of all tables
    known: dict[tuple[Band, ...], Load] = field(default_factory=dict)
    known_runs: dict[tuple[int, int, bool], Load] = field(default_factory=dict)
    known_sums: dict[tuple[int, ...], Load] = field(default_factory=dict)  # of runs, by edges

    def load(self, bands: tuple[Band, ...]) -> Load:
        """What bands ask of every holder, but for the work that each band takes."""
        return chosen(self.loads([bands]), 0)

    def whole_load(self, bands: tuple[Band, ...]) -> Load:
        """The same with the work that each band takes."""
        found = self.load(bands)
        return replace(found, work_s=found.work_s + self._bands_s(bands))

    def loads(self, placements: Sequence[tuple[Band, ...]]) -> Load:
        """The same of several placements, side by side."""
        new = [bands for bands in dict.fromkeys(placements) if bands not in self.known]
        if new:
            found = self._worked_out(new)
            self.known.update((bands, chosen(found, at)) for at, bands in enumerate(new))
        return stacked([self.known[bands] for bands in placements])

    def _worked_out(self, placements: Sequence[tuple[Band, ...]]) -> Load:
        self.spent[0] += len(placements)
        found = Load.of_each(self.stats, placements, self.profile, self.cluster, self.cost)
        alone = ((self._runs_alone(bands), bands) for bands in placements)
        found.work_s[...] -= [
            self._pieces_s(bands) if is_alone else 0.0 for is_alone, bands in alone
        ]
        return found

    def placements(self, now: tuple[Band, ...]) -> Placements:
        """What it has, and every run between two cuts given to every way."""
        edges = self._edges(now)
        runs = list(combinations(edges, 2)) if self.ways else []
        rests = [_outside(now, *run) for run in runs]
        single: list[Painted] = [(now, ())]
        for run, rest in zip(runs, rests, strict=True):
            single += [(now, ((*run, way),)) for way in self.ways if _shares_sums(rest, way)]
        single += [(changed, ()) for changed in self._changed(now)]
        bands = [_covered(*one) for one in single]
        found = self.loads(bands)
        found.work_s[...] += [self._bands_s(each) for each in bands]
        parts = [Placements(single.__getitem__, found)]
        for run, rest, load in zip(runs, rests, self._beside_rest(rests), strict=True):
            inner = tuple(edge for edge in edges if run[0] <= edge <= run[1])
            found = load + self._alone(inner)
            self._add_twice(found, self._twice(rest))
            found.work_s[...] += self._joined_s(rest, *run)
            painted_here = [(now, ((*run, way),)) for way in self.ways]
            parts.append(Placements(painted_here.__getitem__, found))
        return together(parts)

    def _beside_rest(self, rests: list[tuple[Band, ...]]) -> Iterator[Load]:
        """What other rows ask for, beside what a table without rows does."""
        found = self.loads(rests) - stacked([self._nothing]) if rests else self._nothing
        return (chosen(found, np.array([at])) for at in range(len(rests)))

    def _joined_s(self, rest: tuple[Band, ...], start: int, stop: int) -> list[float]:
        """Work that bands take if a run is given to each way; those beside it may be joined."""
        beside = [b for b in rest if start in (b.stop, b.start) or stop in (b.start, b.stop)]
        alike, rest_s = {_kind(band) for band in beside}, self._bands_s(rest)
        if not alike:
            return [rest_s + way_s for way_s in self._ways_s]
        found = []
        for way, kinds, way_s in zip(self.ways, self._kinds, self._ways_s, strict=True):
            if not alike.isdisjoint(kinds):
                way_s = self._bands_s(tuple(band for band in way if _kind(band) not in alike))
            found.append(rest_s + way_s)
        return found

    @cached_property
    def _ways_s(self) -> list[float]:
        """Work that the bands of each way take."""
        return [self._bands_s(way) for way in self.ways]

    @cached_property
    def _kinds(self) -> list[list[tuple[object, ...]]]:
        return [[_kind(band) for band in way] for way in self.ways]

    def _changed(self, now: tuple[Band, ...]) -> Iterator[tuple[Band, ...]]:
        """One band sent in another way, or dealt out in another order, by the same holders."""
        for at, band in enumerate(now[:_MOST_CHANGED]):
            for other in self._sent_otherwise(band):
                if other != band:
                    yield (*now[:at], other, *now[at + 1 :])

    def _sent_otherwise(self, band: Band) -> Iterator[Band]:
        level, top = self.cluster.level_of(band.scope), len(self.cluster.levels)
        if level < top:
            yield band.model_copy(update={"sync": "sparse" if band.sync == "dense" else "dense"})
        if level:
            if band.order == "blocks" or self.profile.form == "counted":
                order = "blocks" if band.order == "spread" else "spread"
                yield band.model_copy(update={"order": order})
            ways = [("rows", False, False), ("rows", True, False)]
            ways += [("rows", True, True), ("sums", False, True)] * (level > 1)
            for exchange, coalesced, staged in [*ways, ("sums", False, False)]:
                if exchange in self.exchanges:
                    sent = {"exchange": exchange, "coalesced": coalesced, "staged": staged}
                    yield band.model_copy(update=sent)

    @cached_property
    def every(self) -> list[Placements]:
        """Every way for up to three runs, or for either half of the columns; none if too many."""
        cuts, parts = self._edges((), _FEW_CUTS), list[Placements]()
        if len(self.profile.stats) > MOST_TABLES:
            return parts
        if len(self.ways) ** 2 <= _MOST_AT_ONCE and self.stats.table.embedding_dim > 1:
            parts.append(self._halves())
        for count in range(2, 4):
            shapes = list(combinations(cuts[1:-1], count - 1))
            if shapes and len(shapes) * len(self.ways) ** count <= _MOST_AT_ONCE:
                parts += [self._products(cuts, [0, *inner, cuts[-1]]) for inner in shapes]
        return parts

    def _products(self, cuts: list[int], edges: list[int]) -> Placements:
        """Every way for every run between edges, no two neighbours alike.

        Of two that share sums the sum is priced where there are two runs, and left out of three.
        """
        runs, count = list(pairwise(edges)), len(edges) - 1
        grids = np.meshgrid(*[np.arange(len(self.ways))] * count, indexing="ij")
        picks = np.stack([np.ravel(grid) for grid in grids])
        shared = np.zeros(picks.shape[1], dtype=bool)
        for one, other in combinations(picks, 2):
            shared |= self._shared[one, other]
        kept = np.flatnonzero((picks[1:] != picks[:-1]).all(axis=0) & (~shared | (count == 2)))
        picks, shared = picks[:, kept], shared[kept]
        found = total_load(
            chosen(self._alone(tuple(cut for cut in cuts if run[0] <= cut <= run[1])), at)
            for run, at in zip(runs, picks, strict=True)
        )
        found = found - stacked([self._nothing * (count - 1.0)])
        by_sums = self._by_sums[picks]
        mixed: NDArray[np.bool_] = np.asarray(by_sums.any(axis=0) & ~by_sums.all(axis=0))
        self._add_twice(found, mixed)

        def made(at: int) -> Painted:
            return (), tuple(
                (*run, self.ways[i]) for run, i in zip(runs, picks[:, at], strict=True)
            )

        placements = Placements(made, found)
        again = np.flatnonzero(shared)
        if len(again):
            _put(found, again, self.loads([placements.bands(at) for at in again.tolist()]))
        found.work_s[...] += np.array(self._ways_s)[picks].sum(axis=0)
        return placements

    def _halves(self) -> Placements:
        """Every way for either half of the columns."""
        rows, dim = self.stats.table.num_embeddings, self.stats.table.embedding_dim
        single = [way[0] for way in self.ways if len(way) == 1]
        halves = [
            [band.model_copy(update={"columns": columns}) for band in single]
            for columns in ((0, dim // 2), (dim // 2, dim))
        ]
        loads = [self._worked_out([painted((), 0, rows, (b,)) for b in half]) for half in halves]
        left, right = (np.ravel(g) for g in np.indices((len(single), len(single))))
        found = chosen(loads[0], left) + chosen(loads[1], right) - stacked([self._nothing])
        by_sums = np.array([band.exchange == "sums" for band in single])
        self._add_twice(found, by_sums[left] != by_sums[right])
        found.work_s[...] += self._bands_s((single[0],) * 2)

        def made(at: int) -> Painted:
            return (), ((0, rows, (halves[0][left[at]], halves[1][right[at]])),)

        return Placements(made, found)

    @cached_property
    def _shared(self) -> NDArray[np.bool_]:
        """Ways × ways: whether one sum of an owner does for both."""
        return np.array([[_shares_sums(one, way) for way in self.ways] for one in self.ways])

    def _bands_s(self, bands: tuple[Band, ...]) -> float:
        """Work that bands take; of those that tables which run as one have together, a part."""
        alike = 1 if self._runs_alone(bands) else self._alike
        return self._pieces_s(bands) / alike

    def _pieces_s(self, bands: tuple[Band, ...]) -> float:
        pieces = pieces_run([(self.stats.table, bands)], tree_of(self.cluster))
        return pieces.work_s(self.cluster.work, self.cost.training)

    def _runs_alone(self, bands: tuple[Band, ...]) -> bool:
        return bundle_key(self.stats.table, bands, tree_of(self.cluster)) is None

    @cached_property
    def _alike(self) -> int:
        """Tables that may run as one with this."""
        tree = tree_of(self.cluster)
        mine = bundle_key(self.stats.table, (), tree)
        return sum(bundle_key(one.table, (), tree) == mine for one in self.profile.stats)

    def _twice(self, rest: tuple[Band, ...]) -> NDArray[np.bool_]:
        """Ways with which readers go through lookups for rows and for sums, but not without."""
        by_sums = {band.exchange == "sums" for band in rest}
        return self._by_sums if by_sums == {False} else ~self._by_sums & (by_sums == {True})

    def _add_twice(self, loads: Load, which: NDArray[np.bool_]) -> None:
        each_s = self.cluster.work.lookup_s * self.profile.lookups_per_step(self.stats)
        loads.work_s[: self.cluster.num_devices] += each_s * which

    def _alone(self, edges: tuple[int, ...]) -> Load:
        """Loads of a run in every way; rows add up over runs between neighbouring edges."""
        if edges not in self.known_sums:
            parts = [self._of_run(*run) for run in pairwise(edges)]
            added = total_load(parts) - stacked([self._nothing * (len(parts) - 1.0)])
            rows = np.flatnonzero(~self._by_sums)
            if len(rows) < len(self.ways) and len(parts) > 1:
                sums = self._of_run(edges[0], edges[-1], only_sums=True)
                order = np.argsort(np.concatenate([rows, self._sums]), kind="stable")
                added = chosen(side_by_side([chosen(added, rows), sums]), order)
            self.known_sums[edges] = added
        return self.known_sums[edges]

    def _of_run(self, start: int, stop: int, only_sums: bool = False) -> Load:
        """Loads of a run in every way, worked out together."""
        key = (start, stop, only_sums)
        if key not in self.known_runs:
            which = self._sums.tolist() if only_sums else range(len(self.ways))
            each = [painted((), start, stop, self.ways[at]) for at in which]
            self.known_runs[key] = self._worked_out(each)
        return self.known_runs[key]

    @cached_property
    def _by_sums(self) -> NDArray[np.bool_]:
        return np.array([way[0].exchange == "sums" for way in self.ways], dtype=bool)

    @cached_property
    def _sums(self) -> Ints:
        return np.flatnonzero(self._by_sums)

    @cached_property
    def _nothing(self) -> Load:
        """What a table asks for that has no rows: in every load once."""
        return self.load(())

    def _edges(self, now: tuple[Band, ...], most: int = _MORE_CUTS) -> list[int]:
        """Some of the places where it is cut now, and where its heat changes most evenly."""
        rows = self.stats.table.num_embeddings
        used = sorted({band.start for band in now} - {0})
        stops = [int(stop) for stop in self.stats.curve.stops if stop < rows and stop not in used]
        kept = _some(used, MOST_CUTS)
        return sorted({0, rows, *kept, *_some(stops, most - len(kept))})


def _put(loads: Load, at: Ints, load: Load) -> None:
    """Give some of stacked loads other values."""
    for name in ("kept", "moved", "work_s", "rounds"):
        getattr(loads, name)[..., at] = getattr(load, name)
    for name in ("ids", "forward", "sync"):
        old, new = getattr(loads, name), getattr(load, name)
        old.sent[..., at], old.received[..., at] = new.sent, new.received


def _some(places: list[int], most: int) -> list[int]:
    """At most so many of them, evenly."""
    if len(places) <= most:
        return places
    return [places[int(at)] for at in np.linspace(0, len(places) - 1, most + 2)[1:-1]]


def _kind(band: Band) -> tuple[object, ...]:
    """All that bands which can be joined have in common."""
    ways = (band.exchange, band.coalesced, band.staged, band.sync, band.order)
    return band.scope, band.members, band.columns, band.tier, *ways


def _shares_sums(rest: tuple[Band, ...], way: Way) -> bool:
    """Whether its owners send sums of other rows already: then one sum does for both."""

    def place(band: Band) -> tuple[object, ...]:
        return band.scope, band.members, band.columns

    owners = {place(band) for band in rest if band.exchange == "sums"}
    return way[0].exchange == "sums" and any(place(band) in owners for band in way)
