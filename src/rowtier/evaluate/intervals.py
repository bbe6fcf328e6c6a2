"""How far a replayed figure may be from the predicted one if the data is like the profiled data.

Four things part them, and the interval is the sum of what each of them explains.

* Chance. The mean over some steps scatters around the truth by spread/√steps. The prediction
  rests on the profile, which is as many steps as its samples fill, and scatters likewise.
  With few steps the spread itself is uncertain (Student's t); with one, events are taken
  to come one by one (Poisson). Where steps did not differ at all, up to three events in all
  of them may still have been missed ("rule of three").
* Distinct rows. How many rows a batch will touch is known to an interval, which holds for the
  future as far as the profile's time slices show; the cost model is asked for both of its ends.
  Of a plan that was made from a curve nobody knows it: rows that were seen equally often are
  not equally hot, and distinct rows are fewer for it. A row seen c times may be off by √c, so the
  cost model is asked once more with every bucket of rows parted into a hotter and a colder half
  by as much; the truth lies between the two answers.
* The slowest. A step waits for the slowest holder and the busier direction of its links,
  whichever that is in a step: later than the one that is slowest on average, of n that
  scatter by s by at most s·√(2 ln n).
* Turns. Copies take turns at adding up gradients, row by row, and a prediction takes each
  for as busy as the others. The last turn is seldom full, and whoever comes first has the
  hotter rows: at most one turn more or less than predicted, as heat falls along the positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from rowtier.cost.amounts import RowSizes
from rowtier.cost.links import Flow
from rowtier.cost.options import CostOptions
from rowtier.cost.step_time import StepTime
from rowtier.cost.time import link_time_s
from rowtier.cost.tree import Tree, tree_of
from rowtier.evaluate.figures import FLOWS, Label, StepFacts
from rowtier.evaluate.predict import Prediction, predict
from rowtier.plan.plan import Plan
from rowtier.profile.curve import Curve, Floats
from rowtier.profile.profile import Profile, TableStats

_ROUNDING = 1e-9
# 95 % of Student's t for 1, 2, … steps more than one; for one step the spread is taken as known.
_STUDENT = (1.96, 12.71, 4.303, 3.182, 2.776, 2.571)


def intervals(prediction: Prediction, spread: Floats, steps: int) -> tuple[Floats, Floats]:
    """Where the means of 95 % of replays with so many steps are expected, from low to high."""
    predicted = prediction.facts.vector()
    others = np.stack([predicted, *(found.facts.vector() for found in _otherwise(prediction))])
    if steps == 1:
        spread = _of_one_step(prediction.labels, predicted)
    plan = prediction.plan
    step_samples = plan.profile.batch_size * plan.cluster.num_devices
    profiled = min(stats.samples for stats in plan.profile.stats) / step_samples
    reach = _student(steps - 1) * spread * math.sqrt(1 / steps + 1 / max(profiled, 1e-9))
    reach = np.maximum(reach, _unseen(prediction.labels, spread) / steps) + _ROUNDING * predicted
    reach += _turns(prediction)
    low, high = others.min(axis=0) - reach, others.max(axis=0) + reach
    return low, high + _waiting(prediction.labels, spread)


def _student(freedom: int) -> float:
    if freedom < len(_STUDENT):
        return _STUDENT[freedom]
    return 1.96 + 2.4 / freedom + 2.8 / freedom**2


def _of_one_step(labels: Iterable[Label], predicted: Floats) -> Floats:
    """The spread that independent events would have; of times, that of a tenth."""
    sizes = np.array([label.event_bytes for label in labels])
    seconds = np.array([label.unit == "s" for label in labels])
    return np.where(seconds, 0.1 * predicted, np.sqrt(sizes * predicted))


def _unseen(labels: Iterable[Label], spread: Floats) -> Floats:
    """Three events, where no step differed from another."""
    sizes = np.array([0.0 if label.unit == "s" else label.event_bytes for label in labels])
    return np.where(spread == 0, 3 * sizes, 0.0)


def _otherwise(prediction: Prediction) -> Iterator[Prediction]:
    """The same step with the fewest and the most distinct rows that are to be expected."""
    plan = prediction.plan
    for profile in with_distinct_rows(plan.profile):
        yield predict(replace(plan, profile=profile), prediction.options)


def with_distinct_rows(profile: Profile) -> Iterator[Profile]:
    """The same statistics with the fewest and the most distinct rows that are to be expected."""
    for change in (_fewest, _most):
        yield replace(profile, stats=tuple(change(entry) for entry in profile.stats))


def _fewest(stats: TableStats) -> TableStats:
    ladder = stats.distinct_rows
    if ladder is None:
        return replace(stats, bucketed=_parted(stats))
    fewest = np.where(np.isfinite(ladder.low), ladder.low, ladder.value)
    return replace(stats, ladder=replace(ladder, value=np.maximum.accumulate(fewest)))


def _most(stats: TableStats) -> TableStats:
    ladder = stats.distinct_rows
    if ladder is None:
        return stats
    most = np.where(np.isfinite(ladder.high), ladder.high, ladder.value)
    return replace(stats, ladder=replace(ladder, value=np.maximum.accumulate(most)))


def _parted(stats: TableStats) -> Curve:
    """The curve with a hotter and a colder half in every bucket that has two rows."""
    curve = stats.curve
    if not len(curve.stops):
        return curve
    cold = curve.widths // 2
    hot = curve.widths - cold
    heat = curve.lookups / curve.widths
    off = np.minimum(heat, np.sqrt(heat)) * (cold > 0)
    lookups = np.stack([hot * heat + cold * off, cold * (heat - off)], axis=1).reshape(-1)
    stops = np.stack([curve.stops - cold, curve.stops], axis=1).reshape(-1)
    kept = np.stack([hot > 0, cold > 0], axis=1).reshape(-1)
    return Curve(stops[kept], np.maximum(lookups[kept], 1e-300))


def _waiting(labels: tuple[Label, ...], spread: Floats) -> Floats:
    """How much later than the slowest on average the slowest of each step may be."""
    worst: dict[tuple[str, str], float] = {}  # the largest spread of a holder, by name and level
    holders = {label.of for label in labels if label.kind == "holder"}
    for label, value in zip(labels, spread, strict=True):
        if label.kind == "holder" and label.unit in ("s", "lookups"):
            key = (label.name, label.at)
            worst[key] = max(worst.get(key, 0.0), float(value))
    either = math.sqrt(2 * math.log(2))
    any_one = math.sqrt(2 * math.log(2 * max(1, len(holders))))
    late = {name: any_one * value for name, value in worst.items()}
    links = sum(v for (name, _), v in late.items() if name in ("exchange", "keeping equal"))
    busy = late.get(("memory", ""), 0.0) + late.get(("work", ""), 0.0)
    late |= {("links", ""): links, ("step", ""): links + busy}
    lookups = sum(v for (name, _), v in late.items() if name == "lookups")
    found = np.zeros(len(labels))
    for index, label in enumerate(labels):
        if label.kind == "holder" and label.unit == "s":
            found[index] = either * spread[index]
        elif label.unit == "s":
            found[index] = late.get((label.name, label.of), 0.0)
        elif label.name == "busiest holder":
            found[index] = lookups
    return found


def _turns(prediction: Prediction) -> Floats:
    """By how much a holder may be busier than other copies with adding up gradients."""
    plan, options = prediction.plan, prediction.options
    tree = tree_of(plan.cluster)
    if not options.training:
        return np.zeros(len(prediction.labels))
    rows, ids = (Flow(uneven, uneven) for uneven in _uneven_bytes(plan, options, tree))
    none = np.zeros((tree.holders, tree.levels))
    sync_s = link_time_s(tree, [rows + ids], "sync")
    idle = np.zeros((tree.holders, len(tree.columns)))
    facts = StepFacts(
        served=idle,
        read=idle,
        written=idle,
        flows={name: Flow(none, none) for name in FLOWS} | {"sync": rows, "sync_ids": ids},
        touched=tuple(np.zeros(tree.devices // size) for size in tree.sizes),
        home_samples=0.0,
        time=StepTime(idle[:, 0], idle[:, 0], none, sync_s, none[0], none[0]),
        tables=np.zeros_like(prediction.facts.tables),
    )
    # All copies together send as much whoever adds up.
    own = [label.kind == "holder" or label.unit == "s" for label in prediction.labels]
    return np.where(own, facts.vector(), 0.0)


def _uneven_bytes(plan: Plan, options: CostOptions, tree: Tree) -> tuple[Floats, Floats]:
    """Gradients and ids of one turn, holders × levels.

    Whoever adds up sends the total to the fan − 1 others, all at once instead of as they add
    up. Above the first level that has copies, speaking for a group comes in turns too.
    """
    gradients, ids = np.zeros((2, tree.holders, tree.levels))
    for table, bands in plan:
        for band in bands:
            scope, sizes = tree.scopes[band.scope], RowSizes.of(table, band, options)
            holders = tree.holders_of(band)
            holders = holders[:, band.rows_per_member(holders.shape[1]) > 0]
            for level in range(scope + 1, tree.levels + 1):
                rows = tree.fan_out(level) - 1 + 2 * (level > scope + 1)
                gradients[holders, level - 1] += rows * sizes.weight_bytes
                ids[holders, level - 1] += rows * sizes.id_bytes * (band.sync == "sparse")
    return gradients, ids
