"""Plans that live: a first plan that is kept, an Autopilot, and plans that change for free.

Two ranks on RAM and a disk train data in time order, of which the first fifth was profiled:

    drift        `synth drift`: one table whose hot rows change while the data goes by
    rentals      11 tables of a shop that rents clothes
    diginetica   sessions in a shop

RAM has room for a fifth of the rows, and a buffer for the pages of one step: a larger one would be
RAM by another name. A check is made six times, but not before 1,000 steps. Three contenders train
the same batches in turns, step by step, in the same processes: one keeps the first plan; one has an
Autopilot, whose counting, moving and waiting for a plan is part of its time; the oracle is
replanned at every check from all that was looked up since the one before, and neither planning nor
moving is part of its time. Figures are steps per second over the whole run, as ratios.
`counts_overhead` is what counting one step in 64 costs, the larger of two kinds of steps
(`harness/living/counts.py`).
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from harness.form import Measured, run
from harness.living.counts import counts_overhead
from harness.living.data import Stream, streams
from harness.living.job import ORACLE, PILOT, STATIC, Race, raced
from harness.ranks import run_ranks
from harness.trainer import machine

from rowtier import make_plan

RANKS, CHECKS, IN_RAM = 2, 6, 0.2
LEAST_EVERY = 1000  # steps from one check to the next, as docs/living.md has it
BUFFER_BYTES = 2 << 20  # of pages, on a rank: those of a step
KEY = ("data",)
GOALS: Any = {
    "autopilot_vs_static_drift": (">=", 1.2),
    "autopilot_vs_static_min": (">=", 0.97),
    "autopilot_vs_oracle": (">=", 0.85),
    "counts_overhead": ("<=", 0.01),
}
Row = dict[str, Any]


def measure(quick: bool) -> Measured:
    """All data, and what counting costs."""
    rows = [_measured(*pair) for pair in streams(quick)]
    counting = counts_overhead(quick)
    static = {row["data"]: row["vs_static"] for row in rows}
    figures = {
        "autopilot_vs_static_drift": static["drift"],
        "autopilot_vs_static_min": min(static.values()),
        "autopilot_vs_oracle": min(row["vs_oracle"] for row in rows),
        "counts_overhead": max(counting.values()),
        **{f"counts_overhead_{name}": value for name, value in counting.items()},
    }
    return Measured(rows, figures)


def _measured(stream: Stream, batch_size: int) -> Row:
    step_samples = RANKS * batch_size
    steps = (stream.samples - stream.first) // step_samples
    every = min(steps, max(LEAST_EVERY, steps // CHECKS))
    row_bytes = sum(t.num_embeddings * t.embedding_dim * 4 for t in stream.tables)
    cluster = machine(RANKS, int(IN_RAM * row_bytes))
    plan = make_plan(stream.profile(0, stream.first), cluster)
    edges = [stream.first + check * every * step_samples for check in range(steps // every + 1)]
    replanned = tuple(
        make_plan(stream.profile(start, stop), cluster) for start, stop in pairwise(edges)
    )
    counted = max(1, every // 32)
    race = Race(stream, plan, replanned, batch_size, steps, every, counted, BUFFER_BYTES)
    found = run_ranks(RANKS, raced, race)[0]
    seconds = found["seconds"]
    return {
        "data": stream.name,
        "steps": steps,
        "static_steps_per_s": steps / seconds[STATIC],
        "autopilot_steps_per_s": steps / seconds[PILOT],
        "oracle_steps_per_s": steps / seconds[ORACLE],
        "vs_static": seconds[STATIC] / seconds[PILOT],
        "vs_oracle": seconds[ORACLE] / seconds[PILOT],
        "checks_s": found["checks_s"],
        "move_s": found["move_s"],
        "moved_bytes": found["moved_bytes"],
        "moves": sum(decision["moved"] for decision in found["decisions"]),
        "decisions": json.dumps([_short(decision) for decision in found["decisions"]]),
    }


def _short(decision: Row) -> Row:
    return {key: decision[key] for key in ("step", "current_s", "best_s", "move_bytes", "moved")}


if __name__ == "__main__":
    run("living", measure, goals=GOALS)
