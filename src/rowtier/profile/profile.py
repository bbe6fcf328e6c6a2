"""The Profile: what the data does to each table, in a form that every plan rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import Mistake
from rowtier.fields import Count, Name
from rowtier.files import Noun, StrPath, fingerprint_of
from rowtier.profile.curve import Curve
from rowtier.profile.order import NarrowInts, narrow
from rowtier.tables import Table, Tables

if TYPE_CHECKING:
    from rowtier.profile.distinct import DistinctIds
    from rowtier.profile.vocabulary import Vocabulary


class FeatureStats(Noun):
    """How one feature reads its table. Integers, so that profiles merge exactly."""

    name: Name
    present: Count  # samples that have the feature
    lookups: Count  # ids in all samples together
    lengths: tuple[tuple[Count, Count], ...] = ()  # (ids in a sample, samples), if known

    @classmethod
    def cross_mistakes(cls, data: Mapping[str, Any]) -> Iterator[Mistake]:
        """The length distribution adds up to the totals."""
        try:
            pairs = [(int(length), int(samples)) for length, samples in data.get("lengths") or ()]
            present, lookups = int(data["present"]), int(data["lookups"])
        except (KeyError, TypeError, ValueError):
            return
        if lookups < present:
            yield Mistake("lookups", lookups, f"must be at least present, {present}")
        if pairs and sum(samples for _, samples in pairs) != present:
            yield Mistake("lengths", None, f"samples must add up to present, {present}")
        if pairs and sum(length * samples for length, samples in pairs) != lookups:
            yield Mistake("lengths", None, f"length × samples must add up to lookups, {lookups}")

    @property
    def pooling(self) -> float:
        """Lookups per sample that has the feature."""
        return self.lookups / self.present if self.present else 0.0


@dataclass(frozen=True, eq=False)
class RowCounts:
    """The touched rows of a table and how often each was looked up, hottest first.

    `late` counts those lookups that fell into the second half of the data: comparing the
    halves shows how far yesterday's hot rows are today's. All zero if the data has no order.
    Numbers take four bytes each where the largest of the array fits, else eight.
    """

    rows: NarrowInts
    counts: NarrowInts
    late: NarrowInts

    def __post_init__(self) -> None:
        """Narrow the arrays, so that equal numbers are equal bytes."""
        for name in ("rows", "counts", "late"):
            object.__setattr__(self, name, narrow(getattr(self, name)))

    @classmethod
    def from_dense(cls, counts: NDArray[np.integer]) -> RowCounts:
        """From one counter per row; ties go by row id, untouched rows are left out."""
        rows = np.flatnonzero(counts)
        touched = counts[rows].astype(np.int64)
        order = np.argsort(-touched, kind="stable")
        return cls(rows[order], touched[order], np.zeros_like(order))

    def mistakes(self, num_embeddings: int) -> Iterator[Mistake]:
        """What is wrong with the counts of a table with this many rows."""
        rows, counts = self.rows, self.counts
        assert len(rows) == len(counts) == len(self.late)
        outside = rows[(rows < 0) | (rows >= num_embeddings)]
        if len(outside):
            yield Mistake("row", int(outside[0]), f"rows are 0 to {num_embeddings - 1}")
        ordered = np.sort(rows)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            yield Mistake("row", int(twice[0]), "stands twice; every touched row stands once")
        if (counts <= 0).any():
            yield Mistake("count", int(counts.min()), "must be at least 1; leave others out")
        if (self.late < 0).any() or (self.late > counts).any():
            yield Mistake("late", None, "must be between zero and count")
        falls = np.diff(counts)
        if (falls > 0).any() or ((falls == 0) & (np.diff(rows) < 0)).any():
            yield Mistake("count", None, "must be ordered hottest first, ties by row")


@dataclass(frozen=True, eq=False)
class TableStats:
    """One table and what the data does to it."""

    table: Table
    samples: int
    features: tuple[FeatureStats, ...]
    bucketed: Curve | None = None  # where the rows are not known
    counts: RowCounts | None = None
    distinct: DistinctIds | None = None  # before hashing; None where ids are rows
    seen_rows: int | None = None  # touched rows, where `counts` does not say
    vocabulary: Vocabulary | None = None  # where ids become rows by one

    @classmethod
    def counted(
        cls,
        table: Table,
        samples: int,
        features: tuple[FeatureStats, ...],
        counts: RowCounts,
        distinct: DistinctIds | None = None,
    ) -> TableStats:
        """Statistics with known rows; the curve follows from the counts."""
        return cls(table, samples, features, counts=counts, distinct=distinct)

    @cached_property
    def curve(self) -> Curve:
        """How hot the rows of each rank are expected to be in data that is yet to come."""
        if self.bucketed is not None:
            return self.bucketed
        assert self.counts is not None
        return self.curve_at(None)

    def curve_at(self, confidence: float | None) -> Curve:
        """The curve, or with a confidence the one that hot rows fall short of so rarely."""
        if self.counts is None:
            return self.curve
        from rowtier.profile.coverage import smoothed_curve

        counts = self.counts
        late = counts.late if counts.late.any() else None
        return smoothed_curve(counts.counts, late, self.table.num_embeddings, confidence=confidence)

    @property
    def lookups(self) -> int:
        """Lookups of all features together."""
        return sum(feature.lookups for feature in self.features)

    @property
    def lookups_per_sample(self) -> float:
        """Coverage × pooling, added over the features."""
        return self.lookups / self.samples if self.samples else 0.0

    @property
    def coverage(self) -> float:
        """Share of samples that have the feature (the mean, if there are several)."""
        seen = sum(feature.present for feature in self.features)
        return seen / (self.samples * len(self.features)) if self.samples else 0.0

    @property
    def pooling(self) -> float:
        """Lookups per sample that has the feature."""
        seen = sum(feature.present for feature in self.features)
        return self.lookups / seen if seen else 0.0

    @property
    def touched(self) -> int:
        """Rows that the data touched."""
        if self.counts is not None:
            return len(self.counts.rows)
        return self.curve.ranks if self.seen_rows is None else self.seen_rows

    @property
    def untouched(self) -> int:
        """Rows that the data never touched."""
        return self.table.num_embeddings - self.touched

    def mistakes(self) -> Iterator[Mistake]:
        """What does not fit together."""
        wanted = list(self.table.features)
        found = [feature.name for feature in self.features]
        if found != wanted:
            yield Mistake("features", found, f"must be the table's features, {wanted}")
        for feature in self.features:
            if feature.present > self.samples:
                yield Mistake(
                    f"features.{feature.name}.present",
                    feature.present,
                    f"must not exceed samples, {self.samples}",
                )
        shape = list(
            self.counts.mistakes(self.table.num_embeddings)
            if self.counts is not None
            else self.curve.mistakes(self.table.num_embeddings)
        )
        yield from shape
        if shape:
            return
        counts = self.counts
        total = self.curve.total if counts is None else int(counts.counts.sum())
        slack = 1e-6 * max(1, self.lookups) if counts is None else 0
        if abs(total - self.lookups) > slack:
            yield Mistake(
                "lookups",
                self.lookups,
                f"the features' lookups must add up to what the rows count, {total:.0f}",
            )

    def facts(self) -> dict[str, Any]:
        """The statistics that are not arrays, as `profile.json` holds them."""
        facts: dict[str, Any] = {"samples": self.samples, "touched": self.touched}
        if self.distinct is not None:
            facts["distinct_ids"] = self.distinct.count
            facts["distinct_ids_exact"] = self.distinct.exact
        if self.vocabulary is not None:
            facts["vocabulary"] = self.vocabulary.fingerprint
        return facts | {"features": [feature.to_data() for feature in self.features]}


@dataclass(frozen=True, eq=False)
class Profile:
    """Statistics of every table, with the tables and the batch size they belong to.

    *Counted* profiles know the rows; *curve* profiles know only how hot the rows of
    each rank are, which is enough to plan but not to replay or to train.
    """

    batch_size: int
    stats: tuple[TableStats, ...]

    @property
    def form(self) -> Literal["counted", "curve"]:
        """Whether the rows are known."""
        return "counted" if all(s.counts is not None for s in self.stats) else "curve"

    @property
    def tables(self) -> Tables:
        """The tables and the batch size."""
        return Tables(batch_size=self.batch_size, tables=tuple(s.table for s in self.stats))

    def __getitem__(self, name: str) -> TableStats:
        for stats in self.stats:
            if stats.table.name == name:
                return stats
        raise KeyError(f"no table {name!r} in this profile")

    def lookups_per_step(self, stats: TableStats) -> float:
        """Lookups one device makes in one step (L)."""
        return self.batch_size * stats.lookups_per_sample

    def to_curve(self) -> Profile:
        """The same statistics without rows, small enough to travel inside a plan."""
        curves = tuple(
            TableStats(s.table, s.samples, s.features, s.curve, seen_rows=s.touched)
            for s in self.stats
        )
        return Profile(self.batch_size, curves)

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of the content; equal content has equal fingerprints."""
        arrays: list[NDArray[Any]] = []
        for stats in self.stats:
            if stats.counts is not None:
                arrays += [stats.counts.rows, stats.counts.counts, stats.counts.late]
            else:
                arrays += [stats.curve.stops, stats.curve.lookups]
            if stats.distinct is not None:
                arrays += [
                    a for a in (stats.distinct.hashes, stats.distinct.registers) if a is not None
                ]
        facts = [self.form, self.tables.fingerprint, [stats.facts() for stats in self.stats]]
        return fingerprint_of(facts, *map(np.ascontiguousarray, arrays))

    def for_planning(self, confidence: float | None) -> Profile:
        """The same statistics with curves at a confidence: hot rows serve at least so much."""
        if confidence is None or self.form == "curve":
            return self
        stats = tuple(replace(s, bucketed=s.curve_at(confidence)) for s in self.stats)
        return Profile(self.batch_size, stats)

    def merge(self, *others: Profile) -> Profile:
        """Add profiles of other parts of the data: exact, in any order and grouping."""
        from rowtier.profile.merge import merge_profiles

        return merge_profiles([self, *others])

    def to_torchrec_constraints(self, world_size: int) -> dict[str, Any]:
        """What TorchRec's planner asks for: pooling factors and cache statistics per table."""
        from rowtier.profile.to_torchrec import to_torchrec_constraints

        return to_torchrec_constraints(self, world_size)

    def save(self, folder: StrPath) -> None:
        """Write a profile folder; an earlier profile there is replaced in one step."""
        from rowtier.profile.storage import save

        save(self, folder)

    @classmethod
    def load(cls, folder: StrPath) -> Profile:
        """Read and fully validate a profile folder."""
        from rowtier.profile.storage import load

        return load(folder)
