"""Checkpoints: saved under one plan and number of ranks, loaded under any other.

Built on `torch.distributed.checkpoint`. A crash at any moment leaves the previous checkpoint
or the new one whole: see `saves.py`.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.tensor import DTensor

from rowtier.errors import MismatchError, RowtierError, UserError
from rowtier.files import StrPath
from rowtier.runtime import logical, saves
from rowtier.runtime.flat import flatten, restore
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
    save: Path = job.on_first(lambda: saves.begin(Path(folder)))
    try:
        _write(job, content, save)
    except RowtierError:
        if job.rank == 0:
            shutil.rmtree(save, ignore_errors=True)
        raise
    about = {"parts": list(parts), "tables": _tables_of(parts)}
    job.on_first(lambda: saves.finish(save, about, keep))
    return save


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
    save: Path = job.on_first(lambda: saves.current(Path(folder)))
    about = saves.about(save)
    saved = about["parts"]
    for name in parts:
        if name not in saved:
            raise MismatchError(
                f"{folder}: the checkpoint has no part {name!r}; it has {', '.join(saved)}: load "
                "those, or give the part the name it was saved under"
            )
    _check_vocabularies(folder, about.get("tables", {}), parts)
    rests = _read(job, dict.fromkeys(parts), save)
    tensors = _read(job, _room(save, parts), save)
    values = {}
    for name, part in parts.items():
        state = restore(name, rests[name], tensors)
        if _has_state(part):
            part.load_state_dict(state)
        else:
            values[name] = state
    return values


def _has_state(part: Any) -> bool:
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def _check_parts(parts: Mapping[str, Any]) -> None:
    if not parts:
        raise UserError("no parts: name what to save or load, such as model=model, step=step")
    for name in parts:
        if "." in name:
            raise UserError(f"part {name!r}: leave the dot out; names of tensors have dots inside")


def _tables_of(parts: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The saved names of all tables, for `rowtier export`."""
    found = {}
    for part, module in parts.items():
        inside = module.named_modules() if isinstance(module, torch.nn.Module) else ()
        for path, child in inside:
            if isinstance(child, ShardedEmbeddings):
                prefix = ".".join(filter(None, (part, path)))
                for name, table in logical.weight_names(child.engine).items():
                    about = {"name": name, "table": table.name, "pooling": table.pooling}
                    words = child.plan.vocabularies.get(table.name)
                    if words is not None:
                        about["vocabulary"] = words.fingerprint
                    found[f"{prefix}.{name}"] = about
    return found


def _check_vocabularies(
    folder: StrPath, saved: Mapping[str, Mapping[str, str]], parts: Mapping[str, Any]
) -> None:
    """Refuse rows that were trained for other ids."""
    for name, here in _tables_of(parts).items():
        before = saved.get(name, {}).get("vocabulary")
        if name in saved and before != here.get("vocabulary"):
            raise MismatchError(
                f"{folder}: table {here['table']!r} was trained with vocabulary {before} and the "
                f"plan has {here.get('vocabulary')}, so its rows stand for other ids: profile with "
                "--vocabulary and the folder of the plan that was trained, and plan from that"
            )


def _room(save: Path, parts: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Tensors to read into: a rank's rows of what it keeps by rows, all of anything else."""
    here: dict[str, torch.Tensor] = {}
    with logical.blank():
        for name, part in parts.items():
            if _has_state(part):
                here.update(flatten(name, part.state_dict()).tensors)
    room: dict[str, torch.Tensor] = {}
    for key, stored in dcp.FileSystemReader(save).read_metadata().state_dict_metadata.items():
        if key.partition(".")[0] not in parts or not hasattr(stored, "size"):
            continue
        mine = here.get(key)
        if isinstance(mine, DTensor):
            if mine.shape != stored.size:
                raise MismatchError(
                    f"{save}: {key} has shape {list(stored.size)} there and {list(mine.shape)} "
                    "here: plan for tables of the shape in the checkpoint and with the same "
                    "optimizer, or load only the parts that fit"
                )
            room[key] = mine
        else:
            # New memory, not the part's own: a read that fails leaves the part as it was.
            room[key] = torch.empty(stored.size, dtype=stored.properties.dtype)
    return room


def _write(job: _Job, content: dict[str, Any], save: Path) -> None:
    with _in_plain_words(f"{save}: cannot be written; the checkpoint before it is whole"):
        dcp.save(
            content,
            storage_writer=dcp.FileSystemWriter(save),
            planner=DefaultSavePlanner(flatten_state_dict=False),
            process_group=job.group,
            no_dist=job.size == 1,
        )


def _read(job: _Job, content: dict[str, Any], save: Path) -> dict[str, Any]:
    with _in_plain_words(f"{save}: cannot be read"):
        dcp.load(
            content,
            storage_reader=dcp.FileSystemReader(save),
            planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            process_group=job.group,
            no_dist=job.size == 1,
        )
    return content


@contextmanager
def _in_plain_words(what: str) -> Iterator[None]:
    with warnings.catch_warnings():
        # torch warns that one process saves alone, which is what was asked for.
        warnings.filterwarnings("ignore", message=".*torch.distributed is")
        try:
            yield
        except dcp.api.CheckpointException as error:
            rank, (cause, _) = next(iter(error.failures.items()))
            why = f"{type(cause).__name__}: {str(cause).strip().splitlines()[0]}"
            raise RowtierError(f"{what} (rank {rank}: {why})") from error


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

    def on_first(self, work: Callable[[], Any]) -> Any:
        """Do something on rank 0; all ranks get its result, or its error."""
        told: list[Any] = [None, None]
        if self.rank == 0:
            try:
                told[0] = work()
            except Exception as error:
                told[1] = error
        if self.size > 1:
            first = 0 if self.group is None else dist.get_global_rank(self.group, 0)
            dist.broadcast_object_list(told, first, self.group)
        if told[1] is not None:
            raise told[1]
        return told[0]
