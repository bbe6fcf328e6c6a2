"""Whether certified bounds are below every legal plan, and how far joint is from its neighbours.

Random small problems (one to three tables, up to twelve devices, one to four levels, servers,
shared tiers, latencies, work), ten settings on presets and three with servers; on each of them
legal plans of every kind that a band can say:

    drawn      every field of every band drawn
    uniform    all tables kept in one way, in every way that there is
    edited     joint's own plan with one or two bands drawn anew, whole or in part
    free       what rows choose alone if every way that a band can say is open, at joint's prices

Beside joint's certificate stands a bound over everything that a band can say (`_bounds_least.py`).

    plans_tried              legal plans whose step was held against both bounds
    bounds_broken            of them those that are faster than joint's certificate allows, by 1e-9
    true_bounds_broken       the same for the bound over everything
    certificate_over_true_max  joint's bound over that one: above 1 it is not proved
    joint_vs_other_max       joint's step over the best other plan's
    edit_beats_joint_share   drawn problems on which an edit of one or two bands is 1 % faster
    edit_gain_max            by how much at most, of joint's step
    true_gap_median, _p90    joint's step over the bound over everything, less 1
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from _bounds_draw import (
    Instance,
    draw_instance,
    draw_plan,
    edited,
    family_of,
    hand_made,
    uniform_plans,
)
from _bounds_free import chosen_freely, mixed
from _bounds_least import Least, Weights, least_of
from _form import Measured, run

from rowtier import Plan, PlanOptions, make_plan
from rowtier.band import Bands
from rowtier.cost.step import step_cost
from rowtier.errors import InfeasibleError
from rowtier.plan.check import find_mistakes
from rowtier.profile.curve import Floats

INSTANCES, DRAWN, EDITS = 2000, 20, 30
BROKEN = 1e-9
TILT, SHARES = 0.02, (0.2, 0.4, 0.5, 0.6, 0.8)  # of weights of holders; of lookups on devices
GOALS: dict[str, Any] = {
    "plans_tried": (">=", 100_000),
    "bounds_broken": ("<=", 0),
    "true_bounds_broken": ("<=", 0),
    "joint_vs_other_max": ("<=", 1.0),
    "edit_beats_joint_share": ("<=", 0.05),
    "edit_gain_max": ("<=", 0.10),
}


def measure(quick: bool) -> Measured:
    """All problems; quick: some of the drawn ones."""
    problems: list[tuple[str, Instance, np.random.Generator]] = []
    for seed in range(6 if quick else INSTANCES):
        random = np.random.default_rng(seed)
        problems.append((f"drawn {seed}", draw_instance(random), random))
    random = np.random.default_rng(0)
    hand = [(name, instance, random) for name, instance in hand_made()]
    problems += hand[::5] if quick else hand
    rows = [row for problem in problems if (row := look_at(*problem)) is not None]
    families = sum((row.pop("families") for row in rows), Counter[str]())
    for family, count in families.most_common(20):
        print(f"{count:8} {family}")
    gains = [row["edit_gain"] for row in rows if row["problem"].startswith("drawn")]
    gaps = [row["true_gap"] for row in rows]
    figures = {
        "problems": len(rows),
        "plans_tried": sum(row["plans"] for row in rows),
        "families": len(families),
        "bounds_broken": sum(row["broken"] for row in rows),
        "true_bounds_broken": sum(row["true_broken"] for row in rows),
        "certificate_over_true_max": max(row["over_true"] for row in rows),
        "joint_vs_other_max": max(row["joint_vs_other"] for row in rows),
        "edit_beats_joint_share": sum(gain > 0.01 for gain in gains) / len(gains),
        "edit_gain_max": max(gains),
        "true_gap_median": statistics.median(gaps),
        "true_gap_p90": float(np.quantile(gaps, 0.9)),
    }
    return Measured(rows, figures)


def look_at(name: str, instance: Instance, random: np.random.Generator) -> dict[str, Any] | None:
    """What one problem shows; None where nothing fits."""
    try:
        plan = make_plan(instance.profile, instance.cluster)
    except InfeasibleError:
        return None
    certificate, options = plan.certificate, PlanOptions()
    assert certificate is not None
    assert certificate.proof is not None
    prices = np.array(certificate.proof.prices)
    least = least_of(
        instance.profile, instance.cluster, options, options.cost, certificate.proof.sync_weight
    )
    true_s, weights = least.best(prices)
    families: Counter[str] = Counter()
    best, best_edit, broken, true_broken = np.inf, np.inf, 0, 0
    for family, bands in tried(instance, plan, least, prices, weights, random):
        if not is_legal(instance, bands):
            continue
        families[family] += 1
        step_s = step_cost(bands, instance.profile, instance.cluster).step_s
        broken += step_s < certificate.bound * (1 - BROKEN)
        true_broken += step_s < true_s * (1 - BROKEN)
        best = min(best, step_s)
        if family == "edited":
            best_edit = min(best_edit, step_s)
    return {
        "problem": name,
        "features": ", ".join(sorted(instance.features)),
        "plans": families.total(),
        "broken": int(broken),
        "true_broken": int(true_broken),
        "over_true": certificate.bound / true_s if true_s else 1.0,
        "joint_vs_other": certificate.objective / best if best else 1.0,
        "true_gap": certificate.objective / true_s - 1 if true_s else np.inf,
        "edit_gain": max(0.0, 1 - best_edit / certificate.objective),
        "families": families,
    }


def tried(
    instance: Instance, plan: Plan, least: Least, prices: Floats, weights: Weights,
    random: np.random.Generator,
) -> Iterator[tuple[str, Bands]]:  # fmt: skip
    """Plans of all families."""
    yield from (draw_plan(instance, random) for _ in range(DRAWN))
    yield from uniform_plans(instance)
    for number in range(EDITS):
        yield edited(instance, plan.bands, 1 + number % 2, random)
    for bands in free_plans(instance, least, prices, weights):
        yield "free: " + family_of(bands, instance.cluster), bands


def free_plans(
    instance: Instance, least: Least, prices: Floats, weights: Weights
) -> Iterator[Bands]:
    """What rows choose with and without sums, and with devices and servers at once."""
    profile, cluster = instance.profile, instance.cluster
    for sums in (True, False):
        near, far = (
            chosen_freely(profile, cluster, least, prices, weights.tilted(tilt), sums=sums)
            for tilt in (-TILT, TILT)
        )
        yield from (near, far)
        if cluster.servers:
            yield from (mixed(profile, near, far, share) for share in SHARES)


def is_legal(instance: Instance, bands: Bands) -> bool:
    """Whether a plan with these bands would be accepted."""
    made = Plan.build("drawn", instance.profile, instance.cluster, bands)
    return next(iter(find_mistakes(made)), None) is None


if __name__ == "__main__":
    run("bounds", measure, goals=GOALS)
