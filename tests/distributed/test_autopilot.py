"""An Autopilot moves rows when the data has moved on and that pays; training stays what it was."""

from __future__ import annotations

import logging
import math
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from migrate_jobs import same_shards

import rowtier
from rowtier import (
    Cluster,
    Device,
    Level,
    MismatchError,
    Plan,
    RowtierError,
    Table,
    Tier,
    UserError,
)
from rowtier.runtime import autopilot
from rowtier.runtime.optim import KINDS
from rowtier.runtime.planning_process import PlanningProcess
from rowtier.torch import (
    Autopilot,
    PilotDecision,
    ShardedEmbeddings,
    load_checkpoint,
    save_checkpoint,
)

ROWS, BATCH, STEPS, EVERY = 4000, 64, 50, 20
Batch = dict[str, Any]


def cluster_of(ranks: int = 2) -> Cluster:
    """Ranks with room for a fifth of the rows in memory, the others on a slow disk."""
    tiers = (
        Tier(name="ram", capacity_bytes=8_000, bandwidth_bytes_per_s=1e10),
        Tier(name="ssd", capacity_bytes=2**30, bandwidth_bytes_per_s=1e6, granularity_bytes=64),
    )
    links = (Level(name="node", size=ranks, bandwidth_bytes_per_s=1e9),)
    return Cluster(name="tight", levels=links, device=Device(tiers=tiers))


def batches_of(rank: int, steps: int = STEPS, moves_at: int | None = EVERY) -> list[Batch]:
    """Two ids a sample; which ones are hot changes at a step."""
    rng = np.random.default_rng((3, rank))
    found = []
    for step in range(steps):
        shift = 0 if moves_at is None or step < moves_at else ROWS // 2
        found.append({"f": torch.from_numpy((rng.zipf(1.3, (BATCH, 2)) + shift) % ROWS)})
    return found


def plan_of(optimizer: str = "sgd", method: str = "recshard", ranks: int = 2) -> Plan:
    table = Table(
        name="t", num_embeddings=ROWS, embedding_dim=4, features=("f",), optimizer=optimizer
    )
    tables = rowtier.Tables(batch_size=BATCH, tables=(table,))
    seen = [batch for rank in range(ranks) for batch in batches_of(rank, 20, None)]
    return rowtier.make_plan(rowtier.make_profile(seen, tables), cluster_of(ranks), method)


def made(plan: Plan, group: Any) -> ShardedEmbeddings:
    """Weights and learning rate are eighths: sums of SGD are exact."""

    def weights(table: Table, rows: Any) -> Any:
        return (rows[:, None] % 16 - np.arange(table.embedding_dim)) / np.float32(8)

    kind = next(iter(plan))[0].optimizer
    return ShardedEmbeddings(
        plan, KINDS[kind](lr=0.25), group, init=weights, gradients="sum", heat_counts=1
    )


def step(module: ShardedEmbeddings, batch: Batch) -> None:
    # 1/8, 1/4 or 3/8 by place: exact, and other for every sample.
    output = module(batch)["f"]
    grads = (torch.arange(output.numel()).reshape(output.shape) % 3 + 1) / 8
    output.backward(grads)
    module.optimizer.step()


def piloted(
    rank: int, group: Any, plan: Plan, options: dict[str, Any], folder: str
) -> list[PilotDecision]:
    """Train with an Autopilot; the same by a checkpoint at every move; compare bit for bit."""
    module, plans = made(plan, group), []
    pilot = Autopilot(module, every=EVERY, horizon=10_000, **options)
    batches = batches_of(rank)
    for batch in batches:
        step(module, batch)
        pilot.step()
        plans.append(module.plan)
    other = made(plan, group)
    for number, batch in enumerate(batches):
        step(other, batch)
        if plans[number] is not other.plan:
            parts = {"model": other, "rows": other.optimizer}
            save_checkpoint(folder, process_group=group, **parts)
            other = made(plans[number], group)
            parts = {"model": other, "rows": other.optimizer}
            load_checkpoint(folder, process_group=group, **parts)
    same_shards(module, other)
    assert [d.moved for d in pilot.decisions].count(True) == len(pilot.migrations)
    for decision, moved in zip(
        (d for d in pilot.decisions if d.moved), pilot.migrations, strict=True
    ):
        assert decision.move_bytes == moved.moved_bytes + moved.within_bytes
    return pilot.decisions


@pytest.mark.parametrize(
    ("optimizer", "method", "due"), [("sgd", "joint", 0), ("rowwise_adagrad", "recshard", 5)]
)
def test_training_is_that_of_checkpoints_under_the_same_plans_bit_for_bit(
    workers: Any, tmp_path: Path, optimizer: str, method: str, due: int
) -> None:
    found = workers.run(
        2, piloted, plan_of(optimizer, method), {"method": method, "due": due}, str(tmp_path)
    )
    assert found[0] == found[1]
    first, move = found[0]
    assert not first.moved  # the data is what the plan was made for
    assert move.moved
    assert move.best_s < move.current_s
    assert move.pays_after_steps <= 10_000
    assert math.isclose(move.pays_after_steps, move.move_s / (move.current_s - move.best_s))
    assert "has paid after" in move.words


def _decided(
    rank: int, group: Any, plan: Plan, options: dict[str, Any], steps: int
) -> list[PilotDecision]:
    module = made(plan, group)
    pilot = Autopilot(module, **options)
    for batch in batches_of(rank, steps, 0):
        step(module, batch)
        pilot.step()
    return pilot.decisions


def test_a_move_that_does_not_pay_in_time_or_is_too_large_is_left_alone(workers: Any) -> None:
    plan, wide = plan_of(), {"every": EVERY, "horizon": 10**6, "method": "recshard"}
    ((free,), _) = workers.run(2, _decided, plan, wide, EVERY)
    assert free.moved
    assert free.pays_after_steps > 1
    ((soon,), _) = workers.run(2, _decided, plan, {**wide, "horizon": 1}, EVERY)
    assert not soon.moved
    assert soon.words.endswith("beyond the 1 to look at")
    assert (soon.current_s, soon.best_s) == (free.current_s, free.best_s)
    half = free.move_bytes // 2
    ((some,), _) = workers.run(2, _decided, plan, {**wide, "move_budget": half}, EVERY)
    assert some.moved
    assert 0 < some.move_bytes <= half
    assert free.best_s <= some.best_s < some.current_s
    ((none,), _) = workers.run(2, _decided, plan, {**wide, "move_budget": "0B"}, EVERY)
    assert not none.moved


def test_a_short_horizon_takes_the_moves_that_pay_soon() -> None:
    plan = plan_of(method="joint")
    seen = [batch for rank in range(2) for batch in batches_of(rank, 20, 0)]
    profile = rowtier.make_profile(seen, plan.profile.tables)
    long, short = (
        autopilot._Planner(horizon, plan.cluster, "joint", None, None).decided(plan, profile, 1)[0]
        for horizon in (10**6, 3)
    )
    assert long.moved
    assert short.move_bytes < long.move_bytes
    assert not short.moved or short.pays_after_steps <= 3
    assert short.best_s >= long.best_s


def test_few_counts_of_the_same_data_are_no_reason_to_move() -> None:
    plan = plan_of()
    pilot = autopilot._Planner(10**6, plan.cluster, "recshard", None, None, tolerance=0.0)
    for seed in range(4):
        batches = [batch for rank in (2, 3) for batch in batches_of(4 * seed + rank, 5, None)]
        profile = rowtier.make_profile(batches, plan.profile.tables)
        decision, other = pilot.decided(plan, profile, 1)
        assert other is None, decision.words


def _failing(rank: int, group: Any, plan: Plan, what: str) -> str:
    module = made(plan, group)
    pilot = Autopilot(module, every=1, horizon=10)
    step(module, batches_of(rank, 1, 0)[0])
    error = RowtierError("does not fit") if what == "infeasible" else RuntimeError("broken")
    with patch.object(autopilot, "move_path", side_effect=error):
        try:
            said = pilot.step()
        except (RuntimeError, RowtierError) as raised:
            return f"raised {type(raised).__name__}: {raised}"
    assert said is not None
    step(module, batches_of(rank, 1)[0])  # training goes on
    return said.words


def test_planning_that_fails_keeps_the_plan_or_raises_on_all_ranks(workers: Any) -> None:
    plan = plan_of()
    said = workers.run(2, _failing, plan, "infeasible")
    assert said == ["keep the plan: no other plan: does not fit"] * 2
    said = workers.run(2, _failing, plan, "broken")
    assert said[0] == "raised RuntimeError: broken"
    assert "rank 0 could not decide" in said[1]
    assert "broken" in said[1]


def test_decisions_are_logged_and_checks_without_counts_keep_the_plan(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="rowtier.autopilot")
    module = ShardedEmbeddings(plan_of(ranks=1), heat_counts=50)
    pilot = Autopilot(module, every=1, horizon=100)
    said = pilot.step()
    assert said is not None
    assert said.words == "keep the plan: no step was counted since the last check"
    assert said.to_dict()["pays_after_steps"] is None
    assert [record.getMessage() for record in caplog.records] == [f"step 1: {said.words}"]


def test_a_planning_process_that_ends_is_named_and_goes_with_who_asks() -> None:
    process = PlanningProcess()
    process.ask(math.hypot, 3, 4)
    assert process.answer() == 5
    process.ask(sys.exit, 3)
    with pytest.raises(RowtierError, match=r"ended with code 3: .* with due=0"):
        process.answer()
    other = PlanningProcess()
    popen = other._process
    del other
    assert popen.poll() is not None


def test_what_an_autopilot_cannot_do_is_refused_by_name() -> None:
    plan = plan_of(ranks=1)
    with pytest.raises(UserError, match="count nothing: make them with heat_counts=True"):
        Autopilot(ShardedEmbeddings(plan), every=1, horizon=1)
    module = ShardedEmbeddings(plan, heat_counts=1)
    with pytest.raises(UserError, match="tolerance -1: give a share of a step"):
        Autopilot(module, every=1, horizon=1, tolerance=-1)
    with pytest.raises(UserError, match="due 3: give a number of steps, less than every, 3"):
        Autopilot(module, every=3, horizon=1, due=3)
    for wrong in ({"every": 0, "horizon": 1}, {"every": 1, "horizon": 0.5}):
        with pytest.raises(UserError, match="give a number of steps, 1 or more"):
            Autopilot(module, **wrong)  # type: ignore[arg-type]
    with pytest.raises(MismatchError, match="has 2 ranks, and these embeddings run on 1"):
        Autopilot(module, every=1, horizon=1, cluster=cluster_of())
