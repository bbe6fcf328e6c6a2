"""A first plan that is kept, an Autopilot, and plans that change for free.

Two ranks on RAM and a disk train data in time order, of which the first fifth was profiled:

    drift        `synth drift`: one table whose hot rows change while the data goes by
    rentals      11 tables of a shop that rents clothes
    diginetica   sessions in a shop

RAM has room for a fifth of the rows, and a buffer for the pages of one step: a larger one would be
RAM by another name. A check is made six times, but not before 500 steps, 32 of which are counted.
Three contenders train the same batches in turns of ten steps in the same processes: one keeps the
first plan; one has an Autopilot, whose counting, moving and waiting for a plan is part of its time;
the oracle is replanned at every check from all that was looked up since the one before, and neither
planning nor moving is part of its time. Figures are steps per second over the whole run, as ratios.
A busy machine stops single turns for seconds, so `settled_…` has the same with what a run takes
added up from the medians of every twenty turns, and all that the Autopilot's calls took.

The Autopilot's process plans beside all three, at low priority, so what it takes from them is in no
ratio; `planning_cpu_s` is its processor time. `cpu_ms` is that of a step, of one rank.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

from harness.form import Measured
from harness.living.race import ORACLE, PILOT, STATIC, TURN, Race, raced
from harness.living.settled import settled_s
from harness.living.streams import Stream, streams
from harness.ranks import run_ranks
from harness.trainer import machine
from rowtier import make_plan

RANKS, CHECKS, IN_RAM = 2, 6, 0.2
NEIGHBOURS = 20  # turns
LEAST_EVERY, QUICK_EVERY = 500, 40  # steps from one check to the next
COUNTED = 32  # steps of those from one check to the next
BUFFER_BYTES = 4 << 20  # of pages, on a rank: those of a step
Row = dict[str, Any]


def measure(quick: bool) -> Measured:
    """All data."""
    least = QUICK_EVERY if quick else LEAST_EVERY
    rows = []
    for stream, batch_size in streams(quick):
        rows.append(_measured(stream, batch_size, least))
        print(f"{stream.name}: {rows[-1]}", file=sys.stderr, flush=True)
    static = {row["data"]: row["vs_static"] for row in rows}
    figures = {
        "autopilot_vs_static_drift": static["drift"],
        "autopilot_vs_static_min": min(static.values()),
        "autopilot_vs_oracle": min(row["vs_oracle"] for row in rows),
    }
    return Measured(rows, figures)


def _measured(stream: Stream, batch_size: int, least_every: int) -> Row:
    step_samples = RANKS * batch_size
    steps = (stream.samples - stream.first) // step_samples // TURN * TURN
    every = min(steps, max(least_every, steps // CHECKS // TURN * TURN))
    row_bytes = sum(t.num_embeddings * t.embedding_dim * 4 for t in stream.tables)
    cluster = machine(RANKS, int(IN_RAM * row_bytes))
    plan = make_plan(stream.profile(0, stream.first), cluster)
    edges = [stream.first + check * every * step_samples for check in range(steps // every + 1)]
    replanned = tuple(
        make_plan(stream.profile(start, stop), cluster) for start, stop in pairwise(edges)
    )
    counted = max(1, every // COUNTED)
    race = Race(stream, plan, replanned, batch_size, steps, every, counted, BUFFER_BYTES)
    found = run_ranks(RANKS, raced, race)[0]
    turns, extra_s = found["turns_s"], {PILOT: found["checks_s"]}
    seconds = {name: sum(times) + extra_s.get(name, 0.0) for name, times in turns.items()}
    settled = {
        name: settled_s(times, NEIGHBOURS) + extra_s.get(name, 0.0) for name, times in turns.items()
    }
    return {
        "data": stream.name,
        "steps": steps,
        "static_steps_per_s": steps / seconds[STATIC],
        "autopilot_steps_per_s": steps / seconds[PILOT],
        "oracle_steps_per_s": steps / seconds[ORACLE],
        "vs_static": seconds[STATIC] / seconds[PILOT],
        "vs_oracle": seconds[ORACLE] / seconds[PILOT],
        "settled_vs_static": settled[STATIC] / settled[PILOT],
        "settled_vs_oracle": settled[ORACLE] / settled[PILOT],
        "checks_s": found["checks_s"],
        "cpu_ms": {name: 1e3 * spent / steps for name, spent in found["cpu_s"].items()},
        "planning_cpu_s": found["planning_cpu_s"],
        "move_s": found["move_s"],
        "moved_bytes": found["moved_bytes"],
        "moves": sum(decision["moved"] for decision in found["decisions"]),
        "decisions": [_short(decision) for decision in found["decisions"]],
    }


def _short(decision: Row) -> Row:
    return {key: decision[key] for key in ("step", "current_s", "best_s", "move_bytes", "moved")}
