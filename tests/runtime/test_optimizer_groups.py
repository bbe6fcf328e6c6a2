"""Optimizers of rows: who gets which, parameter groups, checkpoints of them, and refusals."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from strategies import counted

torch = pytest.importorskip("torch", reason="torch is not installed")

from rowtier import Band, Cluster, Device, MismatchError, Plan, Profile, Table, Tier, UserError  # noqa: E402
from rowtier.runtime.optim import KINDS  # noqa: E402
from rowtier.tables import Optimizer  # noqa: E402
from rowtier.torch import (  # noqa: E402
    SGD,
    Adagrad,
    MomentumSGD,
    RowwiseAdagrad,
    ShardedEmbeddings,
    SparseAdam,
    SparseAdamW,
    load_checkpoint,
    save_checkpoint,
)

CLUSTER = Cluster(
    name="one",
    device=Device(tiers=(Tier(name="ram", capacity_bytes=2**40, bandwidth_bytes_per_s=1e9),)),
)


def plan_of(cut: int = 4, **kinds: str) -> Plan:
    """A table of 10 rows for every name, of the kind given; columns lie apart from `cut` on."""
    tables = [
        Table(name=name, num_embeddings=10, embedding_dim=4, features=(name,), optimizer=kind)
        for name, kind in kinds.items()
    ]
    spans = [(0, cut), (cut, 4)] if cut < 4 else [None]
    bands = tuple(Band(start=0, stop=10, scope="device", tier="ram", columns=s) for s in spans)
    stats = tuple(counted(table, np.arange(10)[::-1].copy()) for table in tables)
    return Plan.build("made", Profile(4, stats), CLUSTER, {t.name: bands for t in tables})


def train(module: Any, steps: int = 1, scheduler: Any = None) -> None:
    """Look up rows 1 and 2 of every table; all gradients are 1."""
    for _ in range(steps):
        found = module({table.name: torch.tensor([[1, 2]]) for table, _ in module.plan})
        sum(values.sum() for values in found.values()).backward()
        module.optimizer.step()
        if scheduler is not None:
            scheduler.step()


def rows_of(module: Any, name: str) -> Any:
    """All rows of a table."""
    return module.state_dict()[f"embedding_bags.{name}.weight"].clone()


def test_every_distinct_optimizer_is_a_group_with_all_its_numbers() -> None:
    plan = plan_of(a="sgd", b="adam", c="sgd", d="sgd")
    given = {"a": SGD(lr=0.1), "b": SparseAdam(eps=1e-6), "*": SGD(0.2, weight_decay=0.5)}
    groups = ShardedEmbeddings(plan, given).optimizer.param_groups
    assert [{k: v for k, v in group.items() if k != "params"} for group in groups] == [
        {"tables": ("a",), "kind": "sgd", "lr": 0.1, "weight_decay": 0.0},
        {"tables": ("b",), "kind": "adam", "lr": 1e-3, "weight_decay": 0.0, "eps": 1e-6,
         "betas": (0.9, 0.999)},
        {"tables": ("c", "d"), "kind": "sgd", "lr": 0.2, "weight_decay": 0.5},
    ]  # fmt: skip
    equal = {"a": SGD(0.1), "c": SGD(0.1), "*": [SGD(0.1), SparseAdam()]}
    groups = ShardedEmbeddings(plan, equal).optimizer.param_groups
    assert [group["tables"] for group in groups] == [("a", "c", "d"), ("b",)]


def test_tables_of_different_groups_do_not_run_as_one() -> None:
    plan = plan_of(a="sgd", b="sgd", c="sgd")

    def bundles(optimizer: Any) -> list[list[str]]:
        engine = ShardedEmbeddings(plan, optimizer).engine
        return [[table.name for table in bundle.tables] for bundle in engine.bundles]

    assert bundles(SGD()) == [["a", "b", "c"]]
    assert bundles({"b": SGD(0.5), "*": SGD()}) == [["a", "c"], ["b"]]


def test_each_table_is_updated_with_its_own_numbers_as_they_are_in_the_step() -> None:
    plan = plan_of(a="sgd", b="sgd")
    module = ShardedEmbeddings(plan, {"a": SGD(1.0), "b": SGD(0.5)})
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        module.optimizer, [lambda at: 0.5**at, lambda _: 1.0]
    )
    before = {name: rows_of(module, name) for name in "ab"}
    train(module, 2, scheduler)
    moved = {name: before[name] - rows_of(module, name) for name in "ab"}
    assert torch.allclose(moved["a"][[1, 2]], torch.tensor(1.5))
    assert torch.allclose(moved["b"][[1, 2]], torch.tensor(1.0))
    assert not moved["a"][3:].any()
    module.optimizer.param_groups[1]["weight_decay"] = 1.0
    now = rows_of(module, "b")
    train(module)
    assert torch.allclose(rows_of(module, "b")[1], now[1] - 0.5 * (1 + now[1]))
    assert torch.equal(rows_of(module, "b")[3:], now[3:])


def test_schedulers_that_cycle_momentum_and_betas_find_them() -> None:
    for plan, optimizer, name in (
        (plan_of(a="adamw"), SparseAdamW(), "betas"),
        (plan_of(a="momentum"), MomentumSGD(), "momentum"),
    ):
        module = ShardedEmbeddings(plan, optimizer)
        cycle = torch.optim.lr_scheduler.OneCycleLR(module.optimizer, max_lr=0.1, total_steps=10)
        first = module.optimizer.param_groups[0][name]
        train(module, 3, cycle)
        assert module.optimizer.param_groups[0][name] != first


def test_a_number_that_makes_no_sense_is_refused_when_it_is_read() -> None:
    with pytest.raises(UserError, match="weight_decay -1 of SGD: give 0 or more"):
        SGD(weight_decay=-1)
    with pytest.raises(UserError, match=r"betas \(0.9, 1.0\) of SparseAdam"):
        SparseAdam(betas=(0.9, 1.0))
    module = ShardedEmbeddings(plan_of(a="sgd"))
    module.optimizer.param_groups[0]["lr"] = float("nan")
    with pytest.raises(UserError, match="lr nan of SGD"):
        module.optimizer.step()
    module.optimizer.param_groups[0]["lr"] = torch.tensor(0.5)
    train(module)


def test_two_optimizers_of_one_kind_in_a_list_are_refused_with_the_mapping() -> None:
    with pytest.raises(UserError) as caught:
        ShardedEmbeddings(plan_of(a="sgd", b="sgd"), [SGD(0.1), SGD(0.2)])
    first, second = "SGD(lr=0.1, weight_decay=0.0)", "SGD(lr=0.2, weight_decay=0.0)"
    assert f"{first} and {second} are both for `optimizer: sgd`" in str(caught.value)
    assert f"optimizer={{'a': {first}, '*': {second}}}" in str(caught.value)


def test_a_kind_that_was_not_given_is_refused_with_its_tables() -> None:
    plan = plan_of(a="sgd", b="adam", c="adam")
    for given in (SGD(0.1), [SGD(0.1)], {"*": SGD(0.1)}, {"a": SGD(0.1)}, []):
        with pytest.raises(MismatchError) as caught:
            ShardedEmbeddings(plan, given)
        if given:
            assert "no optimizer for tables 'b', 'c', `optimizer: adam`" in str(caught.value)
            assert "SparseAdam(lr=…)" in str(caught.value)
    groups = ShardedEmbeddings(plan).optimizer.param_groups  # the defaults of each kind
    assert [(group["kind"], group["lr"]) for group in groups] == [("sgd", 0.01), ("adam", 0.001)]
    groups = ShardedEmbeddings(plan, {"a": SGD(0.1), "*": None}).optimizer.param_groups
    assert [(group["kind"], group["lr"]) for group in groups] == [("sgd", 0.1), ("adam", 0.001)]


def test_a_mapping_with_a_wrong_table_or_kind_is_refused() -> None:
    plan = plan_of(a="sgd", b="adam")
    with pytest.raises(MismatchError, match=r"table 'z', .* its tables are 'a', 'b'; "):
        ShardedEmbeddings(plan, {"z": SGD(), "*": None})
    with pytest.raises(MismatchError, match=r"SGD was given, .* \(table 'b': optimizer: adam\)"):
        ShardedEmbeddings(plan, {"b": SGD(), "*": None})


WEIGHT = torch.nn.Parameter(torch.zeros(2, 2))


@pytest.mark.parametrize(
    ("given", "why", "instead"),
    [
        (torch.optim.Adam, "moments decay", r"rowtier.torch.SparseAdam\(lr=…\)"),
        (torch.optim.Adam([WEIGHT], lr=0.1), "moments decay", r"SparseAdam\(lr=0.1, .*eps=1e-08\)"),
        (torch.optim.AdamW, "weights decay", r"SparseAdamW\(lr=…\), for .* `optimizer: adamw`"),
        (torch.optim.SGD([WEIGHT], lr=0.1, momentum=0.9), "momentum", "MomentumSGD.*momentum=0.9"),
        (
            torch.optim.SGD([WEIGHT], lr=0.1, momentum=0.9, nesterov=True),
            "momentum",
            "has no nesterov",
        ),
        (torch.optim.SGD([WEIGHT], lr=0.1, weight_decay=0.2), "weights decay", "weight_decay=0.2"),
        (torch.optim.SGD([WEIGHT], lr=0.1), "the rows are none", r"rowtier.torch.SGD\(lr=0.1"),
        (torch.optim.RMSprop, "the rows are none", "one of rowtier.torch .*RowwiseAdagrad"),
        (SGD, "is a class", r"SGD\(lr=…\)"),
        ("sgd", "'sgd'", "a mapping from names of tables"),
    ],
)
def test_optimizers_of_torch_are_refused_with_what_to_give_instead(
    given: Any, why: str, instead: str
) -> None:
    for where in (given, [given], {"a": given}, {"*": given}):
        with pytest.raises(UserError, match=f"(?s){why}.*{instead}"):
            ShardedEmbeddings(plan_of(a="sgd"), where)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_an_optimizer_in_the_backward_pass_is_not_lost_silently() -> None:
    from torch.distributed.optim import _apply_optimizer_in_backward

    bag = torch.nn.EmbeddingBag(10, 4, mode="sum")
    _apply_optimizer_in_backward(torch.optim.Adam, bag.parameters(), {"lr": 0.04})
    with pytest.raises(UserError, match=r"weight was given an optimizer .*SparseAdam\(lr=0.04"):
        ShardedEmbeddings.from_module(bag, plan_of(a="adam"))
    assert ShardedEmbeddings.from_module(bag, plan_of(a="adam"), SparseAdam(0.04))


def test_groups_cannot_be_added_later() -> None:
    module = ShardedEmbeddings(plan_of(a="sgd"))
    with pytest.raises(UserError, match="when the module is made"):
        module.optimizer.add_param_group({"params": [WEIGHT]})


def test_a_negative_value_to_clip_to_is_refused() -> None:
    with pytest.raises(UserError, match="clip_value -1: give 0 or more"):
        ShardedEmbeddings(plan_of(a="sgd")).clip_grad_value_(-1)


@pytest.mark.parametrize("kind", get_args(Optimizer))
def test_defaults_are_those_of_torch(kind: str) -> None:
    made = KINDS[kind]()
    assert made.kind == kind
    theirs: Any = {
        "momentum": torch.optim.SGD([WEIGHT], lr=0.01, momentum=0.9),
        "adagrad": torch.optim.Adagrad([WEIGHT]),
        "adam": torch.optim.SparseAdam([WEIGHT]),
        "adamw": torch.optim.AdamW([WEIGHT]),
    }.get(kind)
    if theirs is not None:
        defaults = {"weight_decay": 0.0} | theirs.defaults
        assert made.numbers() == {name: defaults[name] for name in made.numbers()}


@pytest.mark.parametrize("cut", [4, 1])
@pytest.mark.parametrize("kind", ["adagrad", "rowwise_adagrad"])
def test_state_begins_with_the_initial_accumulator_value(kind: str, cut: int) -> None:
    kwargs = {"lr": 0.1, "initial_accumulator_value": 0.5}
    module = ShardedEmbeddings(plan_of(cut, a=kind), KINDS[kind](**kwargs))
    state = module.optimizer.state_dict()["state"]["embedding_bags.a.weight"]["sum"]
    assert (state == 0.5).all()
    before = rows_of(module, "a")
    train(module)
    moved = (before - rows_of(module, "a"))[1]
    assert moved.numpy() == pytest.approx(np.full(4, 0.1 / 1.5**0.5), abs=1e-6)


@pytest.mark.parametrize("cut", [4, 3])
def test_squares_of_a_row_have_the_decay_of_all_its_columns(cut: int) -> None:
    module = ShardedEmbeddings(
        plan_of(cut, a="rowwise_adagrad"),
        RowwiseAdagrad(lr=0.1, weight_decay=2.0),
        init=lambda _, rows: np.tile(np.array([0.0, 1, 2, 3], np.float32), (len(rows), 1)),
    )
    train(module)
    gradient = 1 + 2 * np.array([0.0, 1, 2, 3])
    mean = np.square(gradient).mean()
    state = module.optimizer.state_dict()["state"]["embedding_bags.a.weight"]["sum"]
    assert state[:3].numpy() == pytest.approx([0, mean, mean])
    expected = np.array([0.0, 1, 2, 3]) - 0.1 * gradient / mean**0.5
    assert rows_of(module, "a")[1].numpy() == pytest.approx(expected, abs=1e-5)


def test_row_wise_decay_is_that_of_torchrecs_class() -> None:
    optim = pytest.importorskip("torchrec.optim", reason="TorchRec is not installed")
    torch.manual_seed(1)
    weight = torch.nn.Parameter(torch.randn(10, 4))
    numbers = {"lr": 0.1, "weight_decay": 0.3, "eps": 1e-8, "initial_accumulator_value": 0.2}
    theirs = optim.RowWiseAdagrad([weight], **numbers)
    bag = torch.nn.EmbeddingBag.from_pretrained(weight.detach().clone(), freeze=False, mode="sum")
    plan = plan_of(2, a="rowwise_adagrad")
    ours = ShardedEmbeddings.from_module(bag, plan, RowwiseAdagrad(**numbers))
    for _ in range(5):
        weight.grad = torch.randn(10, 4)  # all rows have gradients: dense and sparse are the same
        ours({"a": torch.arange(10)[:, None]})["a"].backward(weight.grad.clone())
        theirs.step()
        ours.optimizer.step()
    assert torch.allclose(rows_of(ours, "a"), weight, atol=1e-5)


def test_a_checkpoint_of_other_groups_loads_by_table(tmp_path: Any) -> None:
    plan = plan_of(a="adagrad", b="adagrad", c="adagrad")
    apart = {"a": Adagrad(0.1), "b": Adagrad(0.2, weight_decay=0.5), "c": Adagrad(0.1, eps=1e-3)}
    saved = ShardedEmbeddings(plan, apart)
    saved.optimizer.param_groups[2]["lr"] = 0.7
    train(saved)
    save_checkpoint(tmp_path, model=saved, rows=saved.optimizer)

    # Two of them together here, whose numbers were the same by then: nothing is in the way.
    again = ShardedEmbeddings(plan, {"c": Adagrad(9.0), "b": Adagrad(8.0), "a": Adagrad(7.0)})
    load_checkpoint(tmp_path, model=again, rows=again.optimizer)
    numbers = {group["tables"]: group["lr"] for group in again.optimizer.param_groups}
    assert numbers == {("a",): 0.1, ("b",): 0.2, ("c",): 0.7}
    assert again.optimizer.param_groups[1]["weight_decay"] == 0.5
    train(saved)
    train(again)
    for name in "abc":
        assert torch.equal(rows_of(saved, name), rows_of(again, name))

    together = ShardedEmbeddings(plan, Adagrad())
    with pytest.raises(MismatchError, match=r"'a' and 'b' .* lr 0.1, weight_decay 0.0 and lr 0.2"):
        load_checkpoint(tmp_path, model=together, rows=together.optimizer)
    state = saved.optimizer.state_dict()
    together.optimizer.load_state_dict({**state, "param_groups": []})
    assert together.optimizer.param_groups[0]["lr"] == 0.01
    together.optimizer.load_state_dict(ShardedEmbeddings(plan, Adagrad(0.3)).optimizer.state_dict())
    apart_again = ShardedEmbeddings(plan, apart)
    apart_again.optimizer.load_state_dict(together.optimizer.state_dict())
    assert [group["lr"] for group in apart_again.optimizer.param_groups] == [0.3] * 3


def test_a_checkpoint_from_before_groups_had_tables_loads() -> None:
    plan = plan_of(a="sgd", b="adam", c="adam")
    module = ShardedEmbeddings(plan, {"c": SparseAdam(0.5), "*": None})
    state = module.optimizer.state_dict()
    old = [{"kind": "sgd", "lr": 0.25, "initial_lr": 0.5}, {"kind": "adam", "lr": 0.125}]
    module.optimizer.load_state_dict({**state, "param_groups": old})
    groups = module.optimizer.param_groups
    assert [group["lr"] for group in groups] == [0.25, 0.125, 0.125]
    assert groups[0]["initial_lr"] == 0.5
    assert groups[1]["eps"] == 1e-8
