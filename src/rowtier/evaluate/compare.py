"""Plans side by side: which is the fastest, by how much, and where the difference comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rowtier.cost.lookups import served_lookups
from rowtier.cost.memory import used_bytes
from rowtier.cost.options import CostOptions
from rowtier.cost.spread import StepSpread
from rowtier.cost.step import step_cost
from rowtier.errors import InfeasibleError, MismatchError, UserError
from rowtier.evaluate.baselines import plan_baseline
from rowtier.evaluate.figures import frame_of
from rowtier.evaluate.parts import Parts, difference, reasons, replayed_parts, step_parts
from rowtier.evaluate.phrases import more_ms
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.plan.serving import served
from rowtier.reading import StrPath

if TYPE_CHECKING:
    import pyarrow as pa

    from rowtier.evaluate.replay import Replay

_SAME = 1.005  # times as long: not worth a word


@dataclass(frozen=True, eq=False)
class PlanLoad:
    """What one plan asks of every holder: rows are holders, columns are tiers."""

    name: str
    tiers: tuple[str, ...]
    used_bytes: NDArray[np.int64]  # of rows
    kept_bytes: NDArray[np.int64]  # of everything: buffers and remap tables too
    lookups: NDArray[np.float64]  # per step
    memory_s: float  # of a step, on the slowest holder
    work_s: float
    links_s: float
    parts: Parts  # of the predicted step; they add up to it
    spread: StepSpread  # of the predicted steps
    replayed: Replay | None = None

    @classmethod
    def of(
        cls,
        name: str,
        plan: Plan,
        replayed: Replay | None = None,
        options: CostOptions | None = None,
    ) -> PlanLoad:
        """Measure a plan by the cost model, under its own assumptions if none are given."""
        options = plan.assumed if options is None else options
        used = used_bytes(plan.bands, plan.profile, plan.cluster)
        lookups = served_lookups(plan.bands, plan.profile, plan.cluster, plan.order)
        cost = step_cost(plan.bands, plan.profile, plan.cluster, plan.order, options)
        return cls(
            name,
            plan.cluster.tier_names,
            used,
            cost.memory.total,
            lookups,
            cost.time.slowest_memory_s,
            cost.time.slowest_work_s,
            cost.time.links_s,
            step_parts(cost),
            cost.spread,
            replayed,
        )

    @property
    def step_s(self) -> float:
        """Seconds of a step whose loads are the mean ones."""
        return self.memory_s + self.work_s + self.links_s

    @property
    def judged_s(self) -> float:
        """Seconds of a step by which plans are compared: replayed if there is data."""
        return self.step_s if self.replayed is None else self.replayed.step_s

    @property
    def judged_parts(self) -> Parts:
        """The parts of those seconds."""
        return self.parts if self.replayed is None else replayed_parts(self.replayed)

    @property
    def busiest_lookups(self) -> float:
        """Lookups per step on the busiest holder."""
        return float(self.lookups.sum(axis=1).max())

    @property
    def imbalance(self) -> float:
        """Busiest holder over the mean of those that hold anything."""
        busy = self.lookups.sum(axis=1)[self.used_bytes.sum(axis=1) > 0]
        return float(busy.max() / busy.mean()) if busy.sum() else 1.0

    @property
    def slow_share(self) -> float:
        """Share of all lookups that a tier other than the fastest serves."""
        total = self.lookups.sum()
        return float(self.lookups[:, 1:].sum() / total) if total else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        facts = {
            "plan": self.name,
            "step_s": self.step_s,
            "spread": self.spread.to_dict(),
            "memory_s": self.memory_s,
            "work_s": self.work_s,
            "links_s": self.links_s,
            "parts_s": dict(self.parts),
            "busiest_lookups": self.busiest_lookups,
            "imbalance": self.imbalance,
            "slow_share": self.slow_share,
            "tiers": list(self.tiers),
            "used_bytes": self.used_bytes.tolist(),
            "kept_bytes": self.kept_bytes.tolist(),
            "lookups": self.lookups.tolist(),
        }
        if self.replayed is not None:
            step = self.replayed.figure("step").to_dict()
            facts["replayed"] = {**step, "parts_s": dict(self.judged_parts)}
        return facts

    def _counted(self, name: str) -> float | None:
        return None if self.replayed is None else self.replayed.figure(name).replayed

    def steps(self) -> dict[str, tuple[float, float | None]]:
        """What steps take on average and at their percentiles: predicted, and replayed."""
        spread, replayed = self.spread, self.replayed
        mean_s: float | None = None
        ends_s: tuple[float | None, ...] = (None, None, None)
        if replayed is not None:
            mean_s = replayed.step_s
            ends_s = replayed.figure("step").percentiles or ends_s
        return {
            "step on average": (spread.expected_s, mean_s),
            "step, p50": (spread.p50_s, ends_s[0]),
            "step, p99": (spread.p99_s, ends_s[2]),
        }

    def figures(self) -> dict[tuple[str, str], tuple[float, float | None]]:
        """The figures by name and unit: predicted, and replayed where there is data."""
        seconds = {
            "step": self.step_s,
            "memory": self.memory_s,
            "work": self.work_s,
            "links": self.links_s,
        }
        found: dict[tuple[str, str], tuple[float, float | None]] = {
            (name, "s"): (value, self._counted(name)) for name, value in seconds.items()
        }
        found |= {(name, "s"): pair for name, pair in self.steps().items()}
        counted = self.judged_parts if self.replayed else {}
        found |= {(name, "s"): (value, counted.get(name)) for name, value in self.parts.items()}
        for column, tier in enumerate(self.tiers):
            found[f"most rows in {tier}", "bytes"] = float(self.used_bytes[:, column].max()), None
            found[f"most in {tier}", "bytes"] = float(self.kept_bytes[:, column].max()), None
        found["slow share", "share"] = self.slow_share, None
        found["imbalance", "×"] = self.imbalance, None
        return found


@dataclass(frozen=True, eq=False)
class Comparison:
    """Loads of several plans for the same tables on the same cluster."""

    loads: tuple[PlanLoad, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)  # baselines that do not fit: why
    notes: tuple[str, ...] = ()  # what to know when reading it
    read_only: bool = False  # nothing is trained

    @property
    def ranked(self) -> list[PlanLoad]:
        """The loads, the fastest first."""
        return sorted(self.loads, key=lambda load: load.judged_s)

    @property
    def best(self) -> PlanLoad:
        """The plan with the shortest step."""
        return self.ranked[0]

    @property
    def verdict(self) -> str:
        """One sentence: which plan is the fastest, and how much faster than the next."""
        best, *others = self.ranked
        said = f"{best.name} takes {1e3 * best.judged_s:.4g} ms a step"
        if best.replayed is not None:
            said += " on the data"
        if not others or not best.judged_s:
            return said
        following, last = others[0], others[-1]
        said += f", {_times(following, best)} {following.name}"
        if last is not following:
            said += f" and {_times(last, best)} {last.name}"
        return said

    def difference(self, load: PlanLoad) -> dict[str, float]:
        """Seconds that a plan takes more than the best, by part; they add up exactly."""
        return difference(self.best.judged_parts, load.judged_parts)

    def why(self, load: PlanLoad) -> str:
        """Where the difference to the best plan comes from, in words."""
        more_s = load.judged_s - self.best.judged_s
        return f"{load.name} {more_ms(more_s)}: {reasons(self.difference(load))}"

    @property
    def explanation(self) -> list[str]:
        """One line for the next and the last plan: where they lose time."""
        others = [load for load in self.ranked if load.judged_s > self.best.judged_s]
        return [self.why(load) for load in dict.fromkeys((*others[:1], *others[-1:]))]

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        plans = [
            load.to_dict() | {"more_than_best_s": self.difference(load)} for load in self.loads
        ]
        return {
            "verdict": self.verdict,
            "why": self.explanation,
            "best": self.best.name,
            "left_out": dict(self.left_out),
            "notes": list(self.notes),
            "read_only": self.read_only,
            "plans": plans,
        }

    def to_frame(self) -> pa.Table:
        """One line per plan and figure, as an Arrow table; `.to_pandas()` makes a DataFrame."""
        lines = [(load.name, *key, *both) for load in self.loads for key, both in _items(load)]
        names = ("plan", "name", "unit", "predicted", "replayed")
        return frame_of(dict(zip(names, map(list, zip(*lines, strict=True)), strict=True)))

    def __repr__(self) -> str:
        return f"<Comparison: {self.verdict}; {'; '.join(self.explanation) or 'one plan'}>"


def _times(slower: PlanLoad, faster: PlanLoad) -> str:
    ratio = slower.judged_s / faster.judged_s
    return "as fast as" if ratio < _SAME else f"{ratio:.2f}× faster than"


def _items(load: PlanLoad) -> Iterable[tuple[tuple[str, str], tuple[float, float | None]]]:
    return load.figures().items()


def compare(
    plans: Mapping[str, Plan],
    data: StrPath | Iterable[Any] | None = None,
    *,
    baselines: Iterable[str] = (),
    options: CostOptions | None = None,
    **replaying: Any,
) -> Comparison:
    """Compare plans made for the same tables and the same cluster.

    `baselines` are methods, planned on the first plan's statistics and cluster; one that does
    not fit is left out and named. All are measured under the same `options`. With `data` every
    plan is replayed on it, and `replaying` goes to `replay`: `batch_size`, `steps`, `seed`,
    `before`, `after`, `time`, `batches` and so on. Without `batches`, samples come in the order
    that the first plan was made for.
    """
    if not plans:
        raise UserError("there is no plan to compare; give at least one")
    first_name, first = next(iter(plans.items()))
    for name, plan in plans.items():
        _check_alike(first_name, first, name, plan)
    if replaying and data is None:
        raise UserError(f"{', '.join(replaying)}: only for replaying; give data too")
    if data is not None and replaying.get("batches") is None:
        replaying["batches"] = getattr(first, "batches", "shuffled")
    plans, serving = _all_serving(plans)
    first = plans[first_name]
    made, notes = _on_one_curve(plans)
    left_out = {}
    for method in baselines:
        name = method if method not in made else f"{method} (baseline)"
        try:
            made[name] = plan_baseline(method, made[first_name])
        except InfeasibleError as error:
            left_out[name] = str(error)
    options = first.assumed if options is None else options
    options = options.reading if first.serves else options
    loads = tuple(_load(name, plan, data, options, replaying) for name, plan in made.items())
    return Comparison(loads, left_out, (*serving, *notes), read_only=not options.training)


def _all_serving(plans: Mapping[str, Plan]) -> tuple[dict[str, Plan], tuple[str, ...]]:
    """Where one plan serves, all are measured as if they did: training has other costs."""
    serving = [name for name, plan in plans.items() if plan.serves]
    if len(serving) in (0, len(plans)):
        return dict(plans), ()
    note = f"{serving[0]} serves, so all plans are measured without training and optimizer state"
    found = {}
    for name, plan in plans.items():
        options = {**plan.origin.get("options", {}), "serve": True}
        options.pop("dense_s", None)
        seen = plan.profile if plan.serves else served(plan.profile)
        found[name] = replace(plan, profile=seen, origin={**plan.origin, "options": options})
    return found, (note,)


def _on_one_curve(plans: Mapping[str, Plan]) -> tuple[dict[str, Plan], tuple[str, ...]]:
    """A plan made with caution expects less heat: all plans are measured by one expectation."""
    bold = [n for n, p in plans.items() if p.certificate is None or p.certificate.caution is None]
    chosen = next(iter(bold), next(iter(plans)))
    profile = plans[chosen].profile
    if any(stats.arranged for plan in plans.values() for stats in plan.profile.stats):
        return dict(plans), _differing(plans)  # each has a row order of its own, of the same rows
    if all(plan.profile.fingerprint == profile.fingerprint for plan in plans.values()):
        return dict(plans), ()
    orders = {plan.profile.batches for plan in plans.values()}
    what = "heat of hot rows" if len(orders) == 1 else "batches, shuffled and in time order"
    if len({tuple(table.dtype for table, _ in plan) for plan in plans.values()}) > 1:
        what = "types of rows"
    note = f"the plans expect different {what}; all are measured by what {chosen} expects"
    if len(orders) > 1:
        note += f", batches {profile.batches.replace('_', ' ')}"
    return {name: replace(plan, profile=profile) for name, plan in plans.items()}, (note,)


def _differing(plans: Mapping[str, Plan]) -> tuple[str, ...]:
    """What is said of plans that cannot be measured by one expectation."""
    cautious = [n for n, p in plans.items() if PlanOptions.of(p).confidence is not None]
    if cautious or len({plan.profile.batches for plan in plans.values()}) > 1:
        return (
            "some plans keep rows in the order of an earlier plan, so each is measured by the heat "
            "and the batches that it expects itself",
        )
    return ()


def _load(
    name: str,
    plan: Plan,
    data: StrPath | Iterable[Any] | None,
    options: CostOptions,
    replaying: Mapping[str, Any],
) -> PlanLoad:
    if data is None:
        return PlanLoad.of(name, plan, options=options)
    from rowtier.evaluate.replay import replay  # what it compiles takes time to import

    found = replay(plan, data, options=options, **replaying)
    return PlanLoad.of(name, found.prediction.plan, found, options)


def _check_alike(first_name: str, first: Plan, name: str, plan: Plan) -> None:
    if plan.made_for != first.made_for:
        raise MismatchError(
            f"{first_name} was made for profile {first.made_for.profile} and cluster "
            f"{first.made_for.cluster}, {name} for profile {plan.made_for.profile} and cluster "
            f"{plan.made_for.cluster}: compare plans of the same two"
        )
