"""What really happens: real batches go through a plan's placement, and everything is counted.

Nothing is modelled but time, which follows from the counted bytes by the same rule as in
predictions. Beside each figure stands what was predicted, and how far that may be off by
chance: see `intervals.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rowtier.cost.options import CostOptions
from rowtier.errors import UserError
from rowtier.evaluate.batches import StepWindow, Wanted, windows
from rowtier.evaluate.counting import Counter
from rowtier.evaluate.figures import Label, StepFacts, frame_of, label_columns
from rowtier.evaluate.intervals import intervals
from rowtier.evaluate.predict import Prediction, predict
from rowtier.evaluate.replay_warnings import warnings_of
from rowtier.evaluate.replayed import PERCENTILES, Figure
from rowtier.evaluate.shuffled import Listener, shuffled_windows
from rowtier.plan.plan import Plan
from rowtier.profile.curve import Floats
from rowtier.profile.forecast import knows_neighbours
from rowtier.profile.rarefaction import BATCHES, Batches
from rowtier.profile.readers import Between, Edge, Source, TimeWindow, open_source
from rowtier.reading import StrPath
from rowtier.tables import OutOfRange

if TYPE_CHECKING:
    import pyarrow as pa

Progress = Callable[[float], None]


@dataclass(frozen=True, eq=False)
class Replay:
    """What was counted in some steps, beside what was predicted."""

    prediction: Prediction
    steps: int
    samples: int
    lookups: int
    unseen: int  # rows, step by step, that the profile never saw
    figures: tuple[Figure, ...]
    worst: StepFacts  # the slowest step
    warnings: tuple[str, ...] = ()
    unseen_lookups: int = 0  # on rows that the profile never saw
    out_of_range: int = 0  # ids that a table has no row for
    batches: Batches = "shuffled"

    @property
    def step_s(self) -> float:
        """Seconds of a step, mean over the steps."""
        return self.figure("step").replayed

    @cached_property
    def _by_label(self) -> dict[tuple[str, str, str], Figure]:
        return {(f.label.of, f.label.name, f.label.at): f for f in self.figures}

    def figure(self, name: str, of: str = "", at: str = "") -> Figure:
        """One figure by its name, and by what it belongs to."""
        found = self._by_label.get((of, name, at))
        if found is None:
            raise KeyError(f"no figure {name!r} of {of!r} at {at!r}; `to_frame()` lists them")
        return found

    @property
    def verdict(self) -> str:
        """One sentence: how long a step takes, at its worst, and what was predicted."""
        step = self.figure("step")
        assert step.percentiles is not None
        return (
            f"{self.prediction.plan.method} takes {1e3 * step.replayed:.4g} ms a step over "
            f"{self.steps:,} step{'s' if self.steps > 1 else ''} ({1e3 * step.worst:.4g} ms the "
            f"worst); predicted were {1e3 * step.predicted:.4g} ms, {step.error:+.1%}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        return {
            "verdict": self.verdict,
            "warnings": list(self.warnings),
            "steps": self.steps,
            "samples": self.samples,
            "lookups": self.lookups,
            "unseen_rows": self.unseen,
            "unseen_lookups": self.unseen_lookups,
            "out_of_range": self.out_of_range,
            "batches": self.batches,
            "batch_size": self.prediction.plan.profile.batch_size,
            "read_only": not self.prediction.options.training,
            "step_s": self.step_s,
            "predicted_spread": self.prediction.cost.spread.to_dict(),
            "figures": [figure.to_dict() for figure in self.figures],
        }

    def to_frame(self) -> pa.Table:
        """One line per figure, as an Arrow table; `.to_pandas()` makes a DataFrame of it."""
        columns = label_columns([figure.label for figure in self.figures])
        names = ("replayed", "predicted", "error", "low", "high", "spread", "worst")
        for name in names:
            columns[name] = [getattr(figure, name) for figure in self.figures]
        for place, percent in enumerate(PERCENTILES):
            columns[f"p{percent}"] = [
                None if figure.percentiles is None else figure.percentiles[place]
                for figure in self.figures
            ]
        return frame_of(columns)

    def __repr__(self) -> str:
        return f"<Replay: {self.verdict}; {self.lookups:,} lookups>"


_NO_NEIGHBOURS = (
    "predictions are for shuffled batches: the profile does not know which samples are "
    "neighbours; profile the data in its order, without --sample"
)


def replay(
    plan: Plan,
    data: StrPath | Iterable[Any],
    batch_size: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    after: Edge | None = None,
    progress: Progress | None = None,
    *,
    before: Edge | None = None,
    time: str | None = None,
    batches: Batches | None = None,
    options: CostOptions | None = None,
    on_out_of_range: OutOfRange | None = None,
) -> Replay:
    """Count what a plan's placement does on real batches, step by step.

    A step takes `batch_size` samples (the plan's, if not given) for every device. With
    `batches="shuffled"` they are drawn from anywhere in the data, each sample at most once;
    "in_time_order" they follow each other; if not given, it is what the plan was made for.
    `before` and `after` take a window of the data: shares of its samples or, with `time`, values
    of that column. `steps` are so many only, drawn by `seed`; batches of an iterable whose
    length only reading tells give their first steps. `on_out_of_range` is for all tables,
    instead of what each of them says.
    """
    _check(plan, batch_size, steps)
    batches = _order(plan, batches)
    known = batches == "shuffled" or all(knows_neighbours(stats) for stats in plan.profile.stats)
    expected: Batches = batches if known else "shuffled"
    options = plan.assumed if options is None else options
    prediction = predict(plan, options, batch_size=batch_size, batches=expected)
    profile = prediction.plan.profile
    counter = Counter(plan, profile.batch_size, options, on_out_of_range)
    features = list(dict.fromkeys(name for table, _ in plan for name in table.features))
    source = TimeWindow(before, after, time).of(open_source(data, features))
    wanted = Wanted(counter.step_samples, steps, seed)
    tally, told = _Tally(prediction.labels), [] if known else [_NO_NEIGHBOURS]
    listener = Listener(counter.check, told.append, progress or _ignore)
    for window in _windows(source, features, wanted, batches, listener):
        for _, facts in counter.add(window):
            tally.add(facts)
        if progress is not None:
            progress(tally.share(steps, window.done))
    if not tally.steps:
        raise _no_step(plan, profile.batch_size, counter.step_samples, source)
    figures = tuple(tally.figures(prediction))
    return Replay(
        prediction,
        tally.steps,
        tally.steps * counter.step_samples,
        counter.lookups,
        counter.unseen,
        figures,
        tally.worst_step,
        (*told, *warnings_of(prediction.plan, source, counter, tally.steps, figures, batches)),
        counter.unseen_lookups,
        counter.outside,
        batches,
    )


def _windows(
    source: Source, features: list[str], wanted: Wanted, batches: Batches, listener: Listener
) -> Iterator[StepWindow]:
    """The steps' samples, in the order of the data or drawn from all of it."""
    if batches == "shuffled":
        return shuffled_windows(source, features, wanted, listener)
    return windows(source, features, wanted)


def _check(plan: Plan, batch_size: int | None, steps: int | None) -> None:
    if plan.order is None:
        raise UserError(
            "the plan has no row order, because it was made from a curve, so nobody knows which "
            "row lies where: profile the data with `rowtier profile DATA --tables tables.yaml -o "
            "profile/`, plan from that, and replay the new plan"
        )
    for name, value in (("batch_size", batch_size), ("steps", steps)):
        if value is not None and value < 1:
            raise UserError(f"{name} {value}: give a whole number, 1 or more")


def _order(plan: Plan, batches: Batches | None) -> Batches:
    """The order of samples that was asked for, or else the one that the plan was made for."""
    if batches is None:
        return plan.profile.batches
    if batches not in BATCHES:
        raise UserError(f"batches {batches!r}: accepted are {', '.join(BATCHES)}")
    return batches


def _ignore(_: float) -> None:
    """Progress that nobody watches."""


def _no_step(plan: Plan, batch_size: int, step_samples: int, source: Source) -> UserError:
    count = source.samples
    there = "too few samples" if count is None else f"{count:,} samples, too few"
    asked = " in the window that was asked for" if isinstance(source, Between) else ""
    return UserError(
        f"the data has{asked} {there} for a step, which takes {step_samples:,}: "
        f"{batch_size:,} for each of {plan.cluster.num_devices:,} devices. Give more data, or a "
        "smaller --batch-size"
    )


class _Tally:
    """Means, spreads and percentiles while steps come in."""

    def __init__(self, labels: tuple[Label, ...]):
        self.labels = labels
        self.steps = 0
        self._kept = [
            i for i, label in enumerate(labels) if label.kind in ("step", "tier", "level")
        ]
        self._series: list[Floats] = []
        self._first = self._sum = self._squares = self._worst = np.zeros(0)
        self.worst_step: StepFacts

    def add(self, facts: StepFacts) -> None:
        """Note a step."""
        vector = facts.vector()
        if not self.steps:
            self._first = vector
            self._sum, self._squares = np.zeros_like(vector), np.zeros_like(vector)
            self._worst, self.worst_step = vector.copy(), facts
        if vector[0] > self._worst[0]:
            self.worst_step = facts
        off = vector - self._first  # so that squares do not cancel
        self._sum += off
        self._squares += off**2
        np.maximum(self._worst, vector, out=self._worst)
        self._series.append(vector[self._kept])
        self.steps += 1

    def share(self, steps: int | None, done: float) -> float:
        """How much of the work is done."""
        return done if steps is None else max(done, min(1.0, self.steps / steps))

    def figures(self, prediction: Prediction) -> Iterator[Figure]:
        """All figures that are not zero both ways."""
        count, predicted = self.steps, prediction.facts.vector()
        mean = self._first + self._sum / count
        variance = (self._squares - self._sum**2 / count) / max(1, count - 1)
        spread = np.sqrt(np.maximum(variance, 0))
        low, high = intervals(prediction, spread, count)
        percentiles = np.percentile(np.array(self._series), PERCENTILES, axis=0).T
        shown = dict(zip(self._kept, map(tuple, percentiles.tolist()), strict=True))
        for index, label in enumerate(self.labels):
            if mean[index] or predicted[index] or label.kind == "step":
                events = mean[index] * count / label.event_bytes
                yield Figure(
                    label,
                    replayed=float(mean[index]),
                    spread=float(spread[index]),
                    worst=float(self._worst[index]),
                    predicted=float(predicted[index]),
                    low=float(low[index]),
                    high=float(high[index]),
                    events=float(events),
                    percentiles=shown.get(index),
                )
