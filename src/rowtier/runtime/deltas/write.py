"""`embeddings.delta()`: all ranks write what changed into one folder."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from rowtier.errors import UserError
from rowtier.folders import replace_folder
from rowtier.reading import StrPath
from rowtier.runtime.deltas.delta import INDEX, DeltaIndex, DeltaTable, index_text
from rowtier.runtime.deltas.job import RankJob
from rowtier.runtime.deltas.strips import Labels, RowStrip, copy_strips, tensors_of
from rowtier.runtime.deltas.tensor_file import DTYPE_NAMES, write_tensors
from rowtier.runtime.engine import Engine
from rowtier.runtime.logical import state_names, weight_names
from rowtier.runtime.store.changes import DELTA, Changes
from rowtier.runtime.store.position import Position, new_name
from rowtier.tables import Table
from rowtier.writing import writing


def write_delta(engine: Engine, path: StrPath, *, state: bool) -> Path:
    """Write the rows that changed since the last delta; all ranks must call this."""
    changes = tracked(engine, "delta()")
    engine.wire.agree("delta()")
    engine.begin("delta()")
    world, target = engine.world, Path(path)
    job = RankJob(world.rank, world.size, world.group)
    labels = {
        table.name: {
            "weight": name,
            **({field: f"{name}.{field}" for field in state_names(engine, table)} if state else {}),
        }
        for name, table in weight_names(engine).items()
    }
    with ExitStack() as held:
        new = job.on_first(lambda: held.enter_context(replace_folder(target, INDEX)))
        for name in job.on_first(lambda: _full(engine)):
            rows = np.arange(engine.remapper.tables[name].table.num_embeddings)
            engine.mark_changed(name, rows, DELTA)
        strips = job.on_all(lambda: _write_rows(engine, new, job.rank, labels))
        counts = job.gathered(_counts(strips))
        position = job.on_first(lambda: _write_index(engine, new, changes, counts, state=state))
        job.on_first(held.close)
    changes.delta_is_written(position)
    if engine.growing is not None and engine.growing.lost is not None:
        engine.growing.lost.forget()
    return target


def _full(engine: Engine) -> list[str]:
    """Growing tables of which all rows are written, as too many ids went to name them."""
    lost = engine.growing.lost if engine.growing is not None else None
    return [] if lost is None else lost.full


def tracked(engine: Engine, call: str) -> Changes:
    """The marks of rows that changed; refused if there are none."""
    if engine.changes is None:
        raise UserError(
            f"{call}: nobody marked the rows that changed: make the module with "
            "ShardedEmbeddings(…, deltas=True)"
        )
    return engine.changes


def rows_file(rank: int) -> str:
    """The file of a rank."""
    return f"rows-{rank:05d}.safetensors"


def _write_rows(engine: Engine, folder: Path, rank: int, labels: Labels) -> list[RowStrip]:
    strips = copy_strips(engine, labels, DELTA)
    if strips:
        with writing(folder), (folder / rows_file(rank)).open("wb", buffering=0) as file:
            write_tensors(file, list(tensors_of(strips, lambda *rows: _names(engine, *rows))))
    return strips


def _names(engine: Engine, name: str, rows: Any) -> dict[str, Any]:
    growing = engine.growing
    return {} if growing is None or name not in growing.tables else growing.names_of(name, rows)


def _counts(strips: list[RowStrip]) -> dict[str, int]:
    """Rows by table; of those whose columns lie apart where the first is."""
    found: dict[str, int] = {}
    for strip in strips:
        if strip.piece.columns[0] == 0:
            name = strip.piece.table.name
            found[name] = found.get(name, 0) + strip.count
    return found


def _write_index(
    engine: Engine, folder: Path, changes: Changes, counts: list[dict[str, int]], *, state: bool
) -> Position:
    position = Position(new_name(), changes.sequence + 1)
    tables = {
        name: DeltaTable(
            table=table.name,
            shape=(table.num_embeddings, table.embedding_dim),
            dtype=DTYPE_NAMES[table.dtype],
            changed=(changed := sum(found.get(table.name, 0) for found in counts)),
            state=tuple(state_names(engine, table)) if state else (),
            **_ids(engine, table, changed),
        )
        for name, table in weight_names(engine).items()
    }
    index = DeltaIndex(
        name=position.name,
        sequence=position.sequence,
        follows=tuple(changes.follows),
        step=engine.step_number,
        tables=tables,
        files=tuple(sorted(path.name for path in folder.iterdir())),
    )
    (folder / INDEX).write_text(index_text(index), encoding="utf-8")
    return position


def _ids(engine: Engine, table: Table, changed: int) -> dict[str, Any]:
    """What is said of a table's ids."""
    growing, words = engine.growing, engine.plan.vocabularies.get(table.name)
    if growing is None or table.name not in growing.tables:
        return {} if words is None else {"vocabulary": words.fingerprint}
    grown = growing.tables[table.name].vocabulary
    kind = "string" if grown.strings else "int"
    whole = changed == table.num_embeddings  # then all ids that there are are in it
    gone = () if whole or growing.lost is None else growing.lost.ids(table.name)
    return {"id_kind": kind, "ids": grown.size, "removed_ids": gone}
