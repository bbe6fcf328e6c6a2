"""A plan in words and numbers: what binds, what matters, what more of something would change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rowtier.cost.memory import used_bytes
from rowtier.cost.step import StepCost, step_cost
from rowtier.cost.views import VIEWS
from rowtier.evaluate.cuts import TableStory, tell_table
from rowtier.evaluate.figures import frame_of
from rowtier.evaluate.parts import Parts, step_parts
from rowtier.evaluate.phrases import amount, assumptions, ms, prices, rounds, spread, work
from rowtier.evaluate.shares import step_shares
from rowtier.evaluate.what_if import WhatIf, what_if
from rowtier.evaluate.words import cuts, placement
from rowtier.plan.binding import rules
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.units import show_bytes

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class TableWeight:
    """How much one table matters."""

    name: str
    share: float  # of the step
    lookups: float  # a device's, per step
    kept_bytes: int  # all copies
    placement: str

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        return dict(vars(self))


@dataclass(frozen=True)
class Fullest:
    """The fullest memory of a tier: rows with their optimizer state against what it holds."""

    tier: str
    place: str
    used_bytes: int
    capacity_bytes: int
    beside_bytes: int  # buffers, outputs and remap tables there

    @property
    def says(self) -> str:
        """The same in words."""
        share = self.used_bytes / self.capacity_bytes if self.capacity_bytes else 0.0
        more = f"; {show_bytes(self.beside_bytes)} beside rows" if self.beside_bytes else ""
        return (
            f"{self.tier}: {show_bytes(self.used_bytes)} of {show_bytes(self.capacity_bytes)} "
            f"({share:.0%}) on {self.place}, the fullest{more}"
        )


@dataclass(frozen=True, eq=False)
class Explanation:
    """What there is to say about a plan."""

    plan: Plan
    cost: StepCost
    table: TableStory | None = None
    what_if: WhatIf | None = None

    @property
    def verdict(self) -> str:
        """One sentence: how long a step takes, and how far that is from the best."""
        said = f"{self.plan.method} takes {ms(self.cost.step_s)} a step"
        certificate = self.plan.certificate
        if certificate is None:
            return f"{said}; no bound is proved for that, so nobody knows how good it is"
        view = VIEWS[certificate.view]
        what = "" if certificate.times_a_step else f" in what it minimises, {view.says}"
        checked = "" if certificate.proof is None else " (rowtier verify recomputes it)"
        return (
            f"{said}, at most {certificate.gap:.2%} above the best possible{what} by its "
            f"certificate{checked}"
        )

    @cached_property
    def parts(self) -> Parts:
        """Where the time of a step goes."""
        return step_parts(self.cost)

    @property
    def binds(self) -> str:
        """What stops the plan from being faster."""
        step_s = max(self.cost.step_s, 1e-300)
        order = sorted(self.parts, key=lambda name: -self.parts[name])
        most = [f"{self.parts[n] / step_s:.0%} {n}" for n in order if self.parts[n] > 0.01 * step_s]
        where = f"a step is {', '.join(most)}" if most else "a step takes no time"
        certificate = self.plan.certificate
        return f"{rules(self.cost) if certificate is None else certificate.binding}; {where}"

    @property
    def step(self) -> list[str]:
        """What is assumed, how steps differ, what the slowest holder does, and the rounds."""
        cost = self.cost
        said = [*assumptions(self.plan), spread(cost.spread), work(cost), rounds(cost)]
        return [line for line in said if line]

    @cached_property
    def memory(self) -> tuple[Fullest, ...]:
        """The fullest memory of each tier."""
        return tuple(_fullest(self.plan, self.cost))

    @property
    def more(self) -> list[str]:
        """What more of a memory or a link would change."""
        said = prices(self.plan.certificate)
        if not said:
            return ["this method gives no prices; try --what-if, or plan with joint"]
        assert self.plan.certificate is not None
        view = VIEWS[self.plan.certificate.view]
        if not self.plan.certificate.times_a_step:
            said.append(f"that is of what {self.plan.method} minimises, {view.says}")
        return said

    @property
    def statistics(self) -> list[str]:
        """What the uncertainty of the statistics does."""
        return list(_statistics(self.plan))

    @cached_property
    def tables(self) -> tuple[TableWeight, ...]:
        """All tables, those with the largest share of the step first."""
        return tuple(sorted(_weights(self.plan, self.cost), key=lambda weight: -weight.share))

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        certificate = self.plan.certificate
        facts: dict[str, Any] = {
            "verdict": self.verdict,
            "step_s": self.cost.step_s,
            "spread": self.cost.spread.to_dict(),
            "certificate": certificate and {**certificate.to_data(), "gap": certificate.gap},
            "binds": self.binds,
            "parts_s": dict(self.parts),
            "work_parts_s": self.cost.work_parts(),
            "phases": self.cost.phases(),
            "dense_s": self.plan.assumed.dense_s,
            "memory": [dict(vars(entry)) for entry in self.memory],
            "more": self.more,
            "statistics": self.statistics,
            "tables": [weight.to_dict() for weight in self.tables],
        }
        if self.table is not None:
            facts["table"] = self.table.to_dict()
        if self.what_if is not None:
            facts["what_if"] = self.what_if.to_dict()
        return facts

    def to_frame(self) -> pa.Table:
        """One line per table, as an Arrow table; `.to_pandas()` makes a DataFrame of it."""
        names = ("name", "share", "lookups", "kept_bytes", "placement")
        return frame_of({n: [getattr(weight, n) for weight in self.tables] for n in names})

    def __repr__(self) -> str:
        return f"<Explanation: {self.verdict}; what binds: {self.binds}>"


def explain(
    plan: Plan,
    table: str | None = None,
    *,
    what_if: str | Iterable[str] = (),
    options: PlanOptions | None = None,
) -> Explanation:
    """Say what binds a plan, which tables matter, and what would change it.

    With a table: why it is cut where it is. With `what_if` changes such as
    "tiers.hbm.capacity=40GiB": what planning anew for such a machine gives, with `options`.
    """
    cost = step_cost(plan.bands, plan.profile, plan.cluster, plan.order, plan.assumed)
    story = None if table is None else tell_table(plan, table)
    return Explanation(plan, cost, story, _changed(plan, what_if, options))


def _changed(
    plan: Plan, changes: str | Iterable[str], options: PlanOptions | None
) -> WhatIf | None:
    asked = (changes,) if isinstance(changes, str) else tuple(changes)
    return what_if(plan, asked, options) if asked else None


def _fullest(plan: Plan, cost: StepCost) -> Iterator[Fullest]:
    used = used_bytes(plan.bands, plan.profile, plan.cluster)
    found: dict[str, Fullest] = {}
    for pool, all_bytes in cost.memory.in_pools(plan.cluster):
        column = plan.cluster.tier_names.index(pool.tier)
        here = int(used[list(pool.holders), column].sum())
        best = found.get(pool.tier)
        if best is None or here > best.used_bytes:
            found[pool.tier] = Fullest(
                pool.tier, pool.place, here, pool.capacity_bytes, all_bytes - here
            )
    yield from found.values()


def _statistics(plan: Plan) -> Iterator[str]:
    certificate = plan.certificate
    if plan.order is None:
        yield (
            "the plan was made from a curve, which does not say how sure it is; profile data and "
            "plan from that to know"
        )
    elif certificate is None or certificate.from_statistics is None:
        yield "this method does not say what uncertain statistics do; joint and recshard do"
    if certificate is None:
        return
    if certificate.from_statistics is not None:
        what = VIEWS[certificate.view].says
        yield (
            f"{what} rises by {certificate.from_statistics:.1%} if hot rows take only the low end "
            f"of their 90 % interval; the gap of the search is {certificate.gap:.2%}"
        )
    caution = certificate.caution
    if caution is not None:
        yield (
            f"planned with {caution.confidence:.0%} confidence: that costs {caution.price:.2%} if "
            f"all goes as expected ({amount(certificate, caution.expected)}), and saves "
            f"{caution.gain:.2%} if hot rows are as cold as feared"
        )


def _weights(plan: Plan, cost: StepCost) -> Iterator[TableWeight]:
    for stats, share in zip(plan.profile.stats, step_shares(cost), strict=True):
        name, table = stats.table.name, stats.table
        alone = replace(plan.profile, stats=(stats,))
        yield TableWeight(
            name,
            share,
            plan.profile.lookups_per_step(stats),
            int(used_bytes(plan.bands, alone, plan.cluster).sum()),
            placement(cuts(plan.bands[name], plan.cluster), table.num_embeddings),
        )
