"""What TorchRec's models, optimizers and exports ask of a collection; what is refused, and how."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torchrec
from backends.semantics_cases import ALIKE, LR, TWO, bags, kjt, plan_for, rows, sharded, table
from torch.distributed.optim import _apply_optimizer_in_backward as apply_in_backward
from torchrec.distributed.types import ShardedModule
from torchrec.models.dlrm import DLRM
from torchrec.optim.fused import FusedOptimizerModule
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper

import rowtier.torchrec as rt
from rowtier import Plan, UserError
from rowtier.torch import RowwiseAdagrad, ShardedEmbeddings

XY = {"x": 5, "y": 5}


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def adagrad_plan(collection: Any) -> Plan:
    """The same plan for tables that are trained with row-wise Adagrad."""
    for weight in collection.parameters():
        weight._optimizer_classes = [torchrec.optim.RowWiseAdagrad]
    return plan_for(collection, 1)


def test_bags_answer_what_torchrec_asks() -> None:
    whole = bags(*ALIKE, weighted=True)
    ours = sharded(whole, 1)
    assert isinstance(ours, (ShardedEmbeddings, ShardedModule, FusedOptimizerModule))
    assert ours.is_weighted() is True
    assert ours.embedding_bag_configs() == whole.embedding_bag_configs()
    assert ours.device == whole.device
    assert ours.unsharded_module_type is torchrec.EmbeddingBagCollection
    assert sharded(bags(*ALIKE), 1).is_weighted() is False


def test_rows_answer_what_torchrec_asks() -> None:
    whole = rows(table("a", "x"), table("b", "x", "y"), need_indices=True)
    ours = sharded(whole, 1)
    assert ours.need_indices() is True
    assert ours.embedding_dim() == whole.embedding_dim()
    assert ours.embedding_configs() == whole.embedding_configs()
    assert ours.embedding_names_by_table() == whole.embedding_names_by_table()
    assert ours.unsharded_module_type is torchrec.EmbeddingCollection


def test_configs_of_a_plan_alone_are_those_of_its_tables() -> None:
    whole = bags(*TWO)
    ours = rt.ShardedEmbeddingBagCollection(plan_for(whole, 1), local_world_size=1)
    facts = [(c.name, c.num_embeddings, c.feature_names) for c in ours.embedding_bag_configs()]
    assert facts == [("a", 11, ["x"]), ("b", 30, ["y"])]


def test_dlrm_is_built_around_it_unchanged() -> None:
    whole, dense = bags(*ALIKE), torch.randn(5, 3)
    models = []
    for collection in (whole, sharded(whole, 1)):
        torch.manual_seed(0)
        models.append(DLRM(collection, 3, [8, 4], [8, 1]))
    expected, ours = models
    same(ours(dense, kjt(0, XY)), expected(dense, kjt(0, XY)))
    assert ours.state_dict().keys() == expected.state_dict().keys()


def test_a_collection_on_the_meta_device_begins_as_a_plan_alone_does() -> None:
    made = [torchrec.EmbeddingBagConfig(**facts) for facts in TWO]
    meta = torchrec.EmbeddingBagCollection(tables=made, device=torch.device("meta"))
    found = sharded(meta, 1, seed=3).state_dict()
    alone = ShardedEmbeddings(plan_for(meta, 1), seed=3, local_world_size=1).state_dict()
    assert found.keys() == alone.keys()
    assert all(torch.equal(found[name], alone[name]) for name in alone)


@pytest.mark.parametrize("own", [{"weight_init_max": 2.0}, {"init_fn": torch.nn.init.zeros_}])
def test_first_weights_of_its_own_on_the_meta_device_are_refused(own: Any) -> None:
    made = torchrec.EmbeddingBagConfig(**table("a", "x", **own))
    meta = torchrec.EmbeddingBagCollection(tables=[made], device=torch.device("meta"))
    with pytest.raises(UserError, match=r"'a' is on the meta device and has an init_fn.*init="):
        sharded(meta, 1)
    ones = sharded(meta, 1, init=lambda table, rows: torch.ones(len(rows), table.embedding_dim))
    assert (ones.state_dict()["embedding_bags.a.weight"] == 1).all()


def test_tables_half_on_the_meta_device_are_refused() -> None:
    whole = bags(*TWO)
    whole.embedding_bags["b"].to("meta")
    with pytest.raises(UserError, match=r"'b' is on the meta device and has no weights, and other"):
        sharded(whole, 1)


def test_output_has_the_type_that_was_asked_for() -> None:
    whole = bags(*TWO)
    ours = sharded(whole, 1, output_dtype=torch.float16)
    found = ours(kjt(0, XY)).values()
    assert found.dtype == torch.float16
    torch.testing.assert_close(found, whole(kjt(0, XY)).values().half())
    found.sum().backward()
    ours.optimizer.step()
    with pytest.raises(UserError, match=r"output_dtype torch.int8: give a floating-point"):
        sharded(whole, 1, output_dtype=torch.int8)


def test_batches_that_were_remapped_or_are_dicts_come_back_in_torchrecs_form() -> None:
    whole, batch = bags(*ALIKE), kjt(0, XY)
    ours, expected = sharded(whole, 1), whole(kjt(0, XY)).values()
    given = {name: (part.values(), part.lengths()) for name, part in batch.to_dict().items()}
    for features in (ours.plan.remapper()(batch), given):
        found = ours(features)
        assert found.keys() == ["x", "y"]
        same(found.values(), expected)


def test_what_a_remapped_batch_was_expanded_by_is_not_lost() -> None:
    inverse = (["x"], torch.tensor([[1, 1, 0, 1]]))
    facts: dict[str, Any] = {"stride_per_key_per_rank": [[2]], "inverse_indices": inverse}
    whole = bags(table("a", "x"))
    ours = sharded(whole, 1)
    batch = kjt(0, {"x": 2}, **facts)
    same(ours(ours.plan.remapper()(batch)).values(), whole(batch).values())
    plain = ShardedEmbeddings.from_module(whole, ours.plan, local_world_size=1)
    same(plain(ours.plan.remapper()(batch)).values(), whole(batch).values())


def test_the_wrong_collection_or_plan_is_refused_with_the_right_one() -> None:
    whole, other = bags(*ALIKE), rows(*ALIKE)
    with pytest.raises(UserError, match=r"takes TorchRec's EmbeddingCollection, and this is a Em"):
        rt.ShardedEmbeddingCollection.from_module(whole, plan_for(whole, 1))
    with pytest.raises(UserError, match=r"'a' has pooling: none.*use ShardedEmbeddingCollection"):
        rt.ShardedEmbeddingBagCollection(plan_for(other, 1))
    with pytest.raises(UserError, match=r"'a' has pooling: sum.*ShardedEmbeddingBagCollection"):
        rt.ShardedEmbeddingCollection(plan_for(whole, 1))


def test_virtual_tables_are_refused_with_the_way_out() -> None:
    whole = bags(table("a", "x", use_virtual_table=True))
    with pytest.raises(UserError, match=r"'a' is a virtual one.*ids: hash"):
        sharded(whole, 1)


def test_batches_that_say_too_little_are_refused() -> None:
    ours = sharded(bags(*ALIKE), 1)
    with pytest.raises(UserError, match=r"different strides \('x' 2, 'y' 3\) and no inverse_ind"):
        ours(kjt(0, {"x": 2, "y": 3}, stride_per_key_per_rank=[[2], [3]]))
    inverse = (["x"], torch.zeros(1, 4, dtype=torch.int64))
    with pytest.raises(UserError, match="of the KeyedJaggedTensor lack feature 'y'"):
        ours(kjt(0, XY, stride_per_key_per_rank=[[5], [5]], inverse_indices=inverse))
    with pytest.raises(UserError, match="feature 'x' has no weights, and the lookups are weighted"):
        sharded(bags(*ALIKE, weighted=True), 1)(kjt(0, XY))
    sequence = sharded(rows(*ALIKE, need_indices=True), 1)
    with pytest.raises(UserError, match="need_indices wants the ids"):
        sequence(sequence.plan.remapper()(kjt(0, XY)))


def test_optimizers_that_the_tables_were_given_are_taken_over() -> None:
    whole = bags(*ALIKE)
    settings = {"lr": 0.125, "eps": 1e-4}
    apply_in_backward(torchrec.optim.RowWiseAdagrad, whole.parameters(), settings)
    plan = plan_for(whole, 1)
    ours = rt.ShardedEmbeddingBagCollection.from_module(whole, plan, local_world_size=1)
    assert [group.optimizer for group in ours.engine.groups] == [RowwiseAdagrad(**settings)]


def test_tables_keep_the_numbers_that_each_was_given() -> None:
    whole = bags(*ALIKE)
    for lr, weight in zip((0.5, 0.25), whole.parameters(), strict=True):
        apply_in_backward(torch.optim.SGD, [weight], {"lr": lr})
    ours = rt.ShardedEmbeddingBagCollection.from_module(
        whole, plan_for(whole, 1), local_world_size=1
    )
    assert [group["lr"] for group in ours.optimizer.param_groups] == [0.5, 0.25]
    assert [group["tables"] for group in ours.optimizer.param_groups] == [("a",), ("b",)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([(torch.optim.RMSprop, {"lr": 0.1})] * 2, "has RMSprop by apply_optimizer_in_backward"),
        ([(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})] * 2, "without momentum"),
        ([(torch.optim.SGD, {"lr": 0.1, "maximize": True})] * 2, r"\{'maximize': True\} by apply"),
    ],
)
def test_optimizers_that_rows_cannot_have_are_refused(given: Any, message: str) -> None:
    whole = bags(*ALIKE)
    for weight, (kind, settings) in zip(whole.parameters(), given, strict=True):
        apply_in_backward(kind, [weight], settings)
    with pytest.raises(UserError, match=message):
        rt.ShardedEmbeddingBagCollection.from_module(whole, plan_for(whole, 1), local_world_size=1)


def turned(plan: Plan) -> Plan:
    """The coldest rows first."""
    assert plan.order is not None
    return replace(plan, order={name: rows[::-1].copy() for name, rows in plan.order.items()})


@pytest.mark.parametrize("migrates", [False, True])
def test_torchrecs_optimizers_step_and_schedule_rows(migrates: bool) -> None:
    whole = bags(*ALIKE)
    ours = sharded(whole, 1)
    dense = torch.nn.Linear(8, 1)
    both = CombinedOptimizer(
        [
            ("bags", ours.fused_optimizer),
            KeyedOptimizerWrapper(
                dict(dense.named_parameters()), lambda weights: torch.optim.SGD(weights, lr=LR)
            ),
        ]
    )
    assert list(both.params) == [
        *(f"bags.embedding_bags.{name}.weight" for name in "ab"), "bags.row_gradients", "weight",
        "bias",
    ]  # fmt: skip
    assert both.params["bags.embedding_bags.b.weight"].shape == (30, 4)
    rate = torch.optim.lr_scheduler.StepLR(ours.fused_optimizer, 1, gamma=0.5)
    plain = torch.optim.SGD(whole.parameters(), lr=LR)
    for _ in range(2):
        for bag, optimizer in ((ours, both), (whole, plain)):
            optimizer.zero_grad()
            bag(kjt(0, XY)).values().square().sum().backward()
            optimizer.step()
        rate.step()
        plain.param_groups[0]["lr"] /= 2
        if migrates:
            ours.migrate(turned(ours.plan))
    assert ours.optimizer.param_groups[0]["lr"] == LR / 4
    for name, value in whole.state_dict().items():
        same(ours.state_dict()[name], value)


def test_state_of_rows_is_saved_and_loaded_by_the_names_of_weights() -> None:
    made = []
    for lr in (0.25, 0.5):
        whole = bags(*ALIKE)
        plan = adagrad_plan(whole)
        rows_of = RowwiseAdagrad(lr=lr)
        made.append(
            rt.ShardedEmbeddingBagCollection.from_module(whole, plan, rows_of, local_world_size=1)
        )
    first, second = made
    first(kjt(0, XY)).values().square().sum().backward()
    for ours in made:
        ours.fused_optimizer.save_param_groups(True)
    first.fused_optimizer.step()
    saved = first.fused_optimizer.state_dict()
    assert list(saved["state"]) == [f"embedding_bags.{name}.weight" for name in "ab"]
    assert saved["state"]["embedding_bags.a.weight"]["sum"].shape == (11,)
    second.fused_optimizer.load_state_dict(saved)
    loaded = second.optimizer.state_dict()["state"]
    for name, state in first.optimizer.state_dict()["state"].items():
        assert torch.equal(loaded[name]["sum"], state["sum"])
        assert loaded[name]["step"] == 1
    assert second.optimizer.param_groups[0]["lr"] == 0.25


def test_other_parameters_are_refused_by_the_optimizer_of_rows() -> None:
    with pytest.raises(UserError, match="give other parameters an optimizer of their own"):
        sharded(bags(*ALIKE), 1).fused_optimizer.add_param_group({"params": [torch.zeros(1)]})


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
def test_the_unsharded_collection_is_torchrecs_own_and_quantizes() -> None:
    from torchrec.inference.modules import quantize_embeddings

    whole = bags(table("a", "x", dim=8), table("b", "y", dim=8), weighted=True)
    ours = sharded(whole, 1)
    before = torch.get_rng_state()
    found = ours.unsharded()
    assert torch.equal(before, torch.get_rng_state())
    assert type(found) is torchrec.EmbeddingBagCollection
    assert found.is_weighted()
    batch = kjt(0, XY, weights=True)
    same(found(batch).values(), ours(batch).values())
    model = torch.nn.Sequential(found)
    small = quantize_embeddings(model, dtype=torch.qint8, inplace=False)
    batch = kjt(0, XY, weights=True, dtype=torch.int32)
    torch.testing.assert_close(
        small(batch).values(), ours(batch).values().detach(), rtol=0.05, atol=0.02
    )
    assert type(sharded(rows(*ALIKE), 1).unsharded()) is torchrec.EmbeddingCollection


def test_tables_of_bfloat16_stay_so_unsharded() -> None:
    whole = bags(table("a", "x", data_type=torchrec.DataType.BF16))
    ours = sharded(whole.to(torch.bfloat16), 1)
    assert ours.unsharded().embedding_bags["a"].weight.dtype == torch.bfloat16


@pytest.mark.parametrize("wide", [False, True])
def test_a_scaler_finds_rows_in_torchrecs_optimizers(wide: bool) -> None:
    whole, dense = bags(*ALIKE), torch.randn(5, 3)
    models = []
    for collection in (whole, sharded(whole, 1)):
        torch.manual_seed(0)
        models.append(DLRM(collection, 3, [8, 4], [8, 1]))
    expected, ours = models
    named = {n: p for n, p in ours.named_parameters() if wide or "row_handle" not in n}
    parts = KeyedOptimizerWrapper(named, lambda params: torch.optim.SGD(params, lr=LR))
    fused = ours.sparse_arch.embedding_bag_collection.fused_optimizer
    both = CombinedOptimizer([("sparse", fused), ("dense", parts)])
    for model, optimizer in (
        (expected, torch.optim.SGD(expected.parameters(), lr=LR)),
        (ours, both),
    ):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for seed in range(2):
            optimizer.zero_grad()
            scaler.scale(model(dense, kjt(seed, XY)).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    for name, value in ours.state_dict().items():
        same(value, expected.state_dict()[name])


@pytest.mark.parametrize("made", [bags, rows])
def test_a_collection_compiles_into_one_graph(made: Any) -> None:
    torch._dynamo.reset()
    ours = sharded(made(*ALIKE), 1)

    def loss(batch: Any) -> torch.Tensor:
        found = ours(batch)
        if isinstance(found, dict):
            return sum(part.values().square().sum() for part in found.values())
        return found.values().square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for seed in range(2):
        ours.zero_grad()
        expected = loss(kjt(seed, XY))
        found = compiled(kjt(seed, XY))
        same(found, expected)
        found.backward()
        ours.optimizer.step()
    assert not torch.equal(loss(kjt(1, XY)), expected)
