"""Whether the predicted step is the measured one, plan by plan, on this machine.

For every number of ranks one job calibrates itself (`rowtier calibrate`), twice in a row. Then, per
workload and batch size (samples per rank), it plans on the first calibration and trains under the
plans in turns: look-up, backward with a fixed gradient, SGD. Every turn is two steps, the second of
them timed, on the slowest rank; times are medians over rounds, each of which begins with another
plan.

    pooled       26 tables of 64 columns, Zipf 1.05, 1 to 4 ids a sample and table
    sequence     4 tables, the same, sequences of 10 to 30 ids
    diginetica   sessions in a shop: the first half is profiled, the second, shuffled, trained on
    rentals      11 tables of a shop that rents clothes, the same

`predicted_ms` is what the plan says on its own profile, and its parts (memory, work and links)
beside it. This machine's memory is up to 1.5 times slower in one minute than in the next, so the
work in it is measured in the same minutes: one pass of calibrate's own steps after each cell, and
the coefficients follow from all of them. `predicted_before_ms` is the same with the calibration
that was made before all cells, `predicted_again_ms` with the second one. Plans with equal bands are
one (`same as`): run once, counted once, and as fast as each other.

    step_error_*            |predicted / measured − 1|, ranks that have a core each
    order_agreement         pairs of plans of a cell whose measured times differ by more than 10 %:
                            the share that the model orders alike
    joint_measured_min      the best other plan's measured time over joint's, the least of all cells
    joint_paired_min        the same by rounds, the median of their ratios: times of short steps
                            have two humps, between which a median of times jumps; `_high` is
                            the upper end of its interval of 95 %
    equal_plans_paired_min  the same for a second module of joint's own plan: what is noise
    calibrate_spread        the most by which a predicted step changes if calibrated again, ranks
                            that have a core each; _median, and for ranks and single figures
    before_…                the same as without, for predicted_before_ms
    oversubscribed_*        the same where ranks share cores
"""

from __future__ import annotations

import os
from typing import Any

from harness.form import Measured, run
from harness.ranks import free_port, run_ranks
from harness.step_truth.data import workloads
from harness.step_truth.figures import coefficient_spreads, figures_of
from harness.step_truth.job import Task, calibrate_and_measure

from rowtier import Cluster

RANKS = (1, 2, 4)
# By batch size: times of short steps have two humps, half as much apart as a step is long, and with
# a hundred rounds the medians of equal plans differ by a tenth.
ROUNDS = {32: 600, 512: 300, 4096: 90}
OPTIONS: dict[str, Any] = {"ranks": (0, "so many ranks alone; 0: 1, 2 and 4")}
GOALS: dict[str, Any] = {
    "step_error_median": ("<=", 0.15),
    "step_error_p90": ("<=", 0.35),
    "order_agreement": (">=", 0.9),
    "calibrate_spread": ("<=", 0.15),
    "joint_measured_min": (">=", 0.97),
}


def measure(quick: bool, ranks: int = 0) -> Measured:
    """All numbers of ranks; quick: two small workloads in small batches."""
    known = [(workload, workload.profile()) for workload in workloads(quick)]
    task = Task(known, {32: 3}, quick=True) if quick else Task(known, ROUNDS)
    rows: list[dict[str, Any]] = []
    spreads: dict[str, float] = {}
    for size in [ranks] if ranks else RANKS[:2] if quick else RANKS:
        ports = free_port(), free_port(), free_port()
        clusters, found = run_ranks(size, calibrate_and_measure, ports, task)[0]
        rows += found
        spreads |= spreads_of(clusters, size)
    return Measured(rows, figures_of(rows, len(os.sched_getaffinity(0))) | spreads)


def spreads_of(clusters: list[Cluster], size: int) -> dict[str, float]:
    """By how much two calibrations differ, figure by figure."""
    first, second = (cluster.model_dump(exclude={"name"}) for cluster in clusters)
    return {
        f"calibrate_spread_{size}_ranks_{name}": spread
        for name, spread in coefficient_spreads(first, second)
    }


if __name__ == "__main__":
    run("step_truth", measure, goals=GOALS, options=OPTIONS)
