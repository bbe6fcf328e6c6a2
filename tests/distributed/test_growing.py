"""Growing ids: the same vocabulary and weights on any number of ranks, and as a dict has them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

import growing_jobs as jobs
from cases import cluster_of, placed_bands
from growing_jobs import Samples, first_values
from naive_growth import NaiveGrowth
from reference import Reference

from rowtier import Band, Plan, Table, Tables, make_profile
from rowtier.cost.options import CostOptions
from rowtier.evaluate.batches import Wanted, windows
from rowtier.evaluate.counting import Counter
from rowtier.profile.growing import GrowingVocabulary
from rowtier.profile.ids import Where, flat_ids
from rowtier.profile.readers import open_source
from rowtier.torch import SGD, RowwiseAdagrad, SparseAdam

NUMBERS = {"sgd": {"lr": 0.125}, "rowwise_adagrad": {"lr": 0.1}, "adam": {"lr": 0.01}}
OPTIMIZERS = {"sgd": SGD, "rowwise_adagrad": RowwiseAdagrad, "adam": SparseAdam}


def growing_table(rows: int = 30, **facts: Any) -> Table:
    facts = {"optimizer": "sgd", "evict": "lru", "num_shared": 3, **facts}
    return Table(
        name="t", num_embeddings=rows, embedding_dim=4, features=("a", "b"), ids="grow", **facts
    )


def plan_of(table: Table, ranks: int, known: list[Any], cut: int = 6) -> Plan:
    """A few hot rows on every rank, all others spread over them."""
    cluster = cluster_of((ranks,))
    profile = make_profile(
        [{"a": known, "b": known[:1] * len(known)}], Tables(batch_size=4, tables=(table,))
    )
    bands = (
        Band(start=0, stop=cut, scope="device", tier="ram"),
        Band(start=cut, stop=table.num_embeddings, scope=cluster.top, tier="ram"),
    )
    return Plan.build("by hand", profile, cluster, {"t": bands})


def drifting(batches: int, strings: bool, seed: int = 0) -> list[Samples]:
    """Ids come, are used for a while, and go."""
    draw = random.Random(seed)
    found = []
    for number in range(batches):
        keys = [5 * number + draw.randrange(18) for _ in range(400)]
        names = [f"id-{key:x}-é" if strings else 2**40 + key for key in keys]
        batch = [
            [[names.pop() for _ in range(draw.randrange(4))] for _ in range(2)] for _ in range(12)
        ]
        found.append(batch)
    return found


def spelled(keys: list[int], strings: bool) -> list[Any]:
    return [f"id-{key:x}-é" if strings else 2**40 + key for key in keys]


def trained_naively(plan: Plan, batches: list[Samples]) -> dict[str, Any]:
    """One process, a dict, and torch."""
    table, start = plan.profile["t"].table, plan.vocabularies["t"]
    words = GrowingVocabulary.of(table, start)
    ids = start.ids.tolist() if isinstance(start.ids, np.ndarray) else start.ids.to_pylist()
    growth = NaiveGrowth(
        table.num_own, admit_after=table.admit_after, evict=table.evict, start=ids,
        start_counts=start.counts.tolist(),
        shared=lambda key: int(words.shared(words.keys_of(flat_ids([key], Where())[0]))[0]),
    )  # fmt: skip
    first = torch.from_numpy(first_values(table, np.arange(table.num_embeddings)))
    model = Reference(table, first.clone(), NUMBERS[table.optimizer])
    outputs = []
    for samples in batches:
        done = len(growth.evicted)
        rows = growth.batch(samples)
        for _, row in growth.evicted[done:]:
            with torch.no_grad():
                model.weight[row] = first[row]
            for values in model.state().values():
                values[row] = 0
        found = []
        for at in range(2):
            flat = torch.tensor([row for sample in rows for row in sample[at]], dtype=torch.long)
            lengths = torch.tensor([len(sample[at]) for sample in rows])
            found.append(model.look_up(flat, lengths, None))
        out = found[0] + 2 * found[1]
        (out * jobs.targets_of(samples)).sum().backward()
        touched = [row for sample in rows for bag in sample for row in bag]
        model.step(torch.tensor(touched), 1.0)
        outputs.append(out.detach())
    by_row = sorted(growth.rows, key=lambda key: growth.rows[key])
    return {
        "ids": by_row, "outputs": outputs, "weights": model.weight.detach(),
        "counts": [growth.counts[key] for key in by_row], "evicted": len(growth.evicted),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("strings", "facts"),
    [
        (False, {"evict": "lru"}),
        (True, {"evict": "lfu", "admit_after": 3, "optimizer": "rowwise_adagrad"}),
        (False, {"evict": "never", "admit_after": 3}),
        (True, {"evict": "lru", "optimizer": "adam"}),
    ],
)
def test_any_number_of_ranks_trains_what_a_dict_does(
    workers: Any, strings: bool, facts: dict[str, Any]
) -> None:
    table, batches = growing_table(**facts), drifting(8, strings)
    optimizer = OPTIMIZERS[table.optimizer](**NUMBERS[table.optimizer])
    known = spelled([3, 3, 3, 1, 1, 1, 2, 2, 2], strings)
    naive = trained_naively(plan_of(table, 1, known), batches)
    assert (naive["evicted"] > 5) == (table.evict != "never")
    for ranks in range(1, 5):
        plan = plan_of(table, ranks, known)
        machines = 2 if ranks > 2 else 1
        found = workers.run(
            ranks, jobs.train_growing, plan, batches, optimizer, "", "", False, machines
        )
        for one in found:
            assert one["ids"] == naive["ids"]
            if table.evict != "never":
                assert one["counts"] == naive["counts"]
        close = {"rtol": 0, "atol": 0 if table.optimizer == "sgd" else 1e-5}
        for step, wanted in enumerate(naive["outputs"]):
            whole = torch.cat([one["outputs"][step] for one in found])
            torch.testing.assert_close(whole, wanted, **close)
        torch.testing.assert_close(found[0]["weights"], naive["weights"], **close)
        for flow, wanted in replayed(plan, batches, 12 // ranks).items():
            assert np.array_equal(found[0]["flows"][flow], wanted), flow


def replayed(plan: Plan, batches: list[Samples], batch_size: int) -> dict[str, Any]:
    """Bytes by flow that `rowtier replay` counts for the same batches."""
    counter = Counter(plan, batch_size, CostOptions(ids="narrow"))
    data = [
        {name: [sample[at] for sample in samples] for at, name in enumerate("ab")}
        for samples in batches
    ]
    found = windows(open_source(data, ["a", "b"]), ["a", "b"], Wanted(counter.step_samples))
    steps = [facts for window in found for _, facts in counter.add(window)]
    assert len(steps) == len(batches)
    return {
        flow: sum(step.flows[flow].received for step in steps)
        for flow in ("ids", "forward", "backward", "sync")
    }


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_rows_start_anew_wherever_a_plan_has_them(workers: Any, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(1,), (2,), (2, 2)]))
    cluster, table = cluster_of(shape), growing_table(12)
    profile = make_profile([{"a": [1, 2], "b": [3, 4]}], Tables(batch_size=4, tables=(table,)))
    bands = {"t": data.draw(placed_bands(table, cluster, []))}
    plan, batches = Plan.build("drawn", profile, cluster, bands), drifting(4, False, 1)
    naive = trained_naively(plan, batches)
    assert naive["evicted"] > 5
    found = workers.run(cluster.num_devices, jobs.train_growing, plan, batches, SGD(lr=0.125))
    assert found[0]["ids"] == naive["ids"]
    assert torch.equal(found[0]["weights"], naive["weights"])


@pytest.mark.parametrize(("strings", "evict"), [(False, "lfu"), (True, "lru")])
def test_a_checkpoint_carries_the_vocabulary(
    workers: Any, tmp_path: Path, strings: bool, evict: str
) -> None:
    table = growing_table(evict=evict, admit_after=3, optimizer="rowwise_adagrad")
    batches, optimizer = drifting(8, strings), RowwiseAdagrad(lr=0.1)
    known = spelled([3, 3, 3, 1, 1, 1], strings)
    folder = str(tmp_path / "save")
    (whole,) = workers.run(1, jobs.train_growing, plan_of(table, 1, known), batches, optimizer)
    plan = plan_of(table, 3, known)
    workers.run(3, jobs.train_growing, plan, batches[:4], optimizer, "", folder, strings)
    for ranks, cut in ((2, 20), (4, 3)):
        plan = plan_of(table, ranks, spelled([7, 7, 7], strings), cut)
        found = workers.run(ranks, jobs.train_growing, plan, batches[4:], optimizer, folder)[0]
        assert found["ids"] == whole["ids"]
        assert found["counts"] == whole["counts"]
        torch.testing.assert_close(found["weights"], whole["weights"], rtol=0, atol=1e-5)


def test_several_tables_grow_and_known_ids_cost_an_empty_message(workers: Any) -> None:
    growing = {"ids": "grow", "evict": "lfu", "embedding_dim": 4, "num_embeddings": 24}
    tables = (
        Table(name="words", features=("a",), **growing),
        Table(name="plain", features=("c",), embedding_dim=4, num_embeddings=9),
        Table(name="numbers", features=("b", "a_too"), **{**growing, "evict": "never"}),
    )
    draw = random.Random(3)
    batches = [
        {
            "a": [f"w{draw.randrange(n, n + 20)}" for _ in range(12)],
            "b": [draw.randrange(n, n + 9) for _ in range(12)],
            "a_too": [-draw.randrange(3) if n % 2 else None for _ in range(12)],
            "c": [draw.randrange(9) for _ in range(12)],
        }
        for n in range(0, 30, 5)
    ]
    found = []
    for ranks in (1, 2):
        cluster = cluster_of((ranks,))
        profile = make_profile(batches[:1], Tables(batch_size=4, tables=tables))
        bands = {
            t.name: (Band(start=0, stop=t.num_embeddings, scope=cluster.top, tier="ram"),)
            for t in tables
        }
        plan = Plan.build("by hand", profile, cluster, bands)
        found.append(workers.run(ranks, jobs.two_tables, plan, batches))
    assert found[1][0][0] == found[1][1][0] == found[0][0][0]
    assert [sent for _, sent in found[1]] == [0, 0]
    words, numbers = found[0][0][0].values()
    assert len(words) == len(numbers) == 23  # both are full, and one of them takes no more ids
