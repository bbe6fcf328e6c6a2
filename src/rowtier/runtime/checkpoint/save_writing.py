"""A save on its way to the disk: written by each rank alone, made the current one by rank 0.

What is written was copied before, so that this may run behind training. Then nothing here uses a
process group, whose collectives training needs: ranks meet on the job's store (`RankBoard`).
"""

from __future__ import annotations

import base64
import os
import pickle
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch.distributed as dist

from rowtier.errors import RowtierError, UserError
from rowtier.runtime.checkpoint import saves
from rowtier.runtime.checkpoint.about import About, SavedFile, file_of
from rowtier.runtime.checkpoint.checksums import SummingStream
from rowtier.runtime.checkpoint.shards import METADATA, PlannedWrite
from rowtier.runtime.deltas.job import RankJob
from rowtier.runtime.deltas.strips import RowStrip, tensors_of
from rowtier.runtime.deltas.tensor_file import write_tensors
from rowtier.runtime.deltas.write import rows_file
from rowtier.runtime.exchange.board import Board

PATIENCE_S = 1800.0  # that ranks have to write what others wait for
LEAVING_S = 120.0  # the same once the interpreter ends
_LOOK_S = 0.02


class RankWrote(NamedTuple):
    """What a rank has to say when it has written."""

    results: list[Any]
    files: dict[str, SavedFile]
    error: Exception | None = None


class Meeting(Protocol):
    """How ranks learn of each other when they have written."""

    def all_wrote(self, mine: RankWrote) -> list[RankWrote]:
        """What every rank wrote, on rank 0; nothing on others."""
        ...

    def outcome(self, error: Exception | None) -> Exception | None:
        """How it ended, which rank 0 says."""
        ...


class GroupMeeting:
    """Collectives of the process group: while training waits."""

    def __init__(self, job: RankJob):
        self._job = job

    def all_wrote(self, mine: RankWrote) -> list[RankWrote]:
        """What every rank wrote, on rank 0."""
        return self._job.gathered(mine)

    def outcome(self, error: Exception | None) -> Exception | None:
        """How it ended."""
        told: Exception | None = self._job.on_first(lambda: error)
        return told


class BoardMeeting:
    """The job's store, which any thread may use: training goes on."""

    def __init__(self, job: RankJob, save: Path):
        self._job, self._save = job, save
        self._board = None if job.alone else Board.of(job.group or dist.group.WORLD)

    def all_wrote(self, mine: RankWrote) -> list[RankWrote]:
        """What every rank wrote, on rank 0."""
        if self._board is None:
            return [mine]
        if self._job.rank:
            self._board.say("wrote", self._job.rank, _packed(mine))
            return []
        others, began = range(1, self._job.size), time.monotonic()
        missing = list(others)
        while missing := self._board.silent("wrote", missing):
            if _is_too_long(began):
                raise UserError(
                    f"{self._save}: rank {', '.join(map(str, missing))} did not write its part in "
                    f"{time.monotonic() - began:.0f} s; the save before it is whole"
                )
            time.sleep(_LOOK_S)
        said = self._board.heard("wrote", others)
        for rank in others:
            self._board.take_down("wrote", rank)
        return [mine, *(_unpacked(said[rank]) for rank in others)]

    def outcome(self, error: Exception | None) -> Exception | None:
        """How it ended; if rank 0 has left, what is on the disk."""
        if self._board is None:
            return error
        if self._job.rank == 0:
            self._board.say("outcome", 0, _packed(error))
            return error
        began = time.monotonic()
        with suppress(RuntimeError):  # the store is gone
            while not _is_too_long(began):
                if not self._board.silent("outcome", [0]):
                    found: Exception | None = _unpacked(self._board.heard("outcome", [0])[0])
                    return found
                time.sleep(_LOOK_S)
        if self._save.name in saves.whole(self._save.parent):
            return None
        return UserError(f"{self._save}: rank 0 did not finish it; the save before it is whole")


@dataclass(eq=False)
class SaveWriting:
    """All that is left to do for a save: no other thread touches what is in here."""

    save: Path
    job: RankJob
    planned: PlannedWrite
    strips: list[RowStrip]
    about: About
    keep: int
    held: ExitStack  # the lock of the folder, on rank 0

    def run(self, meeting: Meeting) -> Exception | None:
        """Write, and have rank 0 make it the current save; what went wrong, if anything."""
        with self.held:
            error = None
            try:
                wrote = meeting.all_wrote(self._write())
                if self.job.rank == 0:
                    error = self._finish(wrote)
            except Exception as found:
                error = found
            if error is not None and self.job.rank == 0:
                saves.remove(self.save)
            try:
                return meeting.outcome(error)
            except Exception as found:
                return error or found

    def _write(self) -> RankWrote:
        try:
            results, files = self.planned.write()
            if self.strips:
                files[rows_file(self.job.rank)] = self._write_rows()
        except Exception as error:
            return RankWrote([], {}, error)
        finally:
            self.strips = []
        return RankWrote(results, files)

    def _write_rows(self) -> SavedFile:
        path = self.save / rows_file(self.job.rank)
        with path.open("wb", buffering=0) as file:
            stream = SummingStream(file)
            write_tensors(stream, list(tensors_of(self.strips)))
            (run,) = stream.runs()
            os.fsync(file.fileno())
        return file_of(run.stop, "rows", run.sums)

    def _finish(self, wrote: list[RankWrote]) -> Exception | None:
        for rank, entry in enumerate(wrote):
            if entry.error is not None:
                return self._in_words(rank, entry.error)
        files = {name: file for entry in wrote for name, file in entry.files.items()}
        files[METADATA] = self.planned.finish([entry.results for entry in wrote])
        saves.finish(self.save, self.about.model_copy(update={"files": files}), self.keep)
        return None

    def _in_words(self, rank: int, error: Exception) -> Exception:
        if isinstance(error, RowtierError):
            return error
        first = (str(error).strip().splitlines() or ["nothing more is known"])[0]
        return RowtierError(
            f"{self.save}: cannot be written; the checkpoint before it is whole (rank {rank}: "
            f"{type(error).__name__}: {first})"
        )


def _is_too_long(began: float) -> bool:
    """Whether others were waited for long enough; less if there is nothing else left to do."""
    limit_s = PATIENCE_S if threading.main_thread().is_alive() else min(PATIENCE_S, LEAVING_S)
    return time.monotonic() - began > limit_s


def _packed(value: Any) -> str:
    try:
        return base64.b64encode(pickle.dumps(value)).decode()
    except Exception:  # an error that holds what no pickle takes
        assert isinstance(value, RankWrote)
        told = RowtierError(f"{type(value.error).__name__}: {value.error}")
        return _packed(value._replace(error=told))


def _unpacked(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))
