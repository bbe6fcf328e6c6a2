"""Another plan for live embeddings: rows go over the training wire to where it has them.

All ranks compare what they were given before anything changes; if one cannot go on, none does,
and the module is what it was. From the first round on, an error leaves rows in both plans, and
the module refuses to be used.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rowtier.errors import MismatchError, UserError
from rowtier.evaluate.diff import check_same_tables, diff
from rowtier.plan.plan import Plan
from rowtier.progress_bar import progress as progress_bar
from rowtier.runtime.agreement import Said, agree_on, plan_fields
from rowtier.runtime.engine import Engine
from rowtier.runtime.heat import told_by_all
from rowtier.runtime.move_rounds import rounds_of
from rowtier.runtime.row_gradient import Waiting
from rowtier.runtime.row_moves import kept_rows
from rowtier.runtime.rows_on_the_move import RowsOnTheMove, Travelled, release_rows
from rowtier.runtime.shared_remap import shared_remapper
from rowtier.runtime.store.world import World
from rowtier.units import parse_bytes, show_bytes

CALL = "migrate()"
LEAST_EXTRA_BYTES = 1 << 20


@dataclass(frozen=True)
class Migration:
    """What it took to get from one plan to another; all ranks have the same figures."""

    moved_bytes: int  # weights and state that holders got which did not have them
    within_bytes: int  # that changed the tier on their holder
    level_bytes: dict[str, int]  # moved through the links of each level
    sent_bytes: tuple[int, ...]  # by rank
    received_bytes: tuple[int, ...]
    within_by_rank: tuple[int, ...]
    header_bytes: int  # what messages have beside that
    seconds: float  # of the slowest rank
    predicted_s: float  # by `rowtier.diff`
    rounds: int
    extra_bytes: int  # at most, on any rank, of buffers beside rows

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        return dict(vars(self))


def migrate(
    engine: Engine,
    waiting: Waiting,
    plan: Plan,
    extra_memory: int | str,
    progress: Callable[[float], None] | None,
) -> Migration:
    """Have an engine keep its rows as another plan says; all ranks must call this."""
    with engine.inside(CALL):
        engine.drain()
        engine.begin(CALL)
        world, extra_bytes = _agreed(engine, waiting, plan, extra_memory)
        predicted_s = 0.0
        if world.rank == 0:  # it takes memory, so one rank is enough
            predicted_s = diff(engine.plan, plan, extra_bytes=extra_bytes).move_s
        began = time.perf_counter()
        before = _placed(engine, plan, world)
        rounds = rounds_of(before, engine, extra_bytes)
        moving = RowsOnTheMove(before, engine)
        with _or_unusable(engine), _shown(world, progress) as tell:
            for number, portions in enumerate(rounds):
                moving.run(portions)
                tell((number + 1) / len(rounds))
            moving.finish()
            _mark_changed(before, engine)
            engine.wire.barrier()
        engine.generation += 1
        engine.counters.begin_plan(world, engine.every_piece)
        seconds = time.perf_counter() - began
        found = _migration(engine, moving.travelled(), len(rounds), seconds, predicted_s)
        engine.counters.reset()
        return found


def _mark_changed(before: Engine, engine: Engine) -> None:
    """Have rows marked as changed by those who mark them under the new plan."""
    if engine.changes is None:
        return
    for table in engine.tables:
        rows, marks = before.changed_rows(table.name)
        told = told_by_all(engine.wire, np.concatenate((rows.view(np.uint8), marks)))
        for part in told:
            count = len(part) // (rows.itemsize + marks.itemsize)
            named = np.frombuffer(part[: count * rows.itemsize].tobytes(), dtype=rows.dtype)
            engine.mark_changed(table.name, named, part[count * rows.itemsize :])


def _agreed(
    engine: Engine, waiting: Waiting, plan: Plan, extra_memory: int | str
) -> tuple[World, int]:
    """Check what this rank was given, and that all were given the same."""
    what = "migrate"
    try:
        waiting.refuse(CALL)
        world, extra_bytes = _checked(engine, plan), _extra_bytes(extra_memory)
    except UserError as error:
        agree_on(engine.wire, Said(error=str(error)), what)
        raise
    fields = {**plan_fields(plan), "extra_memory": extra_bytes}
    agree_on(engine.wire, Said(fields), what)
    return world, extra_bytes


def _extra_bytes(extra_memory: int | str) -> int:
    found = parse_bytes(extra_memory) if isinstance(extra_memory, str) else int(extra_memory)
    if found < LEAST_EXTRA_BYTES:
        raise UserError(f"extra_memory {extra_memory!r}: give {show_bytes(LEAST_EXTRA_BYTES)}")
    return found


def _checked(engine: Engine, plan: Plan) -> World:
    """The ranks as the new plan sees them; refuses a plan that they cannot go on under."""
    if not isinstance(plan, Plan):
        raise UserError(f"migrate() takes a rowtier.Plan, and this is a {type(plan).__name__}")
    old = engine.plan
    check_same_tables(old, plan)
    for (was, _), (now, _) in zip(old, plan, strict=True):
        if was != now:
            raise MismatchError(
                f"the new plan has table {now.name!r} where the old one has {was.name!r}, or one "
                f"with other facts ({_difference(was, now)}): plan for the tables that are trained"
            )
    clusters = (old.cluster, plan.cluster)
    before, after = ([c.holder_name(h) for h in range(c.num_holders)] for c in clusters)
    if before != after:
        raise MismatchError(
            f"the new plan is for {len(after)} ranks ({plan.cluster.name!r}), and these embeddings "
            f"run on {len(before)} ({old.cluster.name!r}): rows move between the ranks that are "
            "there; another number of ranks goes through a checkpoint, save_checkpoint here and "
            "load_checkpoint in a job of that size"
        )
    return World.of(plan.cluster, engine.world.group, engine.options.local_world_size)


def _difference(was: Any, now: Any) -> str:
    facts = ((key, value, now.to_data().get(key)) for key, value in was.to_data().items())
    return ", ".join(f"{key} {a!r} and {b!r}" for key, a, b in facts if a != b) or "another order"


def _placed(engine: Engine, plan: Plan, world: World) -> Engine:
    """Make room for the new plan, on all ranks or on none; the engine as it was."""
    before = copy.copy(engine)
    remapper = shared_remapper(plan, engine.wire, engine.options.rows)
    said = Said({})
    failure: Exception | None = None
    try:
        engine.place(plan, world, remapper, lambda now: kept_rows(before, now))
    except (UserError, MemoryError) as error:
        failure, said = error, Said(error=str(error) or "not enough memory")
    try:
        agree_on(engine.wire, said, "make room for the new plan")
        if failure is not None:
            raise failure
    except BaseException:
        if failure is None:
            release_rows(engine, before)
        engine.go_back(before)
        raise
    return before


@contextmanager
def _or_unusable(engine: Engine) -> Iterator[None]:
    """From here on a failure leaves rows in both plans."""
    try:
        yield
    except BaseException as error:
        engine.failed = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
        raise


@contextmanager
def _shown(
    world: World, progress: Callable[[float], None] | None
) -> Iterator[Callable[[float], None]]:
    if progress is not None:
        yield progress
        return
    with progress_bar("moving rows", quiet=world.rank > 0, after_s=1.0) as bar:
        yield bar


def _migration(
    engine: Engine, own: Travelled, rounds: int, seconds: float, predicted_s: float
) -> Migration:
    """The figures of all ranks; all of them must call this."""
    size = engine.world.size
    levels = engine.counters.by_level(own.received)
    figures = [own.sent.sum(), own.received.sum(), own.within, own.headers, own.most, *levels]
    everyone = engine.wire.swap_fixed(np.tile(np.array(figures, dtype=np.int64), (size, 1)))
    times = engine.wire.swap_fixed(np.tile([seconds, predicted_s], (size, 1)))
    sent, received, within, headers, most = everyone[:, :5].T.tolist()
    names = [level.name for level in engine.plan.cluster.levels]
    return Migration(
        sum(received),
        sum(within),
        dict(zip(names, everyone[:, 5:].sum(axis=0).tolist(), strict=True)),
        tuple(sent),
        tuple(received),
        tuple(within),
        sum(headers),
        float(times[:, 0].max()),
        float(times[:, 1].max()),
        rounds,
        max(most),
    )
