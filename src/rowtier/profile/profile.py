"""The Profile: what the data does to each table, in a form that every plan rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import Mistake
from rowtier.fields import Count, Name
from rowtier.files import Noun, StrPath, fingerprint_of
from rowtier.profile.curve import Curve
from rowtier.tables import Table, Tables


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
    """The touched rows of a table and how often each was looked up, hottest first."""

    rows: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def from_dense(cls, counts: NDArray[np.integer]) -> RowCounts:
        """From one counter per row; ties go by row id, untouched rows are left out."""
        rows = np.flatnonzero(counts)
        touched = counts[rows].astype(np.int64)
        order = np.argsort(-touched, kind="stable")
        return cls(rows[order], touched[order])

    def mistakes(self, num_embeddings: int) -> Iterator[Mistake]:
        """What is wrong with the counts of a table with this many rows."""
        rows, counts = self.rows, self.counts
        if len(rows) != len(counts):
            yield Mistake("row", len(rows), "needs as many entries as count")
            return
        outside = rows[(rows < 0) | (rows >= num_embeddings)]
        if len(outside):
            yield Mistake("row", int(outside[0]), f"rows are 0 to {num_embeddings - 1}")
        ordered = np.sort(rows)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            yield Mistake("row", int(twice[0]), "stands twice; every touched row stands once")
        if (counts <= 0).any():
            yield Mistake("count", int(counts.min()), "must be at least 1; leave others out")
        falls = np.diff(counts)
        if (falls > 0).any() or ((falls == 0) & (np.diff(rows) < 0)).any():
            yield Mistake("count", None, "must be ordered hottest first, ties by row")


@dataclass(frozen=True, eq=False)
class TableStats:
    """One table and what the data does to it."""

    table: Table
    samples: int
    features: tuple[FeatureStats, ...]
    curve: Curve
    counts: RowCounts | None = None

    @classmethod
    def counted(
        cls, table: Table, samples: int, features: tuple[FeatureStats, ...], counts: RowCounts
    ) -> TableStats:
        """Statistics with known rows; the curve follows from the counts."""
        return cls(table, samples, features, Curve.from_counts(counts.counts), counts)

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
    def untouched(self) -> int:
        """Rows that the data never touched."""
        return self.table.num_embeddings - self.curve.touched

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
        if not shape and abs(self.curve.total - self.lookups) > 1e-6 * max(1, self.lookups):
            yield Mistake(
                "lookups",
                self.lookups,
                f"the features' lookups must add up to what the rows count, {self.curve.total:.0f}",
            )

    def facts(self) -> dict[str, Any]:
        """The statistics that are not arrays, as `profile.json` holds them."""
        return {
            "samples": self.samples,
            "features": [feature.to_data() for feature in self.features],
        }


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
        curves = tuple(TableStats(s.table, s.samples, s.features, s.curve) for s in self.stats)
        return Profile(self.batch_size, curves)

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of the content; equal content has equal fingerprints."""
        arrays: list[NDArray[Any]] = []
        for stats in self.stats:
            if stats.counts is not None:
                arrays += [stats.counts.rows, stats.counts.counts]
            else:
                arrays += [stats.curve.stops, stats.curve.lookups]
        facts = [self.form, self.tables.fingerprint, [stats.facts() for stats in self.stats]]
        return fingerprint_of(facts, *map(np.ascontiguousarray, arrays))

    def save(self, folder: StrPath) -> None:
        """Write a profile folder; an earlier profile there is replaced in one step."""
        from rowtier.profile.storage import save

        save(self, folder)

    @classmethod
    def load(cls, folder: StrPath) -> Profile:
        """Read and fully validate a profile folder."""
        from rowtier.profile.storage import load

        return load(folder)
