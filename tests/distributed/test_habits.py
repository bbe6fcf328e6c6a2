"""What PyTorch's users do with any model: freeze, drop, clip, scale, copy, compile, wrap."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from habits import Plain, Sharded, batch_of, plan_of, same
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from rowtier import UserError
from rowtier.torch import SGD, Bags, ShardedEmbeddings, Together

HERE = Path(__file__).parent


def optimizers(model: Sharded, lr: float = 0.5) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(model.top.parameters(), lr=lr), model.embeddings.optimizer]


@pytest.mark.parametrize("what", ["model", "embeddings"])
def test_frozen_rows_do_not_train(what: str) -> None:
    model = Sharded(plan_of(1))
    before = model.tables()
    (model if what == "model" else model.embeddings).requires_grad_(False)
    model.top.requires_grad_(True)
    model(batch_of(0)).backward()
    model.embeddings.optimizer.step()
    same(model.tables(), before, rtol=0)
    model.requires_grad_(True)
    model(batch_of(0)).backward()
    model.embeddings.optimizer.step()
    assert not torch.equal(model.tables()["a"], before["a"])


def test_weights_of_lookups_train_while_rows_are_frozen() -> None:
    embeddings = ShardedEmbeddings(plan_of(1), SGD(lr=0.5)).requires_grad_(False)
    weights = torch.ones(3, requires_grad=True)
    ids, lengths = torch.tensor([1, 9, 9]), torch.tensor([2, 1])
    before = embeddings({"fa": ids, "fb": ids})["fa"].clone()
    bag = embeddings({"fa": (ids, lengths, weights), "fb": torch.tensor([1, 2])})["fa"]
    bag.sum().backward()
    embeddings.optimizer.step()
    assert weights.grad is not None
    assert torch.equal(embeddings({"fa": ids, "fb": ids})["fa"], before)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("who", ["model", "all", "rows"])
def test_zero_grad_of_the_model_or_of_any_optimizer_drops_rows(who: str, to_none: bool) -> None:
    model = Sharded(plan_of(1))
    before = model.tables()
    every = torch.optim.Adam(model.parameters())
    model(batch_of(0)).backward()
    {"model": model, "all": every, "rows": model.embeddings.optimizer}[who].zero_grad(to_none)
    model.embeddings.optimizer.step()
    same(model.tables(), before, rtol=0)
    model(batch_of(1)).backward()
    model.zero_grad(to_none)
    model(batch_of(2)).backward()  # only this one counts
    model.embeddings.optimizer.step()
    plain = Plain()
    plain(batch_of(2)).backward()
    torch.optim.SGD(plain.parameters(), lr=0.5).step()
    same(model.tables(), plain.tables())


@pytest.mark.parametrize(("dropped", "passes"), [(True, 11), (False, 100)])
def test_training_without_ever_stepping_the_rows_is_warned_of(dropped: bool, passes: int) -> None:
    model = Sharded(plan_of(1))
    dense = torch.optim.SGD(model.parameters() if dropped else model.top.parameters(), lr=0.1)
    for _ in range(passes - 1):
        dense.zero_grad()
        model(batch_of(0)).backward()
        dense.step()
    dense.zero_grad()
    with pytest.warns(UserWarning, match=rf"{passes} backward passes.*embeddings.optimizer.step"):
        model(batch_of(0)).backward()


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "Adagrad"])
@pytest.mark.parametrize("foreach", [False, True])
def test_an_optimizer_of_all_parameters_leaves_rows_alone(kind: str, foreach: bool) -> None:
    model = Sharded(plan_of(1))
    before = model.tables()
    wide = getattr(torch.optim, kind)(model.parameters(), foreach=foreach, weight_decay=0.1)
    model(batch_of(0)).backward()
    wide.step()
    same(model.tables(), before, rtol=0)
    assert model.embeddings.engine.updates.sums is None or kind != "AdamW"  # nothing was measured
    model.embeddings.optimizer.step()
    assert not torch.equal(model.tables()["a"], before["a"])


@pytest.mark.parametrize("foreach", [False, True])
def test_one_norm_of_rows_and_all_else_clips_both(foreach: bool) -> None:
    model, plain = Sharded(plan_of(1)), Plain()
    for one in (model, plain):
        one(batch_of(0)).backward()
    norms = [clip_grad_norm_(one.parameters(), 0.1, foreach=foreach) for one in (model, plain)]
    torch.testing.assert_close(*norms)
    torch.optim.SGD(plain.parameters(), lr=0.5).step()
    for one in optimizers(model):
        one.step()
    same(model.tables(), plain.tables())
    torch.testing.assert_close(model.top.weight, plain.top.weight)


def test_what_looks_at_single_numbers_is_refused_by_name() -> None:
    model = Sharded(plan_of(1))
    model(batch_of(0)).backward()
    with pytest.raises(UserError, match=r"clip_grad_value_"):
        clip_grad_value_(model.parameters(), 0.1)
    with pytest.raises(UserError, match="order inf"):
        clip_grad_norm_(model.parameters(), 0.1, norm_type=float("inf"))
    clip_grad_value_(model.top.parameters(), 0.1)


def scaled_step(model: nn.Module, batch: Any, parts: Any, scaler: Any, clip: float = 0) -> float:
    """A step as PyTorch's pages show it, with fp16 where autocast wants it."""
    for part in parts:
        part.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(batch)
    scaler.scale(loss).backward()
    if clip:
        for part in parts:
            scaler.unscale_(part)
        clip_grad_norm_(model.parameters(), clip)
    for part in parts:
        scaler.step(part)
    scaler.update()
    return float(loss.detach())


@pytest.mark.parametrize("clip", [0, 0.1])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("as_one", [False, True])
def test_a_scaler_scales_rows_back(clip: float, wide: bool, as_one: bool) -> None:
    model, plain = Sharded(plan_of(1)), Plain()
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in "ab"]
    parts = optimizers(model)
    if wide:  # the handle is in both: the scale comes off once
        parts[0] = torch.optim.SGD(model.parameters(), lr=0.5)
    if as_one:
        parts = [Together(*parts)]
    twin = [torch.optim.SGD(plain.parameters(), lr=0.5)]
    for step in range(3):
        scaled_step(model, batch_of(step), parts, scalers[0], clip)
        scaled_step(plain, batch_of(step), twin, scalers[1], clip)
    same(model.tables(), plain.tables())


def test_on_two_ranks_a_scaler_gives_what_micro_batches_give(workers: Any) -> None:
    plain = Plain()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(3):
        optimizer.zero_grad()
        for rank in range(2):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = plain(batch_of(step, rank)) / 2
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    for tables, top in workers.run(2, _scaled, plan_of(2), -1):
        same(tables, plain.tables())
        torch.testing.assert_close(top, plain.top.weight.detach())


def test_a_step_that_is_not_finite_on_one_rank_is_skipped_on_all(workers: Any) -> None:
    whole = workers.run(2, _scaled, plan_of(2), 1)
    assert all(torch.isfinite(tables[name]).all() for tables, _ in whole for name in "ab")
    fewer = workers.run(2, _scaled, plan_of(2), -1, (0, 2))
    for (tables, _), (others, _) in zip(whole, fewer, strict=True):
        same(tables, others)


def _scaled(rank: int, group: Any, plan: Any, bad: int, steps: tuple[int, ...] = (0, 1, 2)) -> Any:
    """Train with a scaler; in one step rank 1's rows get gradients that are not finite."""
    model = Sharded(plan, group)
    wrapped = nn.parallel.DistributedDataParallel(model, process_group=group)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    parts = optimizers(model)
    for step in steps:
        for part in parts:
            part.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = wrapped(batch_of(step, rank))
        scaler.scale(loss).backward()
        if step == bad:  # of rows only: the dense part is finite everywhere
            found = model.embeddings(batch_of(step, rank))
            (found["fa"].sum() * (float("inf") if rank == 1 else 1.0)).backward()
        for part in parts:
            scaler.step(part)
        scaler.update()
        if step == bad:
            assert scaler.get_scale() == 512.0
            scaler.update(1024.0)
            # The dense part, being finite, has stepped: take that back for the comparison.
            model.top.weight.data += 0.5 * model.top.weight.grad
    return model.tables(), model.top.weight.detach()


def test_bf16_autocast_trains_rows_as_without_rowtier() -> None:
    model, plain = Sharded(plan_of(1)), Plain()
    for step in range(3):
        for one, parts in (
            (model, optimizers(model)),
            (plain, [torch.optim.SGD(plain.parameters(), lr=0.5)]),
        ):
            one.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = one(batch_of(step))
            loss.backward()
            for part in parts:
                part.step()
    same(model.tables(), plain.tables())


def test_two_optimizers_step_as_one() -> None:
    weights = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    both = Together(*(torch.optim.Adagrad([w], lr=0.1) for w in weights))
    for group in both.param_groups:
        group["lr"] = 0.25  # as a scheduler does
    sum(weights).backward()
    both.step()
    assert [w.item() for w in weights] == [0.75, 0.75]
    both.load_state_dict(both.state_dict())
    both.zero_grad()
    assert weights[0].grad is None
    with pytest.raises(UserError, match="no optimizer"):
        Together()


def _trained(model: Sharded, steps: int = 2) -> Sharded:
    for step in range(steps):
        model.zero_grad()
        model(batch_of(step)).backward()
        for part in optimizers(model):
            part.step()
    return model


def _saved(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), _saved])
def test_a_copy_trains_on_by_itself(copied: Any) -> None:
    model = _trained(Sharded(plan_of(1)))
    model.embeddings.optimizer.param_groups[0]["lr"] = 0.25
    before = model.tables()
    other = copied(model)
    same(other.tables(), before, rtol=0)
    assert other.embeddings.optimizer.param_groups[0]["lr"] == 0.25
    _trained(other, 1)
    same(model.tables(), before, rtol=0)
    same(_trained(model, 1).tables(), other.tables(), rtol=0)


def test_a_copy_of_one_ranks_part_is_refused(workers: Any) -> None:
    for said in workers.run(2, _copied, plan_of(2)):
        assert "2 ranks" in said
        assert "save_checkpoint" in said


def _copied(rank: int, group: Any, plan: Any) -> str:
    with pytest.raises(UserError) as error:
        copy.deepcopy(Sharded(plan, group))
    return str(error.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_compiled_model_gives_the_same_losses_in_one_graph(backend: str) -> None:
    torch._dynamo.reset()
    model, plain = Sharded(plan_of(1)), Sharded(plan_of(1))
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for step in range(3):
        losses = []
        for one, call in ((model, compiled), (plain, plain)):
            one.zero_grad()
            loss = call(batch_of(step))
            loss.backward()
            losses.append(loss.detach())
            for part in optimizers(one):
                part.step()
        torch.testing.assert_close(*losses)
    same(model.tables(), plain.tables())
    assert not model.embeddings.open_lookups
    with torch.no_grad():
        compiled(batch_of(3))
    assert not model.embeddings.open_lookups


def test_jagged_batches_and_their_weights_compile() -> None:
    torch._dynamo.reset()
    embeddings = ShardedEmbeddings(plan_of(1), SGD(lr=0.5))
    ids, lengths = torch.tensor([1, 9, 9]), torch.tensor([2, 1])

    def look_up(weights: torch.Tensor) -> torch.Tensor:
        offsets = torch.tensor([0, 2, 3])
        found = embeddings({"fa": (ids, lengths, weights), "fb": Bags(ids, offsets=offsets)})
        return found["fa"].square().sum() + found["fb"].sum()

    grads = []
    for call in (look_up, torch.compile(look_up, fullgraph=True, backend="aot_eager")):
        weights = torch.tensor([0.5, 2.0, 1.0], requires_grad=True)
        call(weights).backward()
        grads.append(weights.grad)
        embeddings.optimizer.zero_grad()
    torch.testing.assert_close(*grads)


def test_sequences_compile() -> None:
    torch._dynamo.reset()
    embeddings = ShardedEmbeddings(plan_of(1, pooling="none"), SGD(lr=0.5))
    compiled = torch.compile(embeddings, fullgraph=True, backend="aot_eager")
    ids, lengths = torch.tensor([1, 9, 9]), torch.tensor([2, 1])
    batch = {"fa": torch.tensor([[1, 2], [3, 4]]), "fb": (ids, lengths)}
    found, expected = compiled(batch), embeddings(batch)
    torch.testing.assert_close(found["fa"], expected["fa"])
    torch.testing.assert_close(found["fb"].values, expected["fb"].values)


@pytest.mark.parametrize("pooling", ["sum", "mean", "none"])
def test_the_unsharded_module_gives_the_same_and_can_be_exported(pooling: str) -> None:
    embeddings = ShardedEmbeddings(plan_of(1, pooling=pooling), SGD(lr=0.5))
    whole = embeddings.unsharded()
    ids, lengths = torch.tensor([1, 9, 9, 3]), torch.tensor([2, 0, 2])
    batch = {"fa": torch.tensor([[1, 2], [3, 4], [5, 6]]), "fb": (ids, lengths)}
    exported = torch.export.export(whole, (batch,)).module()
    for found in (whole(batch), exported(batch)):
        expected = embeddings(batch)
        torch.testing.assert_close(found["fa"], expected["fa"])
        torch.testing.assert_close(tuple(found["fb"]), tuple(expected["fb"]))


@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_the_dense_part_is_wrapped_and_rows_are_left_alone(workers: Any, wrap: str) -> None:
    plain = Plain()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    for step in range(3):
        optimizer.zero_grad()
        for rank in range(2):
            (plain(batch_of(step, rank)) / 2).backward()
        optimizer.step()
    for tables, top in workers.run(2, _wrapped, plan_of(2), wrap):
        same(tables, plain.tables())
        torch.testing.assert_close(top, plain.top.weight.detach())


def _wrapped(rank: int, group: Any, plan: Any, wrap: str) -> Any:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    model = Sharded(plan, group)
    if wrap == "ddp":
        wrapped: Any = nn.parallel.DistributedDataParallel(model, process_group=group)
    else:
        wrapped = fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    parts = [torch.optim.SGD(model.parameters(), lr=0.5), model.embeddings.optimizer]
    for step in range(3):
        for part in parts:
            part.zero_grad()
        wrapped(batch_of(step, rank)).backward()
        for part in parts:
            part.step()
    top = model.top.weight.detach()
    return model.tables(), top.full_tensor() if hasattr(top, "full_tensor") else top


def test_a_state_dict_on_one_rank_alone_is_an_error_that_says_so() -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "alone.py")], capture_output=True, text=True, timeout=100
    )
    assert "state_dict() was called on rank 0, and for 3 s not on rank 1" in done.stdout, done
    assert "all ranks must call it" in done.stdout
