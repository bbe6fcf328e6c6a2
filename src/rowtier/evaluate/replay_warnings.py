"""What to know before trusting a replay: data that is not new, or unlike the profiled data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rowtier.evaluate.counting import Counter
from rowtier.evaluate.replayed import Figure
from rowtier.plan.plan import Plan
from rowtier.profile.rarefaction import Batches
from rowtier.profile.readers import Source
from rowtier.units import show_count

_CHANCE = 10.0  # unseen rows expected, none found: the data is what was profiled
_WORTH_SAYING = 0.01  # of the figure: less changes no decision, even if chance does not explain it
_POLICIES = {"clip": "clipped", "drop": "dropped", "hash": "hashed"}


def warnings_of(
    plan: Plan,
    source: Source,
    counter: Counter,
    steps: int,
    figures: Sequence[Figure],
    batches: Batches,
) -> Iterator[str]:
    """All warnings, the most important first."""
    if counter.outside:
        yield (
            f"{counter.outside:,} ids have no row in their table and were {_policies(counter)}; "
            "the prediction covers that only if the profiled data had such ids too"
        )
    else:
        yield from _not_new(plan, source, counter, steps, figures)
    yield from _unlike(plan, figures, batches)


def _policies(counter: Counter) -> str:
    """What happened to ids without a row, in words."""
    tables = [homes.table.with_policy(counter.on_out_of_range) for homes in counter.homes]
    found = {table.on_out_of_range for table in tables}
    return " or ".join(word for policy, word in _POLICIES.items() if policy in found)


def _not_new(
    plan: Plan, source: Source, counter: Counter, steps: int, figures: Sequence[Figure]
) -> Iterator[str]:
    """Whether the data looks like what was profiled.

    Data that is new looks up rows that the profile never saw, and the profile itself tells
    how many to expect. If it saw all rows, only numbers of samples and lookups can tell.
    """
    if counter.unseen:
        return
    if _expected_unseen(plan, counter.step_samples, steps) > _CHANCE:
        found = "no row is new"
    elif _as_many(plan, source, counter, steps, figures):
        found = "there are as many samples and lookups, and no row is new"
    else:
        return
    yield (
        f"this looks like the data that the plan was made from, as {found}: what was counted there "
        "comes true by itself. Replay other data, or profile --before 50% and replay --after 50%"
    )


def _expected_unseen(plan: Plan, step_samples: int, steps: int) -> float:
    """How many rows that the profile never saw new data would touch, step by step."""
    expected = 0.0
    for entry in plan.profile.stats:
        curve = entry.curve
        new = curve.stops > entry.touched
        touched = step_samples * entry.lookups_per_sample * curve.probabilities[new]
        expected += steps * float(curve.widths[new] @ np.minimum(1.0, touched))
    return expected


def _as_many(
    plan: Plan, source: Source, counter: Counter, steps: int, figures: Sequence[Figure]
) -> bool:
    """Whether samples and lookups are as many as in the profiled data, as far as they are known."""
    if source.parts[0].first_sample:
        return False  # a window that begins later
    lookups = {
        figure.label.of: round(figure.replayed * steps)
        for figure in figures
        if figure.label.kind == "table" and figure.label.name == "lookups"
    }
    for entry in plan.profile.stats:
        if source.samples != entry.samples:
            return False
        counted = lookups.get(entry.table.name, 0)
        everything = steps * counter.step_samples == entry.samples
        if counted > entry.lookups or (everything and counted != entry.lookups):
            return False
    return True


def _unlike(plan: Plan, figures: Sequence[Figure], batches: Batches) -> Iterator[str]:
    """Whether the step's time or its rows are farther off than chance explains."""
    for figure in figures:
        label = figure.label
        decides = label.name == "step" or (
            label.name == "rows touched" and label.at == plan.cluster.top
        )
        off = not figure.as_expected and abs(figure.error) > _WORTH_SAYING
        if label.kind == "step" and decides and off:
            does = "takes" if label.unit == "s" else "touches"
            yield (
                f"a step {does} {_told(figure, figure.replayed)}, outside of its interval: "
                f"{_told(figure, figure.low)} to {_told(figure, figure.high)} were expected of "
                f"data like the profiled data. {_reason(figure, batches, plan.profile.batches)}"
            )


def _reason(figure: Figure, batches: Batches, expected: Batches) -> str:
    if batches != expected and figure.replayed < figure.low:
        return "Samples that follow each other share rows; --batches shuffled leaves that out"
    return "This data differs from it: profile newer data, or more"


def _told(figure: Figure, value: float) -> str:
    return f"{1e3 * value:.4g} ms" if figure.label.unit == "s" else f"{show_count(value)} rows"
