"""What is kept of an interrupted run: profiles of the legs that were finished."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rowtier.errors import UserError
from rowtier.folders import PARTS, drop_parts
from rowtier.profile.legs import Leg
from rowtier.profile.profile import Profile
from rowtier.profile.storage import load
from rowtier.writing import hidden, real


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
                yield load(Profile, self._job / leg.name, whole=False)

    def clear(self) -> None:
        """Forget everything."""
        self._profiles.clear()
        if self._output is not None:
            drop_parts(self._output)
