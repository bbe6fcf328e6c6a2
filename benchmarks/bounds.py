"""Whether certified bounds are below every legal plan, and how far joint is from the best.

Random small problems (one to three tables, up to twelve devices, one to four levels, servers,
shared tiers, latencies, work, pins), settings on presets and with servers; on each of them legal
plans of every kind that a band can say, which keep to its pins:

    drawn      every field of every band drawn
    uniform    all tables kept in one way, in every way that there is
    edited     joint's own plan with one or two bands changed, whole or in part
    free       what rows choose alone if every way that a band can say is open, at joint's prices
    by hand    what a person would try on the settings

    plans_tried              legal plans whose step was held against joint's bound
    plans_drawn, …           of them those of each family
    plans_with_sums, …       of all but the edited ones those with bands of a kind; `inside`: of
                             groups, not of the whole cluster
    bounds_broken            plans that are faster than joint's certificate allows, by 1e-9
    not_proved               problems whose certificate is above what is proved of it (`prove.py`)
    joint_vs_other_max       joint's step over the best other plan's
    joint_vs_hand_max        the same for plans by hand
    edit_beats_joint_share   drawn problems on which an edit of one or two bands is 1 % faster
    edit_gain_max            by how much at most, of joint's step
    gap_median, gap_p90      joint's step over its bound, less 1
    recshard_bounds_broken, flexshard_, sca_   plans of the class of these certificates, by the
                             objective that they name, that are below their bounds
    brute_optimal_share      tiny problems on which no plan at all is faster than joint's (by 1e-4)
    brute_bound_broken       tiny problems whose best plan is below joint's bound
    monotone_violation_max   how much slower a plan can get on a better cluster: tiny problems
    monotone_beyond_gap      drawn problems on which it is more than the certificate allows
    problems_asked, _left    problems of all kinds, and those that were not begun

Problems run in `--processes N` (as many as there are CPUs), and show the same in any number. How
far they are stands on stderr. `--seconds N` begins no more of them after so long, nor does a run
that is interrupted: figures are then of what was done, of each kind the same share. None of them
reaches its goal, as others may be left that it does not hold for; what was not seen is None.
One problem, with joint's plan and the best edit: `bounds.py --seed 17`, `bounds.py --tiny 17`.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from harness.bounds.brute import best_of_all
from harness.bounds.classes import CLASSES, held
from harness.bounds.draw import Instance, draw_instance, draw_tiny, hand_made, hand_plans
from harness.bounds.edits import best_edit
from harness.bounds.monotone import compared
from harness.bounds.plans import draw_plan, in_words, kinds_in, legal_cost, uniform_plans
from harness.bounds.processes import Task, in_processes, mixed, told
from harness.form import Measured, run

from rowtier import Plan, make_plan
from rowtier.band import Bands
from rowtier.errors import InfeasibleError
from rowtier.plan.joint.bound import least_of
from rowtier.plan.joint.free import freely, shared_with_servers
from rowtier.plan.prove import proved_s
from rowtier.plan.verify import PROOF_TOLERANCE

# Problems of each kind: over an hour of CPU, half of it in joint; drawn ones may not fit.
INSTANCES, EDITED, OF_CLASSES, TINY, MONOTONE = 2050, 1040, 200, 320, 60
QUICK = 40  # times fewer if `--quick`
DRAWN, UNIFORM = 20, 20  # plans of each problem
BROKEN = 1e-9
OPTIMAL = 1e-4  # joint leaves bands away that save less than a few millionths of a step each
SOME = 8  # every so many-th mixture of devices and servers is tried
GOALS: dict[str, Any] = {
    "plans_tried": (">=", 100_000),
    "problems": (">=", 2000),
    "problems_left": ("<=", 0),
    "bounds_broken": ("<=", 0),
    "not_proved": ("<=", 0),
    "joint_vs_hand_max": ("<=", 1.0),
    "edit_beats_joint_share": ("<=", 0.05),
    "edit_gain_max": ("<=", 0.10),
    "recshard_bounds_broken": ("<=", 0),
    "flexshard_bounds_broken": ("<=", 0),
    "sca_bounds_broken": ("<=", 0),
    "brute_optimal_share": (">=", 0.95),
    "brute_bound_broken": ("<=", 0),
    "monotone_violation_max": ("<=", 1e-3),
    "monotone_beyond_gap": ("<=", 0),
}
OPTIONS = {
    "processes": (os.cpu_count() or 1, "processes that problems run in"),
    "seconds": (math.inf, "begin no more problems after so long"),
}
Row = dict[str, Any]


def measure(quick: bool, processes: int, seconds: float) -> Measured:
    """All problems that there is time for; quick: some of each kind."""
    numbers = numbers_of(quick)
    tasks = mixed(numbers)
    found = dict(told(in_processes(rows_of, tasks, processes, seconds), len(tasks)))
    seen = {
        kind: [row for number in those for row in found.get((kind, number), ())]
        for kind, those in numbers.items()
    }
    rows = seen["edited"] + seen["drawn"] + seen["hand"]
    figures = {
        **bound_figures(rows), **class_figures(seen["classes"]),
        **tiny_figures(seen["tiny"]), **monotone_figures(seen["monotone"]),
        "problems_asked": len(tasks), "problems_left": len(tasks) - len(found),
    }  # fmt: skip
    shown = [{k: v for k, v in row.items() if k not in ("families", "kinds")} for row in rows]
    return Measured(shown, figures, finished=len(found) == len(tasks))


def numbers_of(quick: bool) -> dict[str, Sequence[int]]:
    """The problems of each kind, by their seeds or by where they stand among the settings."""
    fewer = QUICK if quick else 1
    return {
        "edited": range(EDITED // fewer),
        "drawn": range(EDITED // fewer, INSTANCES // fewer),
        "hand": range(0, len(list(hand_made())), 5 if quick else 1),
        "classes": range(OF_CLASSES // fewer),
        "tiny": range(TINY // fewer),
        "monotone": range(MONOTONE // fewer),
    }


def rows_of(task: Task) -> list[Row]:
    """What one problem shows."""
    kind, number = task
    return list(KINDS[kind](number))


def drawn_row(seed: int, edits: int) -> Iterator[Row]:
    """What a drawn problem shows, edits too if its number is below `edits`; none: nothing fits."""
    random = np.random.default_rng(seed)
    instance = draw_instance(random)
    plan = planned(instance)
    if plan is not None:
        again = of_edits(seed) if seed < edits else None
        yield look_at(f"drawn {seed}", instance, plan, random, edits=again)


def of_edits(seed: int) -> np.random.Generator:
    """What edits are drawn from, so that they are the same without all other plans."""
    return np.random.default_rng([seed, 1])


def hand_row(name: str, instance: Instance) -> Iterator[Row]:
    """What one of the settings shows."""
    plan = planned(instance)
    if plan is not None:
        yield look_at(name, instance, plan, np.random.default_rng(0), hand=True)


def planned(instance: Instance) -> Plan | None:
    """Joint's plan; None where nothing fits."""
    try:
        return make_plan(instance.profile, instance.cluster, "joint", instance.options)
    except InfeasibleError:
        return None


@dataclass
class Seen:
    """The plans of one problem, held against its bound."""

    bound_s: float
    best_s: float = np.inf
    broken: int = 0

    def add(self, step_s: float) -> None:
        """One more legal plan."""
        self.best_s = min(self.best_s, step_s)
        self.broken += step_s < self.bound_s * (1 - BROKEN)


def look_at(
    name: str, instance: Instance, plan: Plan, random: np.random.Generator, *,
    edits: np.random.Generator | None = None, hand: bool = False,
) -> Row:  # fmt: skip
    """Plans of all families on one problem."""
    certificate = plan.certificate
    assert certificate is not None
    seen, families, kinds = Seen(certificate.bound), Counter[str](), Counter[str]()
    row: Row = {"problem": name, "features": instance.features, "edit_gain": None, "hand": None}
    for family, bands in tried(instance, random):
        cost = legal_cost(instance, bands)
        if cost is not None:
            seen.add(cost.step_s)
            families[family] += 1
            kinds.update(kinds_in(bands, instance.cluster))
    if hand:
        costs = [legal_cost(instance, bands) for bands in hand_plans(instance)]
        steps = [cost.step_s for cost in costs if cost is not None]
        for step_s in steps:
            seen.add(step_s)
        families["by hand"] += len(steps)
        row["hand"] = certificate.objective / min(steps)
    if edits is not None:
        found = best_edit(instance, plan.bands, edits)
        families["edited"] += found.tried
        seen.add(found.step_s)
        row["edit_gain"] = max(0.0, 1 - found.step_s / certificate.objective)
    return row | {
        "plans": families.total(),
        "broken": seen.broken,
        "not_proved": not is_proved(plan, certificate.bound),
        "joint_vs_other": certificate.objective / seen.best_s,
        "gap": certificate.gap,
        "families": dict(families),
        "kinds": dict(kinds),
    }


def is_proved(plan: Plan, bound_s: float) -> bool:
    """Whether other code finds the same bound; there is no proof where pins take choices away."""
    proved = proved_s(plan)
    return proved is None or bound_s <= proved * (1 + PROOF_TOLERANCE)


def tried(instance: Instance, random: np.random.Generator) -> Iterator[tuple[str, Bands]]:
    """Plans of the families that need no plan of joint's, each with the name of its family."""
    yield from (("drawn", draw_plan(instance, random)) for _ in range(DRAWN))
    uniform = list(uniform_plans(instance))
    some = random.permutation(len(uniform))[:UNIFORM].tolist()
    yield from (("uniform", uniform[at]) for at in some)
    yield from (("free", bands) for bands in free_plans(instance))


def free_plans(instance: Instance) -> Iterator[Bands]:
    """What rows choose alone, with every choice of rounds, and with devices and servers at once."""
    least = least_of(instance.profile, instance.cluster, instance.options, instance.options.cost)
    for case in least.cases:
        for priced in (case.fits, case.proof):
            yield freely(least.pricing, least.tables, priced)
        if instance.cluster.servers:
            yield from islice(shared_with_servers(least, case), None, None, SOME)


def class_rows(seed: int) -> Iterator[Row]:
    """Plans of the classes of other certificates, on a drawn problem without its pins."""
    for method in CLASSES:
        random = np.random.default_rng(seed)
        found = held(method, draw_instance(random), random)
        if found is not None:
            yield {"method": method.split()[0], **vars(found)}


def tiny_row(seed: int) -> Iterator[Row]:
    """Every plan of a tiny problem."""
    instance = draw_tiny(np.random.default_rng(seed))
    plan = planned(instance)
    if plan is not None:
        certificate = plan.certificate
        assert certificate is not None
        best = best_of_all(instance, certificate.objective)
        yield {
            "optimal": certificate.objective <= best.step_s * (1 + OPTIMAL),
            "gain": 1 - best.step_s / certificate.objective,
            "broken": best.step_s < certificate.bound * (1 - BROKEN),
            "plans": best.plans,
        }


def monotone_rows(seed: int) -> Iterator[Row]:
    """A drawn and a tiny problem, each with one thing improved."""
    for tiny, draw in ((True, draw_tiny), (False, draw_instance)):
        random = np.random.default_rng(seed)
        instance = draw(random)
        plan = planned(instance)
        if plan is not None:
            yield {"tiny": tiny, **vars(compared(instance, plan, random))}


KINDS: Mapping[str, Callable[[int], Iterator[Row]]] = {
    "edited": lambda seed: drawn_row(seed, edits=seed + 1),
    "drawn": lambda seed: drawn_row(seed, edits=0),
    "hand": lambda number: hand_row(*list(hand_made())[number]),
    "classes": class_rows,
    "tiny": tiny_row,
    "monotone": monotone_rows,
}


def bound_figures(rows: list[Row]) -> dict[str, float | None]:
    """What all families show about joint."""
    gains = [row["edit_gain"] for row in rows if row["edit_gain"] is not None]
    gaps = [row["gap"] for row in rows]
    return {
        "problems": len(rows),
        "plans_tried": sum(row["plans"] for row in rows),
        **{f"plans_{name}": count for name, count in _counts(rows, "families").items()},
        **{f"plans_with_{name}": count for name, count in _counts(rows, "kinds").items()},
        "bounds_broken": sum(row["broken"] for row in rows),
        "not_proved": sum(row["not_proved"] for row in rows),
        "joint_vs_other_max": _max(row["joint_vs_other"] for row in rows),
        "joint_vs_hand_max": _max(row["hand"] for row in rows if row["hand"] is not None),
        "edited_problems": len(gains),
        "edit_beats_joint_share": _mean(gain > 0.01 for gain in gains),
        "edit_gain_max": _max(gains),
        "gap_median": statistics.median(gaps) if gaps else None,
        "gap_p90": float(np.quantile(gaps, 0.9)) if gaps else None,
    }


def _max(values: Iterable[float]) -> float | None:
    return max(values, default=None)


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.fmean(found) if found else None


def _counts(rows: list[Row], key: str) -> dict[str, int]:
    """How many plans there were of each kind."""
    total = sum((Counter(row[key]) for row in rows), Counter[str]())
    return {name.replace(" ", "_"): count for name, count in sorted(total.items())}


def class_figures(rows: Iterable[Row]) -> dict[str, int]:
    """The same about the certificates of other methods, each over its own class."""
    names = {"plans": "plans_tried", "broken": "bounds_broken"}
    methods = dict.fromkeys(method.split()[0] for method in CLASSES)
    found = {f"{method}_{name}": 0 for method in methods for name in names.values()}
    for row in rows:
        for key, name in names.items():
            found[f"{row['method']}_{name}"] += row[key]
    return found


def tiny_figures(rows: list[Row]) -> dict[str, float | None]:
    """How often joint's plan is the best of all."""
    return {
        "brute_problems": len(rows),
        "brute_plans": sum(row["plans"] for row in rows),
        "brute_optimal_share": _mean(row["optimal"] for row in rows),
        "brute_gain_max": _max(row["gain"] for row in rows),
        "brute_bound_broken": sum(row["broken"] for row in rows),
    }


def monotone_figures(rows: list[Row]) -> dict[str, float | None]:
    """How much slower plans get on better clusters."""
    tiny, drawn = ([row for row in rows if row["tiny"] is each] for each in (True, False))
    return {
        "monotone_pairs": len(rows),
        "monotone_violation_max": _max(row["slower"] for row in tiny),
        "monotone_violation_max_drawn": _max(row["slower"] for row in drawn),
        "monotone_beyond_gap": sum(row["slower"] > row["gap"] + BROKEN for row in drawn),
    }


def show(kind: str, seed: int) -> None:
    """One problem, joint's plan, and what is better."""
    random = np.random.default_rng(seed)
    instance = draw_tiny(random) if kind == "--tiny" else draw_instance(random)
    print(f"{kind[2:]} {seed}: {instance.features or 'nothing special'}")
    for stats in instance.profile.stats:
        print(f"  {stats.table!r}")
        print(f"    {stats.lookups_per_sample:.3g} lookups, heat changes at {stats.curve.stops}")
    print(f"  batch {instance.profile.batch_size}; {instance.options!r}\n  {instance.cluster!r}")
    plan = planned(instance)
    if plan is None:
        print("nothing fits")
        return
    certificate = plan.certificate
    assert certificate is not None
    print(f"joint: {certificate.objective:.6g} s, at least {certificate.bound:.6g} s")
    if kind == "--tiny":
        best = best_of_all(instance, certificate.objective)
        step_s, bands = best.step_s, best.bands or plan.bands
    else:
        edit = best_edit(instance, plan.bands, of_edits(seed))
        step_s, bands = edit.step_s, edit.bands
    print(f"found: {step_s:.6g} s, {1 - step_s / certificate.objective:.2%} less")
    for name, now in plan.bands.items():
        print(*(f"  {name} joint   {in_words(band)}" for band in now), sep="\n")
        if bands[name] != now:
            print(*(f"  {name} better  {in_words(band)}" for band in bands[name]), sep="\n")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ("--seed", "--tiny"):
        show(sys.argv[1], int(sys.argv[2]))
    else:
        run("bounds", measure, goals=GOALS, options=OPTIONS)
