"""Legs: the pieces a long profile is counted in, kept on disk until the whole is done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rowtier.errors import UserError
from rowtier.folders import PARTS, drop_parts
from rowtier.profile.profile import Profile
from rowtier.profile.storage import load
from rowtier.writing import hidden, real


@dataclass(frozen=True)
class RowRange:
    """The rows of every table that one pass counts: shard `index` of `count` equal ones."""

    index: int = 0
    count: int = 1

    def of(self, num_embeddings: int) -> tuple[int, int]:
        """First row, and the row after the last."""
        first = num_embeddings * self.index // self.count
        return first, num_embeddings * (self.index + 1) // self.count


@dataclass(frozen=True)
class Leg:
    """Parts `start` to `stop` of the data, counted for the rows of one shard."""

    start: int
    stop: int
    rows: RowRange = RowRange()

    @property
    def name(self) -> str:
        """Names the leg's folder."""
        return f"parts-{self.start}-{self.stop}-shard-{self.rows.index}-of-{self.rows.count}"


def by_parts(legs: list[Leg]) -> list[list[Leg]]:
    """Legs that count other rows of the same parts, together."""
    groups: dict[tuple[int, int], list[Leg]] = {}
    for leg in legs:
        groups.setdefault((leg.start, leg.stop), []).append(leg)
    return list(groups.values())


class FinishedLegs:
    """Profiles of the legs that are done: in memory, or in a hidden folder beside an output.

    The folder has one inside it for each job, so that no leg is ever taken for one of another.
    """

    def __init__(self, output: Path | None = None):
        self._output = None if output is None else real(output)
        self._folder = None if self._output is None else hidden(self._output, PARTS)
        self._job: Path | None = None
        self._profiles: dict[str, Profile] = {}

    def begin(self, job: str, resume: bool) -> None:
        """Start with what an interrupted run of the same job left, or with nothing."""
        if self._folder is None:
            return
        if not resume:
            self.clear()
        self._job = self._folder / job
        before = [path.name for path in self._folder.iterdir()] if self._folder.is_dir() else []
        if before and job not in before:
            raise UserError(
                f"{self._folder}: the interrupted run was job {before[0]} and this is {job}: the "
                "data, the tables or the options (--workers and --memory, too) differ; give the "
                "same, or run without --resume to start again"
            )

    def has(self, leg: Leg) -> bool:
        """Whether a leg is done."""
        if self._job is not None:
            return (self._job / leg.name).is_dir()
        return leg.name in self._profiles

    def keep(self, leg: Leg, profile: Profile) -> None:
        """Note a finished leg."""
        if self._job is None:
            self._profiles[leg.name] = profile
        else:
            profile.save(self._job / leg.name)

    def profiles(self, legs: list[Leg]) -> Iterator[Profile]:
        """The results of legs, one after the other."""
        for leg in legs:
            if self._job is None:
                yield self._profiles.pop(leg.name)
            else:
                yield load(self._job / leg.name, whole=False)

    def clear(self) -> None:
        """Forget everything."""
        self._profiles.clear()
        if self._output is not None:
            drop_parts(self._output)
