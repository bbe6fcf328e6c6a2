"""Tensors in files, by torch.distributed.checkpoint, with a checksum of every byte.

What a rank writes is summed on the way. What it reads is checked first, so nothing that changed
on the disk is used; torch tells all ranks of an error on one, so all raise it.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import Metadata

from rowtier.errors import RowtierError, UserError
from rowtier.runtime.checkpoint import checksums
from rowtier.runtime.checkpoint.about import About, SavedFile, SavedItem, file_of
from rowtier.runtime.checkpoint.checksums import WAY_OUT, SummedRun, SummingStream
from rowtier.runtime.checkpoint.dcp_metadata import parse_metadata
from rowtier.runtime.deltas.job import RankJob

METADATA = ".metadata"


class _SummingFiles(FileSystem):  # type: ignore[misc]
    """Files that are summed while they are written."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: dict[str, tuple[SummedRun, ...]] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Generator[Any, None, None]:
        """A file that is open for a block."""
        with super().create_stream(path, mode) as file:
            if "w" not in mode:
                yield file
                return
            stream = SummingStream(file)
            yield stream
            self.runs[Path(path).name] = stream.runs()


class SummingWriter(dcp.FileSystemWriter):  # type: ignore[misc]
    """Writes what torch's own does, and knows the checksums of this rank's files."""

    def __init__(self, save: Path):
        super().__init__(save)
        self.fs = _SummingFiles()
        self.files: dict[str, SavedFile] = {}

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write this rank's tensors."""
        written = super().write_data(plan, planner)
        items: dict[str, list[tuple[int, int, str]]] = {}
        for result in written.value():
            place = result.storage_data
            entry = (place.offset, place.offset + place.length, result.index.fqn)
            items.setdefault(place.relative_path, []).append(entry)
        for name, runs in self.fs.runs.items():
            if name.endswith(".distcp"):
                self.files[name] = _saved_file(self.path / name, runs, items.get(name, []))
        return written


def _saved_file(
    path: Path, runs: tuple[SummedRun, ...], items: list[tuple[int, int, str]]
) -> SavedFile:
    """The items of a file one after the other, with their checksums."""
    size = runs[-1].stop if runs else 0
    known, found, at = {(run.start, run.stop): run for run in runs}, [], 0
    for start, stop, name in [*sorted(items), (size, size, "")]:
        for first, last, what in ((at, start, ""), (start, stop, name)):
            if first < last:
                run = known.get((first, last))
                if run is None:  # torch asked elsewhere where it was
                    with path.open("rb") as file:
                        run = checksums.read_run(file, first, last)
                found.append(SavedItem(name=what, size_bytes=last - first, xxh3=run.sums))
        at = max(at, stop)
    return SavedFile(size_bytes=size, items=tuple(found))


class CheckedReader(dcp.FileSystemReader):  # type: ignore[misc]
    """Reads a save; nothing in it is believed before its checksum was compared."""

    def __init__(self, save: Path, about: About):
        super().__init__(save)
        self.save, self.about = save, about
        self._metadata: Metadata | None = None
        self._reading = save
        self._checked: set[tuple[str, int, int]] = set()

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002
        """Where tensors lie."""
        if self._metadata is None:
            path, files = self.save / METADATA, self.about.files
            try:
                raw = path.read_bytes()
            except OSError as error:
                raise UserError(
                    f"{path}: cannot be read ({error.strerror}), and says where everything in the "
                    f"save is; {WAY_OUT}"
                ) from None
            if files:
                self._check(METADATA, 0, len(raw))
            sizes = {name: file.size_bytes for name, file in files.items()}
            self._metadata = parse_metadata(path, raw, sizes if files else None)
        return self._metadata

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Read this rank's tensors; torch unpickles none but plain ones."""
        self._reading = self.save
        try:
            return super().read_data(plan, planner)
        except RowtierError:
            raise
        except Exception as error:  # a damaged file can fail in any way
            why = f"{type(error).__name__}: {_first_line(error)}"
            raise UserError(f"{self._reading}: cannot be read ({why}); {WAY_OUT}") from error

    def _slice_file(self, file: IO[bytes], sinfo: Any) -> Any:
        self._reading = self.save / sinfo.relative_path
        if self.about.files:
            self._check(sinfo.relative_path, sinfo.offset, sinfo.offset + sinfo.length)
        return super()._slice_file(file, sinfo)

    def _check(self, name: str, start: int, stop: int) -> None:
        """Compare a part of a file with what was saved, once."""
        if (name, start, stop) not in self._checked:
            self.about.check_file(self.save / name, start, stop)
            self._checked.add((name, start, stop))


def saved_metadata(save: Path) -> SavedFile:
    """The checksum of where tensors lie, once all ranks have written."""
    raw = (save / METADATA).read_bytes()
    run = checksums.read_run(io.BytesIO(raw), 0, len(raw))
    return file_of(len(raw), METADATA, run.sums)


class PlannedWrite:
    """What each rank will write of tensors and values; agreed by all before anyone writes."""

    def __init__(self, save: Path, content: dict[str, Any], job: RankJob):
        self._writer = SummingWriter(save)
        self._planner = DefaultSavePlanner(flatten_state_dict=False)
        self._metadata: Metadata | None = None
        local = job.on_all(lambda: self._local(content, is_first=job.rank == 0))
        plans = job.gathered(local)
        self._plan = self._planner.finish_plan(job.on_first(lambda: self._all(plans))[job.rank])

    def _local(self, content: dict[str, Any], *, is_first: bool) -> Any:
        self._planner.set_up_planner(content, self._writer.storage_meta(), is_first)
        self._writer.set_up_storage_writer(is_first)
        return self._writer.prepare_local_plan(self._planner.create_local_plan())

    def _all(self, plans: list[Any]) -> list[Any]:
        every, self._metadata = self._planner.create_global_plan(plans)
        return list(self._writer.prepare_global_plan(every))

    def write(self) -> tuple[list[Any], dict[str, SavedFile]]:
        """Write this rank's part; where things are in the files, and what those hold."""
        return list(self._writer.write_data(self._plan, self._planner).value()), self._writer.files

    def finish(self, results: list[list[Any]]) -> SavedFile:
        """Write where everything is, on rank 0, with the results of all."""
        assert self._metadata is not None
        self._writer.finish(self._metadata, results)
        return saved_metadata(self._writer.path)


def read(
    reader: CheckedReader, content: dict[str, Any], group: dist.ProcessGroup | None, alone: bool
) -> dict[str, Any]:
    """Fill tensors in place, and values; all ranks must call this."""
    with in_plain_words(f"{reader.save}: cannot be read"):
        dcp.load(
            content,
            storage_reader=reader,
            planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            process_group=group,
            no_dist=alone,
        )
    return content


@contextmanager
def in_plain_words(what: str) -> Iterator[None]:
    """Turn torch's report of what failed on which rank into an error for people."""
    with warnings.catch_warnings():
        # torch warns that one process saves alone, which is what was asked for.
        warnings.filterwarnings("ignore", message=".*torch.distributed is")
        try:
            yield
        except dcp.api.CheckpointException as error:
            raise _in_words(what, error.failures) from error


def _in_words(what: str, failures: Mapping[int, Any]) -> RowtierError:
    for cause, _ in failures.values():
        if isinstance(cause, RowtierError):
            return cause
    rank, (cause, _) = next(iter(failures.items()))
    why = f"{type(cause).__name__}: {_first_line(cause)}"
    return RowtierError(f"{what} (rank {rank}: {why})")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["nothing more is known"])[0]
