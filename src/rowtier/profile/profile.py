"""The Profile: what the data does to each table, in a form that every plan rests on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rowtier.errors import UserError
from rowtier.files import fingerprint_of
from rowtier.profile.table_stats import FeatureStats, RowCounts, TableStats
from rowtier.reading import StrPath
from rowtier.tables import Tables

if TYPE_CHECKING:
    from rowtier.profile.forecast import Amount, Share
    from rowtier.profile.rarefaction import Batches

__all__ = ["FeatureStats", "Profile", "RowCounts", "TableStats"]


@dataclass(frozen=True, eq=False)
class Profile:
    """Statistics of every table, with the tables and the batch size they belong to.

    *Counted* profiles know the rows; *curve* profiles know only how hot the rows of
    each position are, which is enough to plan but not to replay or to train.
    """

    batch_size: int
    stats: tuple[TableStats, ...]
    batches: Batches = "shuffled"  # or of neighbouring samples: what a step is expected to hold

    def __repr__(self) -> str:
        samples = max((s.samples for s in self.stats), default=0)
        return (
            f"<Profile: {len(self.stats)} tables ({self.form}), {samples:,} samples, batches of "
            f"{self.batch_size:,}>"
        )

    @property
    def horizon(self) -> float:
        """How far ahead forecasts look, in lengths of the data."""
        return self.stats[0].horizon if self.stats else 1.0

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
        return replace(self, stats=tuple(stats.to_curve() for stats in self.stats))

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of the content; equal content has equal fingerprints."""
        arrays = [array for stats in self.stats for array in stats.arrays()]
        facts: list[Any] = [self.form, self.tables.fingerprint]
        facts.append([stats.facts() for stats in self.stats])
        if self.horizon != 1:
            facts.append(self.horizon)
        if self.form == "curve" and self.batches != "shuffled":  # counts are counts
            facts.append(self.batches)
        return fingerprint_of(facts, *map(np.ascontiguousarray, arrays))

    def coverage(self, table: str, rows: int, *, confidence: float = 0.9) -> Share:
        """The share of lookups to come that the hottest `rows` rows of a table will take."""
        from rowtier.profile.forecast import coverage_of

        return coverage_of(self._stats(table), rows, confidence)

    def unseen(self, table: str, *, confidence: float = 0.9) -> Share:
        """The share of lookups to come on rows that were never looked up so far."""
        from rowtier.profile.forecast import unseen_of

        return unseen_of(self._stats(table), confidence)

    def distinct(
        self, table: str, samples: int, *, batches: Batches | None = None, confidence: float = 0.9
    ) -> Amount:
        """Distinct rows that a batch of so many samples will look up."""
        from rowtier.profile.forecast import distinct_of

        return distinct_of(self._stats(table), samples, batches or self.batches, confidence)

    def _stats(self, name: str) -> TableStats:
        for stats in self.stats:
            if stats.table.name == name:
                return stats
        known = ", ".join(stats.table.name for stats in self.stats[:8])
        raise UserError(f"no table {name!r} in this profile; there are {known}")

    def with_batches(self, batches: Batches) -> Profile:
        """The same statistics for batches that are shuffled, or of neighbouring samples."""
        from rowtier.profile.forecast import check_locality

        for stats in self.stats:
            check_locality(stats, batches)
        return replace(self, batches=batches)

    def for_planning(self, confidence: float | None) -> Profile:
        """The same statistics at a confidence: hot rows serve at least so much.

        And batches touch at most so many distinct rows.
        """
        if confidence is None or self.form == "curve":
            return self
        from rowtier.profile.forecast import cautious

        return replace(self, stats=tuple(cautious(s, confidence) for s in self.stats))

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
        from rowtier.folders import read_steadily
        from rowtier.profile.storage import load

        return read_steadily(folder, lambda path: load(cls, path))
