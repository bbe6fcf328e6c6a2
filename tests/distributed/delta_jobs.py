"""Deltas and saves of what changed, written by the worker processes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from checkpoint_jobs import Training

import rowtier
from rowtier.runtime.checkpoint import row_parts, save_writing
from rowtier.runtime.checkpoint.save_writing import SaveWriting


def deltas_and_saves(
    rank: int, group: Any, plan: rowtier.Plan, folder: Path, wait: bool,
    other: rowtier.Plan | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A base, two deltas and saves of what changed between them; what they must lead to.

    With another plan rows move to it after the first delta, between two steps without one.
    """
    training = Training(plan, group, deltas=True)
    training.save(folder / "base")
    training.save(folder / "run")
    for number in (1, 2):
        training.run(1)
        if number == 2 and other is not None:
            training.model.embeddings.migrate(other)
            training.run(1)
        training.model.embeddings.delta(folder / f"delta-{number}", state=number == 2)
        with patch.object(row_parts, "MOST_CHANGED", 2.0):  # small tables change all over
            saved = training.save(folder / "run", delta_of=True, wait=wait)
        whole = {name: values.copy() for name, values in training.whole().items()}
    if wait:
        assert (saved / f"rows-{rank:05d}.safetensors").exists() or rank
    else:
        training.run(2)  # while the save is written
        saved = saved.wait()
    assert rank == training.rank
    return {"whole": whole, "save": saved}


def fail_behind_training(
    rank: int, group: Any, plan: rowtier.Plan, folder: Path, failing: int
) -> list[str]:
    """Errors of saves that one rank cannot write, seen by `wait` and by the next save."""
    training = Training(plan, group, deltas=True)
    training.save(folder)
    training.run(1)
    full = OSError(28, "No space left on device")
    said = []
    for attempt in range(2):
        with patch.object(SaveWriting, "_write_rows", _failing(full if rank == failing else None)):
            pending = training.save(folder, wait=False)
            while not pending.done:
                time.sleep(0.01)
        try:
            training.save(folder) if attempt else pending.wait()
        except rowtier.RowtierError as error:
            said.append(str(error))
    training.save(folder, delta_of=True)
    return said


def _failing(error: Exception | None) -> Any:
    original = SaveWriting._write_rows

    def write(writing: SaveWriting) -> Any:
        if error is not None:
            raise error
        return original(writing)

    return write


def carry_marks(rank: int, group: Any, plans: list[rowtier.Plan]) -> list[dict[str, Any]]:
    """Marks of a plan, gathered by row from all ranks and given to another plan."""
    import torch.distributed as dist

    engines = [Training(plan, group, deltas=True).model.embeddings.engine for plan in plans]
    for engine in engines:
        engine.changes.clear(255)
    drawn = np.random.default_rng(4)
    found: list[dict[str, Any]] = []
    for table in engines[0].tables:
        rows = np.flatnonzero(drawn.random(table.num_embeddings) < 0.3)
        marks = drawn.integers(1, 8, len(rows)).astype(np.uint8)
        engines[0].mark_changed(table.name, rows, marks)
        told: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(told, engines[0].changed_rows(table.name), group)
        for here in told:
            engines[1].mark_changed(table.name, *here)
        found.append({"rows": rows, "marks": marks, "here": engines[1].changed_rows(table.name)})
    assert rank == engines[0].world.rank
    return found


def without_an_outcome(rank: int, group: Any, plan: rowtier.Plan, folder: Path) -> str:
    """A save of which rank 0 never says how it ended: the others look at the disk."""
    training = Training(plan, group, deltas=True)
    with patch.object(save_writing, "PATIENCE_S", 2.0):
        if rank:
            return str(training.save(folder, wait=False).wait().name)
        with patch.object(save_writing.BoardMeeting, "outcome", lambda _, error: error):
            return str(training.save(folder, wait=False).wait().name)
