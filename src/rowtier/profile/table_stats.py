"""What the data does to one table: how its features read it, and how hot its rows are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import Mistake
from rowtier.fields import MOST_COUNT, Count, Name
from rowtier.files import Noun
from rowtier.profile.curve import Curve
from rowtier.profile.order import NarrowInts, narrow
from rowtier.tables import Table

if TYPE_CHECKING:
    from rowtier.profile.distinct import DistinctIds
    from rowtier.profile.drift import Drift
    from rowtier.profile.rarefaction import DistinctRows
    from rowtier.profile.slices import Slices
    from rowtier.profile.vocabulary import Vocabulary
    from rowtier.profile.windows import Windows


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

    `samples` says in how many samples each row was: fewer than lookups where samples look the
    same id up again. Without it, as many. Numbers take four bytes each where the largest of the
    array fits, else eight.
    """

    rows: NarrowInts
    counts: NarrowInts
    samples: NarrowInts = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Narrow the arrays, so that equal numbers are equal bytes, and equal arrays one."""
        for name in ("rows", "counts", "samples"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, narrow(getattr(self, name)))
        if self.samples is None or np.array_equal(self.samples, self.counts):
            object.__setattr__(self, "samples", self.counts)

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
        assert len(rows) == len(counts) == len(self.samples)
        outside = rows[(rows < 0) | (rows >= num_embeddings)]
        if len(outside):
            yield Mistake("row", int(outside[0]), f"rows are 0 to {num_embeddings - 1}")
        ordered = np.sort(rows)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            yield Mistake("row", int(twice[0]), "is there twice; every touched row is there once")
        if (counts <= 0).any():
            yield Mistake("count", int(counts.min()), "must be at least 1; leave others out")
        if float(counts.sum(dtype=np.float64)) > MOST_COUNT:
            yield Mistake("count", int(counts.max()), f"all counts add up to {MOST_COUNT} at most")
        if (self.samples <= 0).any() or (self.samples > counts).any():
            yield Mistake("samples", None, "must be at least 1 and not above count")
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
    distinct_ids: DistinctIds | None = None  # before hashing; None where ids are rows
    seen_rows: int | None = None  # touched rows, where `counts` does not say
    ladder: DistinctRows | None = None  # where the rows are not known
    held: int | None = None  # rows that samples hold, where `counts` does not say
    slices: Slices | None = None
    windows: Windows | None = None  # None where samples in between are missing
    horizon: float = 1.0  # how far ahead to look, in lengths of the data
    vocabulary: Vocabulary | None = None  # where ids become rows by one
    arranged: bool = False  # by positions in another order than that of heat: see arranged.py

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
        return cls(table, samples, features, counts=counts, distinct_ids=distinct)

    @cached_property
    def curve(self) -> Curve:
        """How hot the rows of each position are expected to be in data that is yet to come."""
        return self.curve_at(None) if self.bucketed is None else self.bucketed

    def curve_at(self, confidence: float | None) -> Curve:
        """The curve, or with a confidence the one that hot rows fall short of so rarely."""
        if self.counts is None:
            return self.curve
        from rowtier.profile.forecast import planning_curve

        return planning_curve(self, confidence)

    @property
    def drift(self) -> Drift | None:
        """What the time slices say about change; None where there are none.

        Made anew, since it keeps what it looks at, which is much.
        """
        from rowtier.profile.drift import Drift

        if self.slices is None:
            return None
        return Drift(self.slices, self.table.num_embeddings, self.horizon)

    @cached_property
    def distinct_rows(self) -> DistinctRows | None:
        """Distinct rows of batches to come; None where nobody counted samples: the curve tells."""
        if self.counts is None or self.slices is None or self.ladder is not None:
            return self.ladder
        from rowtier.profile.forecast import distinct_rows

        return distinct_rows(self)

    @property
    def rows_held(self) -> int:
        """Rows that samples hold, each once per sample: lookups without repeats."""
        if self.counts is not None:
            return int(self.counts.samples.sum())
        return self.lookups if self.held is None else self.held

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
        return self.curve.positions if self.seen_rows is None else self.seen_rows

    @property
    def untouched(self) -> int:
        """Rows that the data never touched."""
        return self.table.num_embeddings - self.touched

    def to_curve(self) -> TableStats:
        """The same statistics without rows."""
        return TableStats(
            self.table,
            self.samples,
            self.features,
            self.curve,
            seen_rows=self.touched,
            ladder=self.distinct_rows,
            held=self.rows_held,
            horizon=self.horizon,
            arranged=self.arranged,
        )

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
            else self.curve.mistakes(self.table.num_embeddings, falling=not self.arranged)
        )
        shape += self._mistakes_in_time()
        if self.touched > self.table.num_embeddings:
            most = f"the table has {self.table.num_embeddings} rows"
            shape.append(Mistake("touched", self.touched, most))
        if self.distinct_ids is not None:
            shape += self.distinct_ids.mistakes()
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
        if self.rows_held > self.lookups:
            yield Mistake("rows_held", self.rows_held, f"must not exceed lookups, {self.lookups}")

    def _mistakes_in_time(self) -> Iterator[Mistake]:
        rows = self.table.num_embeddings
        for part in (self.slices, self.windows):
            if part is not None:
                yield from part.mistakes(rows)
        # Windows count every lookup, and so do slices that keep all rows.
        if self.windows is not None and int(self.windows.bins.sum()) != self.lookups:
            yield Mistake("windows.lookups", None, f"must add up to lookups, {self.lookups}")
        whole = self.slices if self.slices is not None and not self.slices.thinning else None
        if whole is not None and int(whole.counts.sum(dtype=np.uint64)) != self.lookups:
            yield Mistake("slices", None, f"must add up to lookups, {self.lookups}")
        if self.ladder is not None:
            yield from self.ladder.mistakes()

    def arrays(self) -> Iterator[NDArray[Any]]:
        """What a fingerprint is made of, beside the facts."""
        if self.counts is not None:
            yield from (self.counts.rows, self.counts.counts, self.counts.samples)
        else:
            yield from self.curve.arrays()
            yield from () if self.ladder is None else self.ladder.arrays()
        for part in (self.slices, self.windows):
            if part is not None:
                yield from part.arrays()
        if self.distinct_ids is not None:
            found = (self.distinct_ids.hashes, self.distinct_ids.registers)
            yield from (array for array in found if array is not None)

    def facts(self) -> dict[str, Any]:
        """The statistics that are not arrays, as `profile.json` holds them."""
        facts: dict[str, Any] = {"samples": self.samples, "touched": self.touched}
        if self.rows_held != self.lookups:
            facts["rows_held"] = self.rows_held
        if self.arranged:
            facts["arranged"] = True
        if self.distinct_ids is not None:
            facts["distinct_ids"] = self.distinct_ids.count
            facts["distinct_ids_exact"] = self.distinct_ids.exact
        if self.vocabulary is not None:
            facts["vocabulary"] = self.vocabulary.fingerprint
        return facts | {"features": [feature.to_data() for feature in self.features]}
