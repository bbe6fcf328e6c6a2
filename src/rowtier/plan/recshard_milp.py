"""`recshard-milp`: RecShard's mixed-integer program (arXiv 2201.10095) on HiGHS.

The tight, compact form: one binary z[table, step, device], where step i of a table puts the
hottest rows that serve i % of its lookups into fast memory; Σ z = 1 for every table, bytes
fit per device and memory, and no device takes longer than T, which is minimised.

It is kept as a reference for `recshard`, which is faster and better. Steps restrict where a
table may be cut, so the bound that HiGHS proves holds for this program only and stands in
the plan's `origin`; the certificate has the bound of the problem with cuts anywhere. A time
limit makes it the one planner whose plan may differ from run to run.
"""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any, NamedTuple

import highspy
import numpy as np

from rowtier.cluster import Cluster
from rowtier.errors import UserError
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.plan.recshard.bound import Bound, apart_bound, whole_bound
from rowtier.plan.recshard.layout import PieceLayout
from rowtier.plan.recshard.make import RecShardProblem
from rowtier.plan.recshard.pieces import whole_pieces
from rowtier.plan.recshard.whole import first_prices
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile, TableStats

STEPS = 100


class _Choices(NamedTuple):
    """What tables may do: an entry per table and step, table by table."""

    table: Ints
    rows: Ints  # in fast memory
    seconds: Floats
    fast: Floats  # share of a device's fast memory …
    slow: Floats  # … and of its slow memory


class _Found(NamedTuple):
    """The chosen entry and the device of every table, and what HiGHS says about it."""

    choice: Ints
    device: Ints
    facts: dict[str, Any]


def plan(profile: Profile, cluster: Cluster, options: PlanOptions) -> Plan:
    """The best placement that HiGHS finds within `options.time_limit_s`."""
    if len(cluster.device.tiers) > 2:
        names = ", ".join(tier.name for tier in cluster.device.tiers)
        raise UserError(
            f"recshard-milp divides tables between two memory tiers and a device of "
            f"{cluster.name!r} has {names}: use recshard"
        )
    problem = RecShardProblem.of(profile, cluster, options.model_copy(update={"split": False}))
    bound = whole_bound(problem.heat, problem.machine)
    choices = _choices(problem)
    # Devices are alike and tables stay whole: more devices than tables are of no use.
    devices = min(cluster.num_devices, problem.heat.items)
    found = _solve(choices, devices, bound.seconds or 1.0, problem)
    layout = _layout(choices, found, problem)
    reached = float(np.bincount(found.device, choices.seconds[found.choice]).max())
    bound = _sharpened(bound, reached, problem)
    made = problem.certified("recshard-milp", problem.parts, layout, bound)
    return dataclasses.replace(made, origin={"highs": found.facts})


def _choices(problem: RecShardProblem) -> _Choices:
    heat, machine = problem.heat, problem.machine
    positions = [_step_rows(part.stats) for part in problem.parts]
    table = np.repeat(np.arange(len(positions)), [len(rows) for rows in positions])
    share = [p.stats.curve.share(rows) for p, rows in zip(problem.parts, positions, strict=True)]
    served, rows = np.concatenate(share), np.concatenate(positions)
    total = heat.read[heat.first[1:] - 1][table]
    fast, slow = machine.costs[:2].tolist()
    held = np.stack((rows, heat.rows[table] - rows)) * heat.row_bytes[table]
    # A memory of size zero holds nothing; a tiny size says so without dividing by zero.
    shares = held / np.maximum(machine.sizes[:2, None].astype(np.float64), 1e-9)
    keep = (shares <= 1).all(axis=0)
    seconds = total * (served * fast + (1 - served) * slow)
    return _Choices(table[keep], rows[keep], seconds[keep], shares[0, keep], shares[1, keep])


def _step_rows(stats: TableStats) -> Ints:
    """The hottest rows that serve 0, 1, …, 100 % of a table's lookups, and all its rows."""
    reached = np.concatenate(([0.0], np.cumsum(stats.curve.lookups)))
    positions = np.concatenate(([0], stats.curve.stops))
    wanted = np.linspace(0, reached[-1], STEPS + 1)
    rows = np.ceil(np.interp(wanted, reached, positions)).astype(np.int64)
    return np.unique(np.append(rows, stats.table.num_embeddings))


def _solve(choices: _Choices, devices: int, scale: float, problem: RecShardProblem) -> _Found:
    tables = problem.heat.items
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("parallel", "off")
    solver.setOptionValue("time_limit", problem.options.time_limit_s)
    solver.setOptionValue("random_seed", problem.options.seed)
    solver.passModel(_program(choices, tables, devices, scale))
    start = _greedy(choices, tables, devices)
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = _values(choices, *start, devices, scale)
        solver.setSolution(solution)
    solver.run()
    values = np.array(solver.getSolution().col_value)
    info, status = solver.getInfo(), solver.modelStatusToString(solver.getModelStatus())
    if info.primal_solution_status != int(highspy.SolutionStatus.kSolutionStatusFeasible):
        if status == "Infeasible":
            raise problem.not_packed()
        raise UserError(
            f"HiGHS found no placement in {problem.options.time_limit_s:g} s (it says: {status}); "
            "raise time_limit_s, or use recshard"
        )
    chosen = values[1:].reshape(len(choices.table), devices) > 0.5
    choice, device = np.nonzero(chosen)
    proven = float(info.mip_dual_bound) * scale
    facts = {
        "status": status,
        "stepped_objective_s": float(values[0]) * scale,
        "stepped_bound_s": proven if np.isfinite(proven) else None,
    }
    return _Found(choice, device, facts)


def _program(choices: _Choices, tables: int, devices: int, scale: float) -> highspy.HighsLp:
    """Column 0 is T, then z by choice and device; a row per table, then three per device."""
    count = len(choices.table) * devices
    device = np.tile(np.arange(devices), len(choices.table))
    own = tables + 3 * device
    rows = np.column_stack((np.repeat(choices.table, devices), own, own + 1, own + 2))
    needs = np.column_stack((choices.seconds / scale, choices.fast, choices.slow))
    values = np.column_stack((np.ones(count), np.repeat(needs, devices, axis=0)))
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = 1 + count, tables + 3 * devices
    lp.col_cost_ = np.concatenate(([1.0], np.zeros(count)))
    lp.col_lower_ = np.zeros(1 + count)
    lp.col_upper_ = np.concatenate(([highspy.kHighsInf], np.ones(count)))
    lp.row_lower_ = np.concatenate((np.ones(tables), np.full(3 * devices, -highspy.kHighsInf)))
    lp.row_upper_ = np.concatenate((np.ones(tables), np.tile([0.0, 1.0, 1.0], devices)))
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.concatenate(([0], devices + 4 * np.arange(count + 1)))
    lp.a_matrix_.index_ = np.concatenate((tables + 3 * np.arange(devices), rows.ravel()))
    lp.a_matrix_.value_ = np.concatenate((-np.ones(devices), values.ravel()))
    kinds = [highspy.HighsVarType.kInteger] * count
    lp.integrality_ = [highspy.HighsVarType.kContinuous, *kinds]
    return lp


def _greedy(choices: _Choices, tables: int, devices: int) -> tuple[Ints, Ints] | None:
    """A start: each table, longest first, where it ends soonest. None if it does not fit."""
    first = np.searchsorted(choices.table, np.arange(tables + 1))
    choice, device = np.zeros(tables, dtype=np.int64), np.zeros(tables, dtype=np.int64)
    used = np.zeros((3, devices))
    needs = np.stack((choices.seconds, choices.fast, choices.slow))
    longest = [choices.seconds[a:b].min() for a, b in pairwise(first)]
    for table in np.argsort(longest)[::-1]:
        after = used[:, None, :] + needs[:, first[table] : first[table + 1], None]
        time = np.where((after[1:] <= 1).all(axis=0), after[0], np.inf)
        best = int(time.argmin())
        if not np.isfinite(time.flat[best]):
            return None
        step, to = divmod(best, devices)
        choice[table], device[table] = first[table] + step, to
        used[:, to] += needs[:, choice[table]]
    return choice, device


def _values(choices: _Choices, choice: Ints, device: Ints, devices: int, scale: float) -> Floats:
    values = np.zeros((len(choices.table), devices))
    values[choice, device] = 1.0
    longest = np.bincount(device, choices.seconds[choice]).max() / scale
    return np.concatenate(([longest], values.ravel()))


def _layout(choices: _Choices, found: _Found, problem: RecShardProblem) -> PieceLayout:
    rows, heat = choices.rows[found.choice], problem.heat
    cuts = np.tile(heat.rows, (len(problem.machine.sizes), 1))
    cuts[0] = rows
    return PieceLayout(whole_pieces(heat), cuts, found.device)


def _sharpened(bound: Bound, reached: float, problem: RecShardProblem) -> Bound:
    heat, machine = problem.heat, problem.machine
    if reached <= bound.seconds:
        return bound
    return apart_bound(heat, machine, first_prices(heat, machine), bound, reached)
