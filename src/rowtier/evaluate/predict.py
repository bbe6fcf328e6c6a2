"""What a plan will cost, from the one cost model: nothing is read but the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from rowtier.band import Band
from rowtier.cost.lookups import served_by_band
from rowtier.cost.options import CostOptions
from rowtier.cost.step import StepCost, step_cost
from rowtier.cost.touch import BagLengths, table_basis, touched
from rowtier.cost.tree import tree_of
from rowtier.evaluate.figures import (
    FLOWS,
    Label,
    StepFacts,
    frame_of,
    label_columns,
    labels_of,
)
from rowtier.fields import check_batch_size
from rowtier.plan.plan import Plan
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import TableStats
from rowtier.profile.rarefaction import Batches

if TYPE_CHECKING:
    import pyarrow as pa

Served = tuple[TableStats, Band, Ints, Floats]  # holders of a band, and lookups of each member
_NEVER = 1e-12  # samples a step that will never be seen


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a step of a plan is expected to do: time, and every figure that it is made of."""

    plan: Plan
    options: CostOptions
    cost: StepCost

    @property
    def step_s(self) -> float:
        """Seconds of a step whose loads are the mean ones."""
        return self.cost.step_s

    @property
    def verdict(self) -> str:
        """One sentence: how long a step takes, and what most of it is spent on."""
        time, cluster = self.cost.time, self.plan.cluster
        slowest = cluster.holder_name(int(time.memory_s.argmax()))
        parts = {f"the memory of {slowest}": time.slowest_memory_s}
        parts[f"the work of {cluster.holder_name(time.slowest)}"] = time.slowest_work_s
        for level, seconds in zip(cluster.levels, time.level_s, strict=True):
            parts[f"the {level.name} links"] = float(seconds)
        most = max(parts, key=lambda name: parts[name])
        share = f", {parts[most] / self.step_s:.0%} of it in {most}" if self.step_s else ""
        return f"{self.plan.method} takes {1e3 * self.step_s:.4g} ms a step{share}"

    @cached_property
    def facts(self) -> StepFacts:
        """The figures as arrays."""
        plan, cost = self.plan, self.cost
        distinct = _distinct(plan)
        served = list(served_by_band(plan.bands, plan.profile, plan.cluster, plan.order))
        return StepFacts(
            served=_served(plan, served),
            read=cost.read_bytes,
            written=cost.written_bytes,
            flows={name: cost.links.flows[name] for name in FLOWS},
            touched=tuple(
                np.full(plan.cluster.num_groups(level), rows)
                for level, rows in enumerate(distinct.sum(axis=0))
            ),
            home_samples=_home_samples(plan, served),
            time=cost.time,
            tables=_tables(plan, cost, distinct[:, -1]),
        )

    @cached_property
    def labels(self) -> tuple[Label, ...]:
        """What each figure is."""
        return labels_of(self.plan.profile, self.plan.cluster, self.options)

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        facts = self.facts
        scopes = self.plan.cluster.scopes
        return {
            "verdict": self.verdict,
            "method": self.plan.method,
            "batch_size": self.plan.profile.batch_size,
            "batches": self.plan.profile.batches,
            "read_only": not self.options.training,
            **self.cost.to_dict(),
            "lookups": facts.served.tolist(),
            "rows_touched": dict(zip(scopes, facts.distinct.tolist(), strict=True)),
            "samples_at_home": facts.home_samples,
        }

    def to_frame(self) -> pa.Table:
        """One line per figure, as an Arrow table; `.to_pandas()` makes a DataFrame of it."""
        values = self.facts.vector()
        return frame_of(label_columns(self.labels) | {"predicted": values.tolist()})

    def __repr__(self) -> str:
        time = self.cost.time
        return (
            f"<Prediction: {self.verdict}; memory {1e3 * time.slowest_memory_s:.4g} ms, "
            f"work {1e3 * time.slowest_work_s:.4g} ms, links {1e3 * time.links_s:.4g} ms>"
        )


def predict(
    plan: Plan,
    options: CostOptions | None = None,
    *,
    batch_size: int | None = None,
    batches: Batches | None = None,
    read_only: bool = False,
) -> Prediction:
    """Say what a step of a plan costs, with other batches than the plan's if given.

    Without `options` the plan's own assumptions hold. `read_only`: of a step that trains nothing,
    whatever the options say.
    """
    options = plan.assumed if options is None else options
    options = options.reading if read_only else options
    if batch_size is not None:
        profile = replace(plan.profile, batch_size=check_batch_size(batch_size))
        plan = replace(plan, profile=profile)
    if batches is not None:
        plan = replace(plan, profile=plan.profile.with_batches(batches))
    cost = step_cost(plan.bands, plan.profile, plan.cluster, plan.order, options)
    return Prediction(plan, options, cost)


def _distinct(plan: Plan) -> Floats:
    """Rows that one group of each level (column) is expected to touch, per table (row)."""
    tree = tree_of(plan.cluster)
    rows = []
    for stats in plan.profile.stats:
        basis = table_basis(stats, plan.profile, tree.sizes)
        rows.append(basis[touched(0) : touched(tree.levels) + 1] @ stats.curve.widths)
    return np.stack(rows)


def _tables(plan: Plan, cost: StepCost, distinct: Floats) -> Floats:
    """Each table's figures, in the order of `table_labels`."""
    devices = plan.cluster.num_devices
    rows = [
        np.concatenate(
            [
                [devices * plan.profile.lookups_per_step(stats), rows_touched],
                *(table.read_bytes, table.written_bytes, table.forward_bytes),
                *(table.id_bytes, table.sync_bytes, table.sync_id_bytes),
            ]
        )
        for stats, table, rows_touched in zip(
            plan.profile.stats, cost.tables, distinct, strict=True
        )
    ]
    return np.stack(rows)


def _served(plan: Plan, served: list[Served]) -> Floats:
    """Lookups per holder and tier."""
    tree = tree_of(plan.cluster)
    found = np.zeros((tree.holders, len(tree.columns)))
    for _, band, holders, lookups in served:
        found[holders, tree.columns[band.tier]] += lookups
    return found


def _home_samples(plan: Plan, served: list[Served]) -> float:
    """Samples a step that find all their rows on their own device.

    Features count as independent of each other. Where a table is cut by columns, the piece
    that is least at home decides.
    """
    stay = np.ones(plan.cluster.num_devices)
    for stats, away in _away(plan, served):
        for feature in stats.features:
            alone = replace(stats, features=(feature,))
            stay *= 1 - BagLengths.of(alone).sums(away)
    expected = float(plan.profile.batch_size * stay.sum())
    return expected if expected > _NEVER else 0.0


def _away(plan: Plan, served: list[Served]) -> Iterator[tuple[TableStats, Floats]]:
    """Per table the share of each device's lookups that other holders serve."""
    tree = tree_of(plan.cluster)
    parts: dict[str, list[tuple[tuple[int, int], Floats]]] = {}
    for stats, band, holders, lookups in served:
        group = tree.sizes[tree.scopes[band.scope]] * plan.profile.lookups_per_step(stats)
        here = np.zeros(tree.holders)
        here[holders] = lookups / max(group, 1e-300)
        span = band.columns or (0, stats.table.embedding_dim)
        parts.setdefault(stats.table.name, []).append((span, here[: tree.devices]))
    for stats in plan.profile.stats:
        yield stats, 1 - np.minimum(_least_at_home(parts[stats.table.name], tree.devices), 1)


def _least_at_home(parts: list[tuple[tuple[int, int], Floats]], devices: int) -> Floats:
    least = np.ones(devices)
    for first, last in pairwise(sorted({edge for span, _ in parts for edge in span})):
        inside = [here for span, here in parts if span[0] <= first and last <= span[1]]
        least = np.minimum(least, np.sum(inside, axis=0))
    return least
