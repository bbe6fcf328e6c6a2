"""Checkpoints: saved under one plan and number of ranks, loaded under any other.

Built on `torch.distributed.checkpoint`. A crash at any moment leaves the previous checkpoint
or the new one whole: see `saves.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rowtier.errors import MismatchError, UserError
from rowtier.reading import StrPath
from rowtier.runtime import logical
from rowtier.runtime.checkpoint import saves, shards
from rowtier.runtime.checkpoint.about import About, SavedFile, SavedTable
from rowtier.runtime.checkpoint.flat import flatten, restore
from rowtier.runtime.checkpoint.shards import CheckedReader
from rowtier.runtime.module import ShardedEmbeddings


def save_checkpoint(
    folder: StrPath,
    *,
    keep: int = 1,
    process_group: dist.ProcessGroup | None = None,
    **parts: Any,
) -> Path:
    """Save models, optimizers, schedulers and plain values; all ranks must call this.

    A part with a `state_dict` is saved by that, any other as it is (rank 0's). Ranks write
    into one folder, which all of them must see. `keep` whole saves stay; returns the new one.

    >>> save_checkpoint("run/", model=model, rows=embeddings.optimizer, step=step)
    """
    if keep < 1:
        raise UserError(f"keep {keep}: at least 1 save must stay")
    _check_parts(parts)
    job = _Job.of(process_group)
    flats = {
        name: flatten(name, part.state_dict() if _has_state(part) else part)
        for name, part in parts.items()
    }
    content: dict[str, Any] = {name: flat.rest for name, flat in flats.items()}
    for flat in flats.values():
        content.update(flat.tensors)
    with ExitStack() as held:

        def begin() -> Path:
            held.enter_context(saves.only_writer(Path(folder)))
            return saves.begin(Path(folder))

        save: Path = job.on_first(begin)
        try:
            files = job.gathered(shards.write(save, content, job.group, job.alone))
        except Exception:
            if job.rank == 0:
                saves.remove(save)
            raise
        job.on_first(lambda: _finish(save, parts, files, keep))
    return save


def _finish(
    save: Path, parts: Mapping[str, Any], files: list[dict[str, SavedFile]], keep: int
) -> None:
    every = {name: file for rank in files for name, file in rank.items()}
    every[shards.METADATA] = shards.saved_metadata(save)
    saves.finish(save, About(parts=tuple(parts), tables=_tables_of(parts), files=every), keep)


def load_checkpoint(
    folder: StrPath, *, process_group: dist.ProcessGroup | None = None, **parts: Any
) -> dict[str, Any]:
    """Load the current save into the parts given; all ranks must call this.

    Parts that were saved and are not named are left alone. Returns the plain values that were
    asked for, by name: what is given for them here does not matter. `folder` may also be one
    save of a checkpoint. Checkpoints hold pickled values: load those you trust.

    >>> step = load_checkpoint("run/", model=model, rows=embeddings.optimizer, step=0)["step"]
    """
    _check_parts(parts)
    job = _Job.of(process_group)
    save, about = job.on_first(lambda: _current(Path(folder)))
    reader = CheckedReader(save, about)
    room = job.on_all(lambda: _room(folder, reader, parts))
    rests = shards.read(reader, dict.fromkeys(parts), job.group, job.alone)
    tensors = shards.read(reader, room, job.group, job.alone)
    values = {}
    for name, part in parts.items():
        state = restore(name, rests[name], tensors)
        if _has_state(part):
            part.load_state_dict(state)
        else:
            values[name] = state
    return values


def _current(folder: Path) -> tuple[Path, About]:
    save = saves.current(folder)
    about = saves.about(save)
    if not about.files:
        warnings.warn(
            f"{save}: was saved without checksums, so its bits cannot be checked; the next save "
            "has them",
            stacklevel=2,
        )
    return save, about


def _has_state(part: Any) -> bool:
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def _check_parts(parts: Mapping[str, Any]) -> None:
    if not parts:
        raise UserError("no parts: name what to save or load, such as model=model, step=step")
    for name in parts:
        if "." in name:
            raise UserError(f"part {name!r}: leave the dot out; names of tensors have dots inside")


def _tables_of(parts: Mapping[str, Any]) -> dict[str, SavedTable]:
    """The saved names of all tables, for `rowtier export`."""
    found = {}
    for part, module in parts.items():
        inside = module.named_modules() if isinstance(module, torch.nn.Module) else ()
        for path, child in inside:
            if isinstance(child, ShardedEmbeddings):
                prefix = ".".join(filter(None, (part, path)))
                for name, table in logical.weight_names(child.engine).items():
                    words = child.plan.vocabularies.get(table.name)
                    found[f"{prefix}.{name}"] = SavedTable(
                        name=name,
                        table=table.name,
                        pooling=table.pooling,
                        vocabulary=None if words is None else words.fingerprint,
                    )
    return found


def _check_vocabularies(
    folder: StrPath, saved: Mapping[str, SavedTable], parts: Mapping[str, Any]
) -> None:
    """Refuse rows that were trained for other ids."""
    for name, here in _tables_of(parts).items():
        before = saved[name].vocabulary if name in saved else here.vocabulary
        if before != here.vocabulary:
            raise MismatchError(
                f"{folder}: table {here.table!r} was trained with vocabulary {before} and the "
                f"plan has {here.vocabulary}, so its rows stand for other ids: profile with "
                "--vocabulary and the folder of the plan that was trained, and plan from that"
            )


def _room(
    folder: StrPath, reader: CheckedReader, parts: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Tensors to read into: a rank's rows of what it keeps by rows, all of anything else."""
    saved = reader.about.parts
    for name in parts:
        if name not in saved:
            raise MismatchError(
                f"{folder}: the checkpoint has no part {name!r}; it has {', '.join(saved)}: load "
                "those, or give the part the name it was saved under"
            )
    _check_vocabularies(folder, reader.about.tables, parts)
    here: dict[str, torch.Tensor] = {}
    with logical.blank():
        for name, part in parts.items():
            if _has_state(part):
                here.update(flatten(name, part.state_dict()).tensors)
    room: dict[str, torch.Tensor] = {}
    for key, stored in reader.read_metadata().state_dict_metadata.items():
        if key.partition(".")[0] not in parts or not hasattr(stored, "size"):
            continue
        mine = here.get(key)
        if isinstance(mine, DTensor):
            if mine.shape != stored.size:
                raise MismatchError(
                    f"{reader.save}: {key} has shape {list(stored.size)} there and "
                    f"{list(mine.shape)} here: plan for tables of the shape in the checkpoint and "
                    "with the same optimizer, or load only the parts that fit"
                )
            room[key] = mine
        else:
            # New memory, not the part's own: a read that fails leaves the part as it was.
            room[key] = torch.empty(stored.size, dtype=stored.properties.dtype)
    return room


@dataclass(frozen=True)
class _Job:
    """The ranks that save or load together."""

    rank: int
    size: int
    group: dist.ProcessGroup | None

    @classmethod
    def of(cls, group: dist.ProcessGroup | None) -> _Job:
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
