"""Modules that are not sharded, taken over with their weights; TorchRec's names and outputs."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from plans import plan_for  # noqa: E402
from torch import nn  # noqa: E402

from rowtier import Table, UserError  # noqa: E402
from rowtier.torch import ShardedEmbeddings  # noqa: E402

IDS = torch.tensor([3, 1, 3, 0, 6, 2, 2])
LENGTHS = torch.tensor([2, 0, 4, 1])


def table(name: str = "item", **facts: Any) -> Table:
    return Table(
        **({"name": name, "num_embeddings": 7, "embedding_dim": 3, "features": (name,)} | facts)
    )


def edges() -> Any:
    return torch.cat([torch.zeros(1, dtype=torch.long), LENGTHS.cumsum(0)])


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_an_embedding_bag_keeps_weights_and_outputs(mode: str) -> None:
    bag = nn.EmbeddingBag(7, 3, mode=mode, include_last_offset=True)
    sharded = ShardedEmbeddings.from_module(bag, plan_for(table(pooling=mode)))
    same(sharded({"item": (IDS, LENGTHS)})["item"], bag(IDS, edges()))
    assert torch.equal(sharded.state_dict()["embedding_bags.item.weight"], bag.weight)


def test_an_embedding_keeps_weights_and_outputs() -> None:
    embedding = nn.Embedding(7, 3)
    sharded = ShardedEmbeddings.from_module(embedding, plan_for(table(pooling="none")))
    same(sharded({"item": (IDS, LENGTHS)})["item"].values, embedding(IDS))
    assert torch.equal(sharded.state_dict()["embeddings.item.weight"], embedding.weight)


def test_several_modules_come_by_the_names_of_tables() -> None:
    both = nn.ModuleDict({"b": nn.Embedding(7, 3), "a": nn.EmbeddingBag(7, 3, mode="sum")})
    plan = plan_for(table("a"), table("b", pooling="none"))
    state = ShardedEmbeddings.from_module(both, plan).state_dict()
    assert torch.equal(state["embedding_bags.a.weight"], both["a"].weight)
    assert torch.equal(state["embeddings.b.weight"], both["b"].weight)


@pytest.mark.parametrize(
    ("module", "facts", "message"),
    [
        (nn.EmbeddingBag(7, 3, mode="max"), {}, "mode='max' is not supported"),
        (nn.EmbeddingBag(7, 3, mode="mean"), {}, r"pooling: sum .* mode='mean'.*`pooling: mean`"),
        (nn.Embedding(7, 3), {}, "pooling: sum in the plan, and the module is an Embedding"),
        (nn.EmbeddingBag(7, 4, mode="sum"), {}, r"shape \[7, 4\], and the plan wants \[7, 3\]"),
        (nn.EmbeddingBag(7, 3, mode="sum", padding_idx=0), {}, "padding_idx=0: .*lengths"),
        (nn.EmbeddingBag(7, 3, mode="sum", max_norm=1.0), {}, "max_norm=1.0"),
        (nn.Embedding(7, 3, scale_grad_by_freq=True), {"pooling": "none"}, "scale_grad_by_freq"),
        (nn.EmbeddingBag(7, 3, mode="sum"), {"dtype": "bf16"}, "would round it"),
        (nn.ModuleDict({"other": nn.Embedding(7, 3)}), {}, "lacks 'item' and has 'other'"),
        (nn.Linear(7, 3), {}, "cannot take a Linear"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(module: Any, facts: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ShardedEmbeddings.from_module(module, plan_for(table(**facts)))


def test_a_module_on_the_meta_device_begins_as_a_plan_alone_does() -> None:
    meta = nn.EmbeddingBag(7, 3, mode="sum", device="meta")
    sharded = ShardedEmbeddings.from_module(meta, plan_for(table()), seed=4)
    alone = ShardedEmbeddings(plan_for(table()), seed=4)
    name = "embedding_bags.item.weight"
    assert torch.equal(sharded.state_dict()[name], alone.state_dict()[name])


def test_one_module_is_not_enough_for_two_tables() -> None:
    with pytest.raises(UserError, match=r"one EmbeddingBag .* 2 tables .*ModuleDict"):
        ShardedEmbeddings.from_module(nn.EmbeddingBag(7, 3), plan_for(table("a"), table("b")))


def test_a_weight_of_another_shape_is_refused_with_both_shapes() -> None:
    sharded = ShardedEmbeddings(plan_for(table()))
    with pytest.raises(RuntimeError, match=r"'item'.*\[8, 3\], and the plan wants \[7, 3\]"):
        sharded.load_state_dict({"embedding_bags.item.weight": torch.zeros(8, 3)})


def test_state_of_another_optimizer_is_refused_by_name() -> None:
    adam = ShardedEmbeddings(plan_for(table(optimizer="adam"))).optimizer
    rowwise = ShardedEmbeddings(plan_for(table())).optimizer
    adagrad = ShardedEmbeddings(plan_for(table(optimizer="adagrad"))).optimizer
    with pytest.raises(UserError, match=r"'item' is trained with adam.*'exp_avg'.*'sum', 'step'"):
        adam.load_state_dict(rowwise.state_dict())
    with pytest.raises(UserError, match=r"shape \[7, 3\], and the plan wants \[7\]"):
        rowwise.load_state_dict(adagrad.state_dict())


class TestTorchRec:
    """Against TorchRec's own collections."""

    @pytest.fixture(autouse=True)
    def torchrec(self) -> Any:
        return pytest.importorskip("torchrec", reason="torchrec is not installed")

    def batch(self, weights: Any = None) -> Any:
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        return KeyedJaggedTensor(
            keys=["x", "y"],
            values=torch.cat([IDS, IDS.flip(0)]),
            lengths=torch.cat([LENGTHS, LENGTHS.flip(0)]),
            weights=weights,
        )

    def bags(self, torchrec: Any, **options: Any) -> Any:
        config = torchrec.EmbeddingBagConfig
        return torchrec.EmbeddingBagCollection(
            tables=[
                config(name="a", num_embeddings=7, embedding_dim=3, feature_names=["y"],
                       pooling=torchrec.PoolingType.MEAN),
                config(name="b", num_embeddings=9, embedding_dim=2, feature_names=["x", "y"]),
            ],
            **options,
        )  # fmt: skip

    @staticmethod
    def bag_tables() -> tuple[Table, Table]:
        mean = table("a", features=("y",), pooling="mean")
        return mean, table("b", num_embeddings=9, embedding_dim=2, features=("x", "y"))

    def test_a_bag_collection_gives_the_same_keyed_tensor(self, torchrec: Any) -> None:
        bags = self.bags(torchrec)
        sharded = ShardedEmbeddings.from_module(bags, plan_for(*self.bag_tables()))
        found, expected = sharded(self.batch()), bags(self.batch())
        assert found.keys() == expected.keys() == ["y@a", "x", "y@b"]
        assert found.length_per_key() == expected.length_per_key()
        same(found.values(), expected.values())

    def test_a_state_dict_of_a_bag_collection_loads(self, torchrec: Any) -> None:
        bags = self.bags(torchrec)
        sharded = ShardedEmbeddings(plan_for(*self.bag_tables()))
        assert sharded.state_dict().keys() == bags.state_dict().keys()
        sharded.load_state_dict(bags.state_dict())
        same(sharded(self.batch()).values(), bags(self.batch()).values())
        back = self.bags(torchrec)
        back.load_state_dict(sharded.state_dict())
        assert all(map(torch.equal, back.parameters(), bags.parameters()))

    def test_weighted_bags_give_the_same_sums(self, torchrec: Any) -> None:
        bags = torchrec.EmbeddingBagCollection(
            tables=[
                torchrec.EmbeddingBagConfig(
                    name="b", num_embeddings=9, embedding_dim=2, feature_names=["x", "y"]
                )
            ],
            is_weighted=True,
        )
        batch = self.batch(torch.linspace(0.5, 2, 2 * len(IDS)))
        sharded = ShardedEmbeddings.from_module(bags, plan_for(self.bag_tables()[1]))
        same(sharded(batch).values(), bags(batch).values())

    def test_a_collection_gives_the_same_jagged_tensors(self, torchrec: Any) -> None:
        config = torchrec.EmbeddingConfig
        rows = torchrec.EmbeddingCollection(
            tables=[
                config(name="a", num_embeddings=7, embedding_dim=3, feature_names=["y"]),
                config(name="b", num_embeddings=9, embedding_dim=3, feature_names=["x", "y"]),
            ]
        )
        plan = plan_for(
            table("a", features=("y",), pooling="none"),
            table("b", num_embeddings=9, features=("x", "y"), pooling="none"),
        )
        sharded = ShardedEmbeddings.from_module(rows, plan)
        assert sharded.state_dict().keys() == rows.state_dict().keys()
        found, expected = sharded(self.batch()), rows(self.batch())
        assert list(found) == list(expected)
        for key, jagged in expected.items():
            same(found[key].values(), jagged.values())
            assert torch.equal(found[key].lengths(), jagged.lengths())

    def test_both_kinds_come_in_one_dict(self) -> None:
        plan = plan_for(table("a", features=("y",)), table("b", features=("x",), pooling="none"))
        found = ShardedEmbeddings(plan)(self.batch())
        assert found["y"].shape == (4, 3)
        assert torch.equal(found["x"].lengths(), LENGTHS)

    def test_other_features_or_another_order_are_refused(self, torchrec: Any) -> None:
        bags, (first, second) = self.bags(torchrec), self.bag_tables()
        with pytest.raises(UserError, match=r"order 'a', 'b', and the plan in the order 'b', 'a'"):
            ShardedEmbeddings.from_module(bags, plan_for(second, first))
        other = second.model_copy(update={"features": ("x",)})
        with pytest.raises(UserError, match=r"'b' reads x, y in the module and x in the plan"):
            ShardedEmbeddings.from_module(bags, plan_for(first, other))


def test_frozen_tables_stay_frozen_and_a_part_of_them_is_refused() -> None:
    both = nn.ModuleDict({"a": nn.EmbeddingBag(7, 3, mode="sum"), "b": nn.EmbeddingBag(7, 3)})
    plan = plan_for(table("a"), table("b", pooling="mean"))
    both["a"].requires_grad_(False)
    with pytest.raises(UserError, match=r"'a' of the module's tables do not train.*SGD\(lr=0\)"):
        ShardedEmbeddings.from_module(both, plan)
    both["b"].requires_grad_(False)
    found = ShardedEmbeddings.from_module(both, plan)
    assert not found(dict.fromkeys("ab", (IDS, LENGTHS)))["a"].requires_grad
