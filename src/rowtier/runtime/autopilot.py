"""A training loop that changes its plan when the data has moved on and moving rows pays.

    pilot = Autopilot(embeddings, every=2000, horizon=20_000)
    for batch in batches:
        ...
        embeddings.optimizer.step()
        pilot.step()

At every check the counts since the last one are a profile. If a step costs more on it than it was
planned to, the first rank looks for plans between the one that is run and the best one, takes the
one that has gained most after `horizon` steps, less the time that moving there takes, and tells the
others. What decides are counts and predicted times, never the clock, so a run that is repeated
decides alike.
"""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rowtier.cluster import Cluster
from rowtier.cost.step import step_cost
from rowtier.errors import MismatchError, RowtierError, UserError
from rowtier.evaluate.budget import MovePath, Stage, move_path
from rowtier.evaluate.diff import diff
from rowtier.evaluate.drift import drift, kept_plan
from rowtier.evaluate.phrases import ms
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.plan.unpicked import unpicked_statistics
from rowtier.profile.profile import Profile
from rowtier.reading import StrPath
from rowtier.runtime.heat import told_by_all
from rowtier.runtime.module import ShardedEmbeddings
from rowtier.runtime.planning_process import PlanningProcess
from rowtier.units import parse_bytes, show_bytes, show_count

if TYPE_CHECKING:
    from rowtier.runtime.migrate import Migration

CALL = "Autopilot.step()"
_MOST_STAGES = 12  # plans on the way to the best one whose moves are timed
_log = logging.getLogger("rowtier.autopilot")


@dataclass(frozen=True)
class PilotDecision:
    """What was found at a check, and what was done; the same on all ranks."""

    step: int  # calls of `Autopilot.step` up to the check
    current_s: float | None  # a step under the plan that was run, on the new counts, if known
    best_s: float | None  # and under the plan that gains most within the horizon
    move_bytes: int  # to get there: to other holders, and to other tiers
    move_s: float
    pays_after_steps: float  # infinite if it is not sure that it ever does
    moved: bool
    words: str

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        facts = dict(vars(self))
        if not math.isfinite(self.pays_after_steps):
            facts["pays_after_steps"] = None
        return facts


class Autopilot:
    """Looks every so many steps whether another plan pays, and goes on under it if so.

    `step` is called once a training step, by all ranks, after `optimizer.step()`; the embeddings
    must be made with `heat_counts`. `every`: steps from one check to the next. `horizon`: steps
    within which a move must have paid. `cluster`, `method` and `options` are those of new plans,
    by default the plan's cluster and wishes. `move_budget`: bytes that one move may take.
    `tolerance`: no other plan is looked for, which takes time, while a step costs at most this
    share more than the plan was made for. `due`: steps after a check at which its decision is
    taken up; until then the first rank plans in a process of its own, while all train on. With 0
    all wait for it. `extra_memory` is that of `ShardedEmbeddings.migrate`.

    `decisions` lists what was found at every check; each is logged as `rowtier.autopilot`, too.
    """

    def __init__(
        self,
        embeddings: ShardedEmbeddings,
        every: int,
        horizon: int,
        *,
        cluster: Cluster | StrPath | None = None,
        method: str = "joint",
        options: PlanOptions | None = None,
        move_budget: int | str | None = None,
        tolerance: float = 0.02,
        due: int = 0,
        extra_memory: int | str = "256MiB",
    ):
        for name, value in (("every", every), ("horizon", horizon)):
            if not isinstance(value, int) or value < 1:
                raise UserError(f"{name} {value!r}: give a number of steps, 1 or more")
        if not isinstance(due, int) or not 0 <= due < every:
            raise UserError(f"due {due!r}: give a number of steps, less than every, {every}")
        if not tolerance >= 0:
            raise UserError(f"tolerance {tolerance}: give a share of a step, 0 or more")
        if embeddings.heat is None:
            raise UserError(
                "an Autopilot decides by what is counted while training, and these embeddings "
                "count nothing: make them with heat_counts=True"
            )
        self.embeddings, self.every, self.horizon = embeddings, every, horizon
        self.decisions: list[PilotDecision] = []
        self.migrations: list[Migration] = []
        self._planner = _Planner(
            horizon,
            _machine(cluster, embeddings.plan.cluster),
            method,
            options,
            parse_bytes(move_budget) if isinstance(move_budget, str) else move_budget,
            tolerance,
        )
        self._extra_memory, self._steps, self.due = extra_memory, 0, due
        self._asked_at: int | None = None
        self._answer = _Answer()
        self._process: PlanningProcess | None = None

    def step(self) -> PilotDecision | None:
        """Note a training step; at a check look whether to move, and move. What was decided.

        After a move data loader workers that turn ids into addresses need the new plan's remapper.
        """
        self._steps += 1
        if self._steps % self.every == 0:
            assert self.embeddings.heat is not None
            if not self.embeddings.heat.counted_steps:
                return self._noted(_kept(self._steps, "no step was counted since the last check"))
            self._ask(self.embeddings.profile(reset=True))
        if self._asked_at is None or self._steps < self._asked_at + self.due:
            return None
        self._asked_at = None
        decision, plan = self._told()
        self._noted(decision)
        if plan is not None:
            migrated = self.embeddings.migrate(plan, extra_memory=self._extra_memory)
            self.migrations.append(migrated)
        return decision

    def _noted(self, decision: PilotDecision) -> PilotDecision:
        self.decisions.append(decision)
        _log.info("step %d: %s", decision.step, decision.words)
        return decision

    def _ask(self, profile: Profile) -> None:
        """Begin to decide, on the first rank."""
        self._asked_at = self._steps
        if self.embeddings.engine.world.rank > 0:
            return
        question = (_Answer.of, self._planner, self.embeddings.plan, profile, self._steps)
        if not self.due:
            self._answer = question[0](*question[1:])
            return
        if self._process is None:
            self._process = PlanningProcess()
        self._process.ask(*question)

    def _told(self) -> tuple[PilotDecision, Plan | None]:
        """The decision of the first rank, on all of them, and the plan to move to."""
        engine = self.embeddings.engine
        with engine.inside(CALL):
            engine.begin(CALL)
            data = b""
            if engine.world.rank == 0:
                if self._process is not None:
                    self._answer = self._awaited(self._process)
                data = pickle.dumps(self._answer.told)
            told = told_by_all(engine.wire, np.frombuffer(data, dtype=np.uint8))
            if engine.world.rank > 0:
                self._answer = _Answer(*pickle.loads(told[0].tobytes()))
        return self._answer.result()

    @staticmethod
    def _awaited(process: PlanningProcess) -> _Answer:
        try:
            found: _Answer = process.answer()
        except RowtierError as error:  # which must not leave the others waiting
            return _Answer(error=str(error), raised=error)
        return found


@dataclass(frozen=True)
class _Answer:
    """What the first rank tells the others: its decision, or what went wrong."""

    decision: PilotDecision | None = None
    plan: Plan | None = None
    error: str = ""
    raised: Exception | None = None  # where it happened

    @classmethod
    def of(cls, planner: _Planner, plan: Plan, profile: Profile, step: int) -> _Answer:
        """Decide; what fails must not leave the others waiting."""
        try:
            return cls(*planner.decided(plan, profile, step))
        except Exception as error:
            return cls(error=f"{type(error).__name__}: {error}", raised=error)

    @property
    def told(self) -> tuple[Any, ...]:
        """What travels."""
        return self.decision, self.plan, self.error

    def result(self) -> tuple[PilotDecision, Plan | None]:
        """The decision; raises on all ranks if there is none."""
        if self.raised is not None:
            raise self.raised
        if self.decision is None:
            raise RowtierError(f"rank 0 could not decide whether to move: {self.error}")
        return self.decision, self.plan


@dataclass(frozen=True)
class _Planner:
    """Decides by a plan and a profile alone."""

    horizon: int
    cluster: Cluster
    method: str
    options: PlanOptions | None
    budget_bytes: int | None
    tolerance: float = 0.02

    def decided(self, plan: Plan, profile: Profile, step: int) -> tuple[PilotDecision, Plan | None]:
        """Whether another plan pays, and if so that plan."""
        options = self.options or PlanOptions.of(plan).model_copy(
            update={"batches": profile.batches}  # what neighbours have in common is not counted
        )
        kept = kept_plan(plan, profile, self.cluster)
        # The plan that is run was not made from these counts, as others are.
        current_s = _step_s(kept, unpicked_statistics(kept, profile), options)
        planned_s = _step_s(plan, plan.profile, options)
        if current_s <= (1 + self.tolerance) * planned_s:
            as_planned = f"a step takes {ms(current_s)} on the new counts, as planned"
            return _kept(step, f"{as_planned} ({ms(planned_s)})", current_s), None
        try:
            path = move_path(profile, self.cluster, plan, self.method, options)
            stage = self._best(path, plan)
        except RowtierError as error:  # such as one that does not fit: train on
            return _kept(step, f"no other plan: {error}", current_s), None
        found = drift(
            plan, profile, best=stage.plan, cluster=self.cluster, cost_options=options.cost
        )
        best_s, moves = found.best_step.seconds, (stage.moved_bytes, found.move_s)
        saves_s = current_s - best_s if found.pays else 0.0
        after = found.move_s / saves_s if saves_s > 0 and stage.moved_bytes else math.inf
        words = _words(current_s, best_s, *moves, after, self.horizon)
        pays = after <= self.horizon
        decision = PilotDecision(step, current_s, best_s, *moves, after, pays, words)
        return decision, stage.plan if pays else None

    def _best(self, path: MovePath, plan: Plan) -> Stage:
        """The plan that has gained most after the horizon, of those that the budget allows."""
        stages = path.stages
        if self.budget_bytes is not None:
            stages = tuple(s for s in stages if s.moved_bytes <= self.budget_bytes)
            path.within(self.budget_bytes)  # says what is wrong if there is none
        view = path.fresh.certificate
        if view is not None and view.view != "step":
            return stages[-1]  # what it gains a step is in no unit of time
        some = _spread(stages, _MOST_STAGES)
        costs = [s.objective * self.horizon + _move_s(plan, s) for s in some]
        return some[int(np.argmin(costs))]


def _move_s(plan: Plan, stage: Stage) -> float:
    """Seconds that it takes to get to a stage; to stay takes none."""
    return diff(plan, stage.plan).move_s if stage.moved_bytes else 0.0


def _machine(given: Cluster | StrPath | None, used: Cluster) -> Cluster:
    """The cluster to plan for, which must have the ranks that there are."""
    if given is None:
        return used
    found = given if isinstance(given, Cluster) else Cluster.open(given)
    if found.num_holders != used.num_holders:
        raise MismatchError(
            f"cluster {found.name!r} has {found.num_holders} ranks, and these embeddings run on "
            f"{used.num_holders}: another number of ranks goes through a checkpoint"
        )
    return found


def _spread(stages: Sequence[Stage], most: int) -> list[Stage]:
    """Some of them, the first and the last among them."""
    places = np.unique(np.linspace(0, len(stages) - 1, min(most, len(stages))).round().astype(int))
    return [stages[place] for place in places]


def _step_s(plan: Plan, statistics: Profile, options: PlanOptions) -> float:
    """Seconds of a step of a plan, if rows are as hot as statistics say."""
    return step_cost(plan.bands, statistics, plan.cluster, plan.order, options.cost).step_s


def _kept(step: int, words: str, current_s: float | None = None) -> PilotDecision:
    """A decision to stay where there is nothing to compare with."""
    return PilotDecision(step, current_s, None, 0, 0.0, math.inf, False, f"keep the plan: {words}")


def _words(
    current_s: float, best_s: float, moved: int, move_s: float, after: float, horizon: int
) -> str:
    takes = f"a step takes {ms(current_s)} on the new counts"
    if not math.isfinite(after):
        return f"keep the plan: {takes}, and no other is surely faster ({ms(best_s)})"
    steps = math.ceil(after)
    paid = (
        f"{takes} and {ms(best_s)} under another plan; moving {show_bytes(moved)} takes "
        f"{ms(move_s)} and has paid after {show_count(steps)} step{'s' * (steps != 1)}"
    )
    return paid if after <= horizon else f"keep the plan: {paid}, beyond the {horizon:,} to look at"
