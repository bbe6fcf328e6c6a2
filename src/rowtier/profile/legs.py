"""Legs: the pieces a long profile is counted in, kept on disk until the whole is done."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rowtier.errors import UserError
from rowtier.files import dump_json, read_mapping, write_atomic
from rowtier.profile.profile import Profile
from rowtier.profile.storage import load

MANIFEST = "job.json"


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
    """Profiles of the legs that are done: in memory, or in a folder if one is given."""

    def __init__(self, folder: Path | None = None):
        self._folder = folder
        self._profiles: dict[str, Profile] = {}

    @classmethod
    def beside(cls, output: Path) -> FinishedLegs:
        """In a hidden folder beside the output, so that they are on the same disk."""
        return cls(output.parent / f".{output.name}.partial")

    def begin(self, job: str, resume: bool) -> None:
        """Start with what an interrupted run of the same job left, or with nothing."""
        if self._folder is None:
            return
        if not resume:
            self.clear()
        elif self._folder.exists():
            before = read_mapping(self._folder / MANIFEST).get("job")
            if before != job:
                raise UserError(
                    f"{self._folder}: the interrupted run was job {before} and this is {job}: the "
                    "data, the tables or the options differ; run without --resume to start again"
                )

    def has(self, leg: Leg) -> bool:
        """Whether a leg is done."""
        if self._folder is not None:
            return (self._folder / leg.name).is_dir()
        return leg.name in self._profiles

    def keep(self, leg: Leg, profile: Profile, job: str) -> None:
        """Note a finished leg."""
        if self._folder is None:
            self._profiles[leg.name] = profile
            return
        write_atomic(self._folder / MANIFEST, dump_json({"job": job}))
        profile.save(self._folder / leg.name)

    def profiles(self, legs: list[Leg]) -> Iterator[Profile]:
        """The results of legs, one after the other."""
        for leg in legs:
            if self._folder is None:
                yield self._profiles.pop(leg.name)
            else:
                yield load(self._folder / leg.name, whole=False)

    def clear(self) -> None:
        """Forget everything."""
        self._profiles.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
