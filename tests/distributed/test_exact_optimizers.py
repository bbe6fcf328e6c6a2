"""Every optimizer, with numbers of its own for each table and step, against torch alone."""

from __future__ import annotations

from typing import Any

import jobs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

from cases import Case, check, cluster_of, drawn_plans
from strategies import counted

from rowtier import Band, Cluster, Plan, Profile, Server, Table
from rowtier.runtime.optim import KINDS
from rowtier.torch import Disk, ShardedEmbeddings

SEEDS = st.integers(0, 2**32)
STEPS = 6


def drawn(examples: int) -> Any:
    """So many plans."""
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


def numbers_for(plan: Plan, seed: int) -> dict[str, dict[str, Any]]:
    """Numbers of every table: some alike, so that tables may run as one, some not."""
    random = np.random.default_rng(seed)
    drawn: dict[str, Any] = {
        "lr": lambda: float(random.choice([0.02, 0.05])),
        "weight_decay": lambda: float(random.choice([0.0, 0.05, 0.3])),
        "momentum": lambda: float(random.choice([0.5, 0.9])),
        "eps": lambda: float(random.choice([1e-6, 1e-3])),
        "betas": lambda: (float(random.choice([0.8, 0.9])), 0.99),
        "initial_accumulator_value": lambda: float(random.choice([0.0, 0.01])),
    }
    found: dict[str, dict[str, Any]] = {}
    for table, _ in plan:
        names = KINDS[table.optimizer]().numbers()
        found[table.name] = {name: drawn[name]() for name in names}
    return found


def optimizers_of(plan: Plan, numbers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The same as a mapping from tables to optimizers."""
    return {table.name: KINDS[table.optimizer](**numbers[table.name]) for table, _ in plan}


def changes_of(steps: int) -> list[dict[str, float]]:
    """A schedule of the learning rate, and of other numbers beside it."""
    return [
        {"lr": 1 / (1 + at % 3), "weight_decay": 1 + at % 2, "eps": 1.5**at, "momentum": 0.9**at}
        for at in range(steps)
    ]


@drawn(15)
@given(drawn_plans(), SEEDS)
def test_numbers_of_their_own_that_change_agree_with_torch(
    workers: Any, tmp_path_factory: Any, plan: Plan, seed: int
) -> None:
    case, numbers = Case(plan, seed, STEPS, exact=False), numbers_for(plan, seed)
    changes = changes_of(STEPS)
    tables, outputs = case.reference(0.125, 1 / case.size, 0.0, changes, **numbers)
    disk = Disk(tmp_path_factory.getbasetemp(), 8 * 4096)
    options = {"tiers": {"ssd": disk}} if seed % 2 else {}
    results = case.run(
        workers, 0.125, optimizer=optimizers_of(plan, numbers), changes=changes, **options
    )
    check(case, results, tables, outputs, bitwise=False)


@drawn(12)
@given(drawn_plans(dtypes=("fp16",), optimizer="sgd"), SEEDS)
def test_decay_of_16_bit_tables_is_equal_bit_for_bit_where_nothing_is_rounded(
    workers: Any, plan: Plan, seed: int
) -> None:
    case = Case(plan, seed, 2, exact=True)
    numbers = {table.name: {"lr": 1.0, "weight_decay": 0.5} for table, _ in plan}
    tables, outputs = case.reference(0.0, 1.0, 0.0, **numbers)
    optimizer = optimizers_of(plan, numbers)
    results = case.run(workers, gradients="sum", optimizer=optimizer)
    check(case, results, tables, outputs, bitwise=True)


def plan_on(cluster: Cluster, bands: Any, tables: list[Table]) -> Plan:
    """Bands of every table by a function of table and scopes."""
    random = np.random.default_rng(1)
    stats = tuple(counted(t, random.integers(0, 9, t.num_embeddings)) for t in tables)
    placed = {table.name: bands(table, cluster.scopes) for table in tables}
    return Plan.build("drawn", Profile(4, stats), cluster, placed)


TABLES = [
    Table(
        name=f"{kind}{copy}", num_embeddings=20 + at, embedding_dim=4, optimizer=kind,
        features=(f"f_{kind}{copy}",),
    )
    for at, kind in enumerate(KINDS)
    for copy in ("", "_too")
]  # fmt: skip


def apart(table: Table, scopes: Any) -> tuple[Band, ...]:
    """Copies of hot rows, and the columns of the rest on different ranks and tiers."""
    common = {"start": 5, "stop": table.num_embeddings, "scope": scopes[-1]}
    return (
        Band(start=0, stop=5, scope=scopes[0], tier="ram", sync="sparse"),
        Band(**common, columns=(0, 1), members=(1,), tier="ssd"),
        Band(**common, columns=(1, 4), members=(0,), tier="ram", order="blocks"),
    )


def alike(table: Table, scopes: Any) -> tuple[Band, ...]:
    """Whole rows, such that tables of a kind may run as one."""
    return (Band(start=0, stop=table.num_embeddings, scope=scopes[-1], tier="ram"),)


@pytest.mark.parametrize("bands", [apart, alike])
def test_every_kind_agrees_on_two_ranks(workers: Any, tmp_path: Any, bands: Any) -> None:
    plan = plan_on(cluster_of((2,)), bands, TABLES)
    case, numbers = Case(plan, 5, STEPS, exact=False), numbers_for(plan, 6)
    changes = changes_of(STEPS)
    tables, outputs = case.reference(0.125, 1 / 2, 0.0, changes, **numbers)
    optimizer = optimizers_of(plan, numbers)
    options = {"tiers": {"ssd": str(tmp_path)}, "changes": changes}
    check(case, case.run(workers, 0.125, optimizer=optimizer, **options), tables, outputs, False)


def test_every_kind_rounds_once_a_step_to_the_tables_type() -> None:
    halves = [table.model_copy(update={"dtype": "fp16"}) for table in TABLES]
    plan = plan_on(cluster_of((1,)), alike, halves)
    case, numbers = Case(plan, 9, STEPS, exact=False), numbers_for(plan, 10)
    tables, _ = case.reference(0.125, 1.0, 0.0, **numbers)
    options = {"optimizer": optimizers_of(plan, numbers)}
    args = (plan, case.weights, case.steps, case.grads, 0.125, options)
    for name, rows, _, weights, _ in jobs.train(0, None, *args)["shards"]:
        expected = tables[name].weight.detach().numpy()[rows]
        np.testing.assert_allclose(weights, expected, rtol=0, atol=4e-4)  # numbers of about 0.3


def test_rows_that_servers_hold_decay_too(workers: Any) -> None:
    usual = cluster_of((2,))
    server = Server(name="parameters", level="level0", tiers=usual.device.tiers)
    cluster = usual.model_copy(update={"servers": (server,)})

    def bands(table: Table, scopes: Any) -> tuple[Band, ...]:
        cold = {"start": 5, "stop": table.num_embeddings, "scope": scopes[-1], "members": (2, 0)}
        return (Band(start=0, stop=5, scope=scopes[0], tier="ram"), Band(**cold, tier="ssd"))

    plan = plan_on(cluster, bands, TABLES)
    case, numbers = Case(plan, 7, STEPS, exact=False, samples=3), numbers_for(plan, 8)
    tables, outputs = case.reference(0.125, 1 / 2, 0.0, **numbers)
    for batches, grads in zip(case.steps, case.grads, strict=True):  # of the server: none
        batches.append({name: _nothing(entry) for name, entry in batches[0].items()})
        grads.append({name: values[:0] for name, values in grads[0].items()})
    case.size = 3
    results = case.run(workers, 0.125, optimizer=optimizers_of(plan, numbers))
    check(case, results, tables, outputs, bitwise=False)
    assert any(len(rows) for _, rows, *_ in results[2]["shards"])


def _nothing(entry: Any) -> Any:
    return tuple(None if values is None else values[:0] for values in entry)


@pytest.mark.parametrize("order", ["value", "value, norm", "norm, value"])
def test_clipping_by_value_is_what_one_process_does(workers: Any, order: str) -> None:
    tables = [table.model_copy(update={"optimizer": "sgd"}) for table in TABLES[:3]]
    alone = plan_on(cluster_of((1,)), alike, tables)
    spread = plan_on(cluster_of((2,)), apart, tables)
    ids = np.random.default_rng(3).integers(0, 20, (6, 3))
    expected = _clipped_by_torch(tables, ids, order)
    for plan in (alone, spread):
        size = plan.cluster.num_devices
        found: dict[str, Any] = {t.name: np.zeros((t.num_embeddings, 4)) for t in tables}
        for shards in workers.run(size, _clip, plan, np.split(ids, size), order):
            for name, rows, (first, last), weights, _ in shards:
                found[name][rows, first:last] = weights
        for table in tables:
            np.testing.assert_allclose(found[table.name], expected[table.name], atol=1e-6)


VALUE, NORM = 0.5, 2.0


def _clip(rank: int, group: Any, plan: Plan, ids: Any, order: str) -> Any:
    ones = {t.name: np.ones((t.num_embeddings, 4), dtype=np.float32) for t, _ in plan}
    module = jobs.embeddings_of(plan, group, ones, lr=1.0)
    outputs = module({name: ids[rank] for t, _ in plan for name in t.features})
    losses = [(out * _slopes(at)).sum(dim=1).mean() for at, out in enumerate(outputs.values())]
    sum(losses).backward()
    for what in order.split(", "):
        if what == "value":
            assert module.clip_grad_value_(VALUE) is None
        else:
            module.clip_grad_norm_(NORM)
    module.optimizer.step()
    return jobs.shards_of(module)


def _slopes(at: int) -> Any:
    return torch.tensor([0.1, -4.0, 2.0, 9.0]) * (at + 1)


def _clipped_by_torch(tables: list[Table], ids: Any, order: str) -> dict[str, Any]:
    weights = [torch.nn.Parameter(torch.ones(t.num_embeddings, 4)) for t in tables]
    for at, weight in enumerate(weights):
        pooled = torch.nn.functional.embedding_bag(torch.from_numpy(ids), weight, mode="sum")
        (pooled * _slopes(at)).sum(dim=1).mean().backward()
    for what in order.split(", "):
        if what == "value":
            torch.nn.utils.clip_grad_value_(weights, VALUE)
        else:
            torch.nn.utils.clip_grad_norm_(weights, NORM)
    torch.optim.SGD(weights, lr=1.0).step()
    return {t.name: w.detach().numpy() for t, w in zip(tables, weights, strict=True)}


def test_clipping_twice_keeps_the_gradients() -> None:
    table = TABLES[0]
    module = ShardedEmbeddings(plan_on(cluster_of((1,)), alike, [table]), KINDS["sgd"](lr=1.0))
    before = module({table.features[0]: [[3]]})[table.features[0]]
    before.sum().backward()
    assert module.clip_grad_norm_(1.0) == pytest.approx(2.0)
    assert module.clip_grad_norm_(1.0) == pytest.approx(1.0, rel=1e-5)
    module.clip_grad_value_(0.25)
    module.optimizer.step()
    after = module({table.features[0]: [[3]]})[table.features[0]]
    assert (before - after).detach().numpy() == pytest.approx(0.25, abs=1e-6)
