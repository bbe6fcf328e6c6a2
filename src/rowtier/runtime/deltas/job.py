"""Ranks that read or write files together: what one does for all, and errors that all see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist


@dataclass(frozen=True)
class RankJob:
    """The ranks that read or write files together."""

    rank: int
    size: int
    group: dist.ProcessGroup | None

    @classmethod
    def of(cls, group: dist.ProcessGroup | None) -> RankJob:
        """The ranks of a group, or of the whole job; alone without one."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls(0, 1, None)
        return cls(dist.get_rank(group), dist.get_world_size(group), group)

    @property
    def alone(self) -> bool:
        """Whether there is nobody to talk to."""
        return self.size == 1

    def gathered(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order; for rank 0 only."""
        if self.alone:
            return [value]
        found = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, found, self._first, self.group)
        return found or []

    def on_all(self, work: Callable[[], Any]) -> Any:
        """Do something on every rank; if it fails on any, all get the error of the first."""
        found, failure = None, None
        try:
            found = work()
        except Exception as error:
            failure = error
        failures = [failure]
        if not self.alone:
            failures = [None] * self.size
            dist.all_gather_object(failures, failure, self.group)
        for theirs in failures:
            if theirs is not None:
                raise failure or theirs
        return found

    @property
    def _first(self) -> int:
        return 0 if self.group is None else dist.get_global_rank(self.group, 0)

    def on_first(self, work: Callable[[], Any]) -> Any:
        """Do something on rank 0; all ranks get its result, or its error."""
        told: list[Any] = [None, None]
        if self.rank == 0:
            try:
                told[0] = work()
            except Exception as error:
                told[1] = error
        if not self.alone:
            dist.broadcast_object_list(told, self._first, self.group)
        if told[1] is not None:
            raise told[1]
        return told[0]

    def on_first_of(self, mine: Any, work: Callable[[list[Any]], Any]) -> Any:
        """Have rank 0 make something of the values of all; all ranks get it."""
        told = self.gathered(mine)
        return self.on_first(lambda: work(told))
