"""Checkpoints: saved under one plan and number of ranks, loaded under any other.

Built on `torch.distributed.checkpoint`. A crash at any moment leaves the previous checkpoint
or the new one whole: see `saves.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rowtier.errors import MismatchError, UserError
from rowtier.reading import StrPath
from rowtier.runtime import logical
from rowtier.runtime.checkpoint import saves, shards
from rowtier.runtime.checkpoint.about import About, FollowedSave, SavedTable
from rowtier.runtime.checkpoint.flat import restore
from rowtier.runtime.checkpoint.pending import PendingSave, finish_pending
from rowtier.runtime.checkpoint.row_chain import RowChain
from rowtier.runtime.checkpoint.row_parts import Apart, followed, has_state
from rowtier.runtime.checkpoint.save_writing import BoardMeeting, GroupMeeting, SaveWriting
from rowtier.runtime.checkpoint.shards import PlannedWrite
from rowtier.runtime.deltas.job import RankJob
from rowtier.runtime.engine import Engine
from rowtier.runtime.logical import state_names
from rowtier.runtime.module import ShardedEmbeddings
from rowtier.runtime.store.changes import SAVED, SavedAs
from rowtier.runtime.store.position import Position, new_name
from rowtier.tables import Table

_GROWS = "grows"


@overload
def save_checkpoint(
    folder: StrPath,
    *,
    keep: int = 1,
    delta_of: StrPath | bool = False,
    wait: Literal[True] = True,
    process_group: dist.ProcessGroup | None = None,
    **parts: Any,
) -> Path: ...


@overload
def save_checkpoint(
    folder: StrPath,
    *,
    keep: int = 1,
    delta_of: StrPath | bool = False,
    wait: Literal[False],
    process_group: dist.ProcessGroup | None = None,
    **parts: Any,
) -> PendingSave: ...


def save_checkpoint(
    folder: StrPath,
    *,
    keep: int = 1,
    delta_of: StrPath | bool = False,
    wait: bool = True,
    process_group: dist.ProcessGroup | None = None,
    **parts: Any,
) -> Path | PendingSave:
    """Save models, optimizers, schedulers and plain values; all ranks must call this.

    A part with a `state_dict` is saved by that, any other as it is (rank 0's). Ranks write
    into one folder, which all of them must see. `keep` whole saves stay; returns the new one.

    `delta_of=True`, or a save, writes of embeddings the rows that changed since the last save, and
    everything if that cannot be told, if most changed, or after 16 of them; the module must have
    been made with `deltas=True`. `wait=False` copies what is saved, writes it behind training and
    returns a `PendingSave` at once; the next save waits for it.

    >>> save_checkpoint("run/", model=model, rows=embeddings.optimizer, step=step)
    """
    if keep < 1:
        raise UserError(f"keep {keep}: at least 1 save must stay")
    _check_parts(parts)
    job = RankJob.of(process_group)
    job.on_all(finish_pending)
    by_rows, base = not wait, None
    apart = Apart.of(parts, blank=bool(delta_of) or by_rows)
    if delta_of:
        base = followed(Path(folder), delta_of, apart, job)
        by_rows = by_rows or base is not None
    if apart.lost or not apart.rows:  # someone copied tensors before they had values
        by_rows = False
    if not by_rows and (delta_of or not wait) and (apart.rows or apart.lost):
        apart, base = Apart.of(parts, blank=False), None
    with ExitStack() as held:
        made = _begin(job, held, Path(folder), parts, apart, keep, base, by_rows, copied=not wait)
    # No more than this is kept until somebody waits: what was copied goes when it is written.
    saved = SavedAs(made.save, str(made.about.weights), frozenset(apart.rows))
    then = partial(_is_whole, apart.engines, saved)
    if not wait:
        return PendingSave(made, BoardMeeting(job, made.save), then)
    error = made.run(GroupMeeting(job))
    if error is not None:
        raise error
    then()
    return made.save


def _begin(
    job: RankJob, held: ExitStack, folder: Path, parts: Mapping[str, Any], apart: Apart, keep: int,
    base: tuple[FollowedSave, int] | None, by_rows: bool, *, copied: bool,
) -> SaveWriting:  # fmt: skip
    """Copy what is saved, and agree on who writes what."""

    def begin() -> tuple[Path, str]:
        held.enter_context(saves.only_writer(folder))
        return saves.begin(folder), new_name()

    save, name = job.on_first(begin)
    try:
        strips = []
        if by_rows:
            strips = job.on_all(lambda: apart.copy(None if base is None else SAVED))
        for engine in apart.engines:
            if engine.changes is not None:
                engine.changes.save_begins(name)
                if engine.growing is not None and engine.growing.lost is not None:
                    engine.growing.lost.is_written()
        content: dict[str, Any] = {part: flat.rest for part, flat in apart.flats.items()}
        for flat in apart.flats.values():
            for key, tensor in flat.tensors.items():
                if key not in apart.rows:
                    content[key] = _copy(tensor) if copied else tensor
                elif not by_rows:
                    content[key] = tensor
        planned = PlannedWrite(save, content, job)
    except Exception:
        if job.rank == 0:
            saves.remove(save)
        raise
    about = About(
        parts=tuple(parts),
        tables=_tables_of(parts, name),
        weights=name,
        rows=apart.saved_rows() if by_rows else {},
        follows=None if base is None else base[0],
        chain=0 if base is None else base[1],
    )
    return SaveWriting(save, job, planned, strips, about, keep, held.pop_all())


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone() if isinstance(tensor, DTensor) else tensor.to("cpu", copy=True)


def _is_whole(engines: Iterable[Engine], saved: SavedAs) -> None:
    """Have rows marked from now on that differ from a save."""
    for engine in engines:
        if engine.changes is not None:
            engine.changes.save_is_whole(saved)


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
    job = RankJob.of(process_group)
    job.on_all(finish_pending)
    chain = RowChain(job.on_first(lambda: _current(Path(folder))))
    here, room = job.on_all(lambda: _room(folder, chain, parts))
    rests = shards.read(chain.reader, dict.fromkeys(parts), job.group, job.alone)
    chain.read(room, job.group, job.alone)
    job.on_all(lambda: chain.put_rows(room))
    values = {}
    for name, part in parts.items():
        state = restore(name, rests[name], room)
        if has_state(part):
            part.load_state_dict(state)
        else:
            values[name] = state
    _stands_at(chain, here, room.keys())
    return values


def _stands_at(chain: RowChain, here: Apart, loaded: Iterable[str]) -> None:
    """Have rows marked that change after they were loaded, where all of them were."""
    keys = frozenset(here.rows.keys() & set(loaded))
    for engine in here.engines:
        labels = here.labels(engine)
        wanted = {(t.name, f) for t in engine.tables for f in ("weight", *state_names(engine, t))}
        found = {(t, f) for t, fields in labels.items() for f, key in fields.items() if key in keys}
        weight = labels.get(engine.tables[0].name, {}).get("weight", "")
        position = chain.about.tables[weight].position if weight in chain.about.tables else None
        if engine.changes is not None and position is not None and wanted <= found:
            saved = SavedAs(chain.save, str(chain.about.weights), keys)
            engine.changes.stands_at(Position.of(position), saved)


def _current(folder: Path) -> list[tuple[Path, About]]:
    links = saves.chain(saves.current(folder))
    save, about = links[-1]
    if not about.files:
        warnings.warn(
            f"{save}: was saved without checksums, so its bits cannot be checked; the next save "
            "has them",
            stacklevel=2,
        )
    return links


def _check_parts(parts: Mapping[str, Any]) -> None:
    if not parts:
        raise UserError("no parts: name what to save or load, such as model=model, step=step")
    for name in parts:
        if "." in name:
            raise UserError(f"part {name!r}: leave the dot out; names of tensors have dots inside")


def _tables_of(parts: Mapping[str, Any], weights: str = "") -> dict[str, SavedTable]:
    """The saved names of all tables, for `rowtier export`."""
    found = {}
    for part, module in parts.items():
        inside = module.named_modules() if isinstance(module, torch.nn.Module) else ()
        for path, child in inside:
            if isinstance(child, ShardedEmbeddings):
                prefix = ".".join(filter(None, (part, path)))
                changes = child.engine.changes
                position = Position(weights, 0 if changes is None else changes.sequence)
                for name, table in logical.weight_names(child.engine).items():
                    found[f"{prefix}.{name}"] = SavedTable(
                        name=name,
                        table=table.name,
                        pooling=table.pooling,
                        vocabulary=_vocabulary_of(child, table),
                        position=str(position) if weights else None,
                    )
    return found


def _vocabulary_of(module: ShardedEmbeddings, table: Table) -> str | None:
    """What says whether rows stand for the same ids; a vocabulary that grows is saved itself."""
    growing, words = module.engine.growing, module.plan.vocabularies.get(table.name)
    if table.grows:
        assert growing is not None
        return f"{_GROWS} ({', '.join(growing.state_names(table.name))})"
    return None if words is None else words.fingerprint


def _check_vocabularies(
    folder: StrPath, saved: Mapping[str, SavedTable], parts: Mapping[str, Any]
) -> None:
    """Refuse rows that were trained for other ids."""
    for name, here in _tables_of(parts).items():
        before = saved[name].vocabulary if name in saved else here.vocabulary
        if before != here.vocabulary and _GROWS in f"{before} {here.vocabulary}":
            raise MismatchError(
                f"{folder}: table {here.table!r} was saved with vocabulary {before} and the plan "
                f"has {here.vocabulary}: a growing table goes on with the same kind of ids, evict "
                "and admit_after; plan with those that were trained"
            )
        if before != here.vocabulary:
            raise MismatchError(
                f"{folder}: table {here.table!r} was trained with vocabulary {before} and the "
                f"plan has {here.vocabulary}, so its rows stand for other ids: profile with "
                "--vocabulary and the folder of the plan that was trained, and plan from that"
            )


def _room(
    folder: StrPath, chain: RowChain, parts: Mapping[str, Any]
) -> tuple[Apart, dict[str, torch.Tensor]]:
    """Tensors to read into: a rank's rows of what it keeps by rows, all of anything else."""
    saved = chain.about.parts
    for name in parts:
        if name not in saved:
            raise MismatchError(
                f"{folder}: the checkpoint has no part {name!r}; it has {', '.join(saved)}: load "
                "those, or give the part the name it was saved under"
            )
    _check_vocabularies(folder, chain.about.tables, parts)
    stated = {name: part for name, part in parts.items() if has_state(part)}
    apart = Apart.of(stated, blank=True, loads=True)
    here = {key: tensor for flat in apart.flats.values() for key, tensor in flat.tensors.items()}
    room: dict[str, torch.Tensor] = {}
    for key in chain.names():
        if key.partition(".")[0] not in parts:
            continue
        mine, stored = here.get(key), chain.form(key)
        if isinstance(mine, DTensor):
            if mine.shape != stored.shape:
                raise MismatchError(
                    f"{chain.save}: {key} has shape {list(stored.shape)} there and "
                    f"{list(mine.shape)} here: plan for tables of the shape in the checkpoint and "
                    "with the same optimizer, or load only the parts that fit"
                )
            room[key] = mine
        else:
            # New memory, not the part's own: a read that fails leaves the part as it was.
            room[key] = torch.empty(stored.shape, dtype=stored.dtype)
    return apart, room
