"""A plan that serves on the runtime: lookups with rows of a checkpoint, and no training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from strategies import counted  # noqa: E402

from rowtier import Cluster, Plan, Profile, Table, UserError, make_plan  # noqa: E402
from rowtier.plan.options import PlanOptions  # noqa: E402
from rowtier.torch import SGD, ShardedEmbeddings, load_checkpoint, save_checkpoint  # noqa: E402

BATCH = {"a": torch.tensor([[0, 7], [3, 3]]), "b": torch.tensor([1, 5])}
REFUSED = "made with --serve, so its rows are only read.*plan without --serve to train"


def profile() -> Profile:
    tables = (
        Table(name="a", num_embeddings=9, embedding_dim=4, features=("a",), optimizer="adam"),
        Table(name="b", num_embeddings=6, embedding_dim=2, features=("b",)),
    )
    return Profile(2, tuple(counted(t, np.arange(t.num_embeddings) + 1) for t in tables))


def planned(**wishes: object) -> Plan:
    tier = {"name": "ram", "capacity": "1GB", "bandwidth": "1GB/s"}
    level = {"name": "node", "size": 1, "bandwidth": "1GB/s"}
    cluster = Cluster.model_validate(
        {"name": "one", "levels": [level], "device": {"tiers": [tier]}}
    )
    return make_plan(profile(), cluster, options=PlanOptions(**wishes))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """A checkpoint of a model that was trained, and what it looks up."""
    torch.manual_seed(0)
    model = ShardedEmbeddings(planned())
    for _ in range(3):
        sum(out.square().sum() for out in model(BATCH).values()).backward()
        model.optimizer.step()
        model.optimizer.zero_grad()
    folder = tmp_path_factory.mktemp("run")
    save_checkpoint(folder, model=model, rows=model.optimizer, step=3)
    with torch.no_grad():
        return folder, model(BATCH)


def test_lookups_are_those_of_the_model_that_was_trained(trained: tuple[Path, dict]) -> None:
    folder, expected = trained
    model = ShardedEmbeddings(planned(serve=True), seed=5).eval()
    load_checkpoint(folder, model=model)
    found = model(BATCH)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor)
        assert not found[name].requires_grad
    assert all(not shard.state for shard in model.engine.shards.values())


def test_rows_may_be_kept_as_fp16(trained: tuple[Path, dict]) -> None:
    folder, expected = trained
    model = ShardedEmbeddings(planned(serve=True, rows_as="fp16"))
    load_checkpoint(folder, model=model)
    with torch.no_grad():
        found = model(BATCH)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=2e-3, atol=1e-3)
    assert not any(torch.equal(found[name], expected[name]) for name in expected)


def test_training_is_refused_by_name() -> None:
    plan = planned(serve=True)
    with pytest.raises(UserError, match=f"optimizer=.*{REFUSED}"):
        ShardedEmbeddings(plan, SGD(lr=0.1))
    model = ShardedEmbeddings(plan)
    with pytest.raises(UserError, match=f"forward in training.*{REFUSED}"):
        model(BATCH)
    with pytest.raises(UserError, match=f"step.*{REFUSED}"):
        model.optimizer.step()
    model.eval()
    assert not model(BATCH)["a"].requires_grad
    model.requires_grad_(True)
    with pytest.raises(UserError, match=REFUSED):
        model(BATCH)


def test_a_module_is_taken_over_without_gradients() -> None:
    bags = torch.nn.ModuleDict(
        {"a": torch.nn.EmbeddingBag(9, 4, mode="sum"), "b": torch.nn.EmbeddingBag(6, 2, mode="sum")}
    )
    model = ShardedEmbeddings.from_module(bags, planned(serve=True)).eval()
    found = model(BATCH)
    torch.testing.assert_close(found["a"], bags["a"](BATCH["a"]).detach())
    assert not found["a"].requires_grad
