"""Our tables inside TorchRec's models: its wrapper, its pipeline, its checkpoints, its weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchrec
from backends.torchrec_cases import machine, tables
from backends.train_dropin import LR, RANKS, STEPS, Model, alone, bags, batch, plan
from strategies import counted

from rowtier import Band, Plan, Profile
from rowtier.torch import SGD, ShardedEmbeddings


@pytest.fixture(scope="module")
def reference() -> Any:
    return alone()


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)


def test_model_parallel_leaves_the_tables_alone(ranks: Any) -> None:
    for found in ranks:
        assert found["kept"] == "ShardedEmbeddings"
        assert found["planned"] == []
        assert found["trained"] == ["top.0.weight", "top.0.bias", "top.2.weight", "top.2.bias"]


def test_dense_gradients_are_averaged_over_the_ranks(ranks: Any, reference: Any) -> None:
    for found in ranks:
        for mine, expected in zip(found["grads"], reference["grads"], strict=True):
            for grad, wanted in zip(mine, expected, strict=True):
                torch.testing.assert_close(grad, wanted, rtol=1e-5, atol=1e-6)


def test_steps_are_those_of_the_unsharded_model(ranks: Any, reference: Any) -> None:
    means = [sum(pair) / RANKS for pair in zip(*(r["losses"] for r in ranks), strict=True)]
    assert means == pytest.approx(reference["losses"], rel=1e-5)
    for found in ranks:
        same(found["last"], reference["last"])
        moved = found["last"]["sparse.bags.embedding_bags.t0.weight"]
        assert not torch.equal(moved, reference["first"]["sparse.bags.embedding_bags.t0.weight"])


def test_state_of_the_whole_unsharded_model_loads(ranks: Any, reference: Any) -> None:
    for found in ranks:
        assert found["keys"] == ([], [])
        same(found["loaded"], {name: w + 1 for name, w in reference["first"].items()})
        same(found["loaded_plain"], reference["first"])
        assert "[24, 4], and the plan wants [23, 4]" in found["refused"]


def test_torchrecs_pipeline_trains_the_same_bit_for_bit(ranks: Any) -> None:
    for found in ranks:
        assert found["pipelined"] == ["ShardedEmbeddingBagCollection"]
        assert found["piped"] == found["losses"]
        for name, value in found["last"].items():
            assert torch.equal(found["piped_last"][name], value), name


def test_torchrecs_eval_pipeline_finds_the_same(ranks: Any) -> None:
    for found in ranks:
        assert found["piped_eval"] == found["evaluated"]


def test_rows_and_dense_weights_are_trained_by_one_optimizer_of_torchrec(ranks: Any) -> None:
    for found in ranks:
        named = [name for name in found["combined"] if "row_" not in name]  # but for the handle
        assert named == sorted(found["last"])


def test_state_of_rows_goes_through_torchrecs_combined_optimizer(ranks: Any) -> None:
    for found in ranks:
        state = found["state"]
        assert state["names"] == [f"bags.embedding_bags.t{i}.weight" for i in range(2)]
        assert state["saved"]["sum"].shape == (23,)
        assert state["saved"]["sum"].sum() > 0
        same(state["loaded"], state["saved"])


WANTED = tables((9, 4, "sum"), (7, 4, "sum"))


def collection(weighted: bool) -> Any:
    configs = [
        torchrec.EmbeddingBagConfig(
            name=t.name, num_embeddings=t.num_embeddings, embedding_dim=4,
            feature_names=list(t.features),
        )
        for t in WANTED
    ]  # fmt: skip
    return torchrec.EmbeddingBagCollection(tables=configs, is_weighted=weighted)


@pytest.mark.parametrize("weighted", [False, True])
def test_weights_count_where_torchrec_counts_them(weighted: bool) -> None:
    stats = tuple(counted(t, torch.arange(t.num_embeddings).numpy()) for t in WANTED)
    bands = {
        t.name: (Band(start=0, stop=t.num_embeddings, scope="cluster", tier="hbm"),) for t in WANTED
    }
    placed = Plan.build("by hand", Profile(2, stats), machine(1, 1), bands)
    whole = collection(weighted)
    ours = ShardedEmbeddings.from_module(whole, placed, local_world_size=1)
    weights = torch.linspace(0.5, 2, 6).requires_grad_()
    features = torchrec.KeyedJaggedTensor.from_lengths_sync(
        ["f0", "f1"], torch.tensor([1, 2, 8, 0, 6, 1]), torch.tensor([1, 2, 3, 0]), weights
    )
    found, expected = ours(features), whole(features)
    torch.testing.assert_close(found.values(), expected.values())
    torch.testing.assert_close(ours(ours.ask_ahead(features)).values(), expected.values())
    found.values().square().sum().backward()
    mine, weights.grad = weights.grad, None
    expected.values().square().sum().backward()
    if weighted:
        torch.testing.assert_close(mine, weights.grad)
    else:
        assert mine is None


def test_names_are_those_of_the_unsharded_module() -> None:
    whole = Model(bags())
    from_state = Model(ShardedEmbeddings(one_device(), SGD(lr=LR), local_world_size=1))
    assert list(from_state.state_dict()) == list(whole.state_dict())
    from_state.load_state_dict(whole.state_dict(), strict=True)
    whole.load_state_dict(from_state.state_dict(), strict=True)
    given = batch(STEPS, [0])
    torch.testing.assert_close(from_state(given)[0], whole(given)[0])


def one_device() -> Plan:
    """The same tables on one process."""
    made = plan()
    bands = {
        table.name: (Band(start=0, stop=table.num_embeddings, scope="cluster", tier="hbm"),)
        for table, _ in made
    }
    stats = tuple(counted(t, torch.arange(t.num_embeddings).numpy()) for t, _ in made)
    return Plan.build("by hand", Profile(4, stats), machine(1, 1), bands)
