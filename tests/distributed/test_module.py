"""What the module takes, returns, supports and refuses."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import jobs
from cases import cluster_of
from pool import free_port
from strategies import counted

import rowtier
from rowtier import Band, MismatchError, Plan, Profile, Table, UserError
from rowtier.torch import (
    SGD,
    Adagrad,
    Bags,
    Pipeline,
    RowwiseAdagrad,
    ShardedEmbeddings,
    SparseAdam,
)

HERE = Path(__file__).parent


def plan_of(
    pooling: str = "sum", optimizer: str = "sgd", shape: tuple[int, ...] = (1,), **band: Any
) -> Plan:
    """One table of 20 rows in two bands."""
    facts = {"pooling": pooling, "optimizer": optimizer, "dtype": band.pop("dtype", "fp32")}
    table = Table(name="t", num_embeddings=20, embedding_dim=4, features=("f",), **facts)
    cluster = cluster_of(shape)
    heat = np.arange(20)[::-1].copy()
    top = {"scope": cluster.top, "tier": "ram", **band}
    bands = (
        Band(start=0, stop=6, scope="device", tier="ram"),
        Band(start=6, stop=20, **top),
    )
    return Plan.build("by hand", Profile(4, (counted(table, heat),)), cluster, {"t": bands})


def test_rectangles_come_back_as_rectangles() -> None:
    ids = torch.tensor([[1, 2, 3], [4, 5, 19]])
    module = ShardedEmbeddings(plan_of("none"))
    assert module({"f": ids})["f"].shape == (2, 3, 4)
    rows = module({"f": (ids.reshape(-1), torch.tensor([2, 4]))})["f"]
    assert rows.values.shape == (6, 4)
    assert rows.lengths.tolist() == [2, 4]
    assert ShardedEmbeddings(plan_of("sum"))({"f": ids})["f"].shape == (2, 4)


def test_offsets_and_lengths_say_the_same() -> None:
    module, ids = ShardedEmbeddings(plan_of("mean")), torch.tensor([1, 2, 3])
    one = module({"f": (ids, torch.tensor([1, 0, 2]))})["f"]
    other = module({"f": Bags(ids, offsets=torch.tensor([0, 1, 1, 3]))})["f"]
    assert torch.equal(one, other)
    assert not one[1].any()


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ({"f": torch.tensor([[20]])}, "feature 'f' has id 20 in sample 0 .* rows 0 to 19"),
        ({"f": (torch.tensor([1, -3]), torch.tensor([0, 2]))}, "id -3 in sample 1"),
        ({"g": torch.tensor([[1]])}, "no feature 'f'"),
        ({"f": (torch.tensor([1]), torch.tensor([2]))}, "lengths add up to 2, ids are 1"),
        ({"f": torch.tensor([[0.5]])}, "whole numbers"),
        ({"f": Bags(torch.tensor([1]), offsets=torch.tensor([0]))}, "offsets must begin with 0"),
        ([1, 2], "type list"),
    ],
)
def test_a_bad_batch_is_refused_by_name(batch: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        ShardedEmbeddings(plan_of())(batch)


def test_first_weights_do_not_depend_on_the_plan(workers: Any) -> None:
    seen = []
    for shape in ((1,), (2,), (2, 2)):
        plan = plan_of(shape=shape, exchange="sums", order="blocks")
        for shards in workers.run(plan.cluster.num_devices, _first, plan):
            whole = np.full((20, 4), np.nan, dtype=np.float32)
            for _, rows, (first, last), weights, _ in shards:
                whole[rows, first:last] = weights
            seen.append(whole)
    for whole in seen[1:]:
        both = ~np.isnan(whole)
        assert both.any()
        assert np.array_equal(whole[both], seen[0][both])
    assert np.abs(seen[0]).max() <= 20**-0.5
    assert seen[0].std() > 0.05


def _first(rank: int, group: Any, plan: Plan) -> Any:
    size = plan.cluster.group_size(1)
    return jobs.shards_of(
        ShardedEmbeddings(plan, process_group=group, local_world_size=size, seed=3)
    )


def test_gradients_of_several_backwards_add_up_to_one_update() -> None:
    ids, one, two = (
        torch.tensor([[1, 2], [2, 7]]),
        *(ShardedEmbeddings(plan_of(), SGD(lr=0.5)) for _ in "ab"),
    )
    one({"f": ids})["f"].sum().backward()
    one.optimizer.step()
    for part in ids:
        two({"f": part[None]})["f"].sum().backward()
    two.optimizer.step()
    assert all(torch.equal(one({"f": ids})["f"], two({"f": ids})["f"]) for _ in "a")


def test_zero_grad_drops_what_waits() -> None:
    module, ids = ShardedEmbeddings(plan_of(), SGD(lr=0.5)), torch.tensor([[1, 9]])
    before = module({"f": ids})["f"].detach().clone()
    module({"f": ids})["f"].sum().backward()
    module.optimizer.zero_grad()
    module.optimizer.step()
    assert torch.equal(module({"f": ids})["f"], before)


def test_no_grad_and_eval_look_up_without_a_graph() -> None:
    module, ids = ShardedEmbeddings(plan_of()).eval(), torch.tensor([[1, 9]])
    with torch.no_grad():
        assert not module({"f": ids})["f"].requires_grad
    assert module({"f": ids})["f"].requires_grad


def test_a_second_backward_is_refused() -> None:
    out = ShardedEmbeddings(plan_of())({"f": torch.tensor([[1]])})["f"]
    out.sum().backward(retain_graph=True)
    with pytest.raises(UserError, match="second backward"):
        out.sum().backward()


def test_weights_of_lookups_have_gradients_for_rows_and_are_refused_for_sums() -> None:
    ids, lengths = torch.tensor([1, 9, 9]), torch.tensor([2, 1])
    weights = torch.tensor([0.5, 2.0, 1.0], requires_grad=True)
    module = ShardedEmbeddings(plan_of())
    rows = torch.stack([module({"f": torch.tensor([[i]])})["f"][0] for i in ids]).detach()
    module({"f": (ids, lengths, weights)})["f"].sum().backward()
    assert torch.allclose(weights.grad, rows.sum(dim=1), atol=1e-6)
    with pytest.raises(UserError, match="exchange sums"):
        ShardedEmbeddings(plan_of(exchange="sums"))({"f": (ids, lengths, weights)})


def test_a_pipeline_refuses_weights_that_want_a_gradient() -> None:
    weights = torch.tensor([0.5, 2.0], requires_grad=True)
    batch = {"f": (torch.tensor([1, 9]), torch.tensor([2]), weights)}
    with pytest.raises(UserError, match=r"'f': its weights want a gradient.*call the module"):
        list(Pipeline(ShardedEmbeddings(plan_of()), [batch]))
    detached = {"f": (torch.tensor([1, 9]), torch.tensor([2]), weights.detach())}
    assert len(list(Pipeline(ShardedEmbeddings(plan_of()), [detached]))) == 1


def test_gradients_are_clipped_by_their_norm_over_all_ranks(workers: Any) -> None:
    plan = plan_of(shape=(2, 1), scope="level0", sync="sparse")
    results = workers.run(2, _clip, plan)
    # Both ranks look up rows 3 and 15 with gradients of 1: two rows of four ones, times two.
    assert [norm for norm, _ in results] == pytest.approx(2 * [2 * 8**0.5])
    # Row 3 has a copy on each rank, row 15 lies on one of them.
    assert sorted(moved for _, moved in results) == pytest.approx([0.5**0.5, 1.0], rel=1e-4)


def _clip(rank: int, group: Any, plan: Plan) -> tuple[float, float]:
    module = ShardedEmbeddings(plan, SGD(lr=1.0), group, gradients="sum", local_world_size=2)
    batch = {"f": torch.tensor([[3, 15]])}
    before = [w.copy() for *_, w, _ in jobs.shards_of(module)]
    module(batch)["f"].sum().backward()
    norm = module.clip_grad_norm_(1.0)
    module.optimizer.step()
    after = [w for *_, w, _ in jobs.shards_of(module)]
    moved = sum(float(np.square(a - b).sum()) for a, b in zip(after, before, strict=True))
    return norm, moved**0.5


def test_a_scheduler_changes_the_learning_rate() -> None:
    module, ids = ShardedEmbeddings(plan_of(), SGD(lr=1.0)), torch.tensor([[1]])
    scheduler = torch.optim.lr_scheduler.StepLR(module.optimizer, 1, gamma=0.5)
    moved = []
    for _ in range(3):
        before = module({"f": ids})["f"]
        before.sum().backward()
        module.optimizer.step()
        scheduler.step()
        moved.append((before - module({"f": ids})["f"]).mean().item())
    assert moved == pytest.approx([1.0, 0.5, 0.25], rel=1e-5)


def test_rowwise_adagrad_matches_fbgemm_when_eps_matches() -> None:
    fbgemm = pytest.importorskip("fbgemm_gpu", reason="fbgemm is not installed")
    assert fbgemm
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    theirs = SplitTableBatchedEmbeddingBagsCodegen(
        [(20, 4, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD, learning_rate=0.1, eps=1e-8,
    )  # fmt: skip
    start = torch.randn(20, 4)
    theirs.split_embedding_weights()[0].copy_(start)
    bag = torch.nn.EmbeddingBag.from_pretrained(start, freeze=False, mode="sum")
    ours = ShardedEmbeddings.from_module(
        bag, plan_of(optimizer="rowwise_adagrad"), RowwiseAdagrad(lr=0.1)
    )
    for _ in range(5):
        ids = torch.randint(0, 20, (6, 3))
        grad = torch.randn(6, 4)
        theirs(ids.reshape(-1), torch.arange(0, 19, 3)).backward(grad)
        ours({"f": ids})["f"].backward(grad)
        ours.optimizer.step()
    every = torch.arange(20)[:, None]
    assert torch.allclose(ours({"f": every})["f"], theirs.split_embedding_weights()[0], atol=1e-5)


def test_batches_may_come_with_addresses_from_a_worker() -> None:
    plan = plan_of(order="blocks")
    module, remapper = ShardedEmbeddings(plan), pickle.loads(pickle.dumps(made := plan.remapper()))
    batch = {"f": (torch.tensor([1, 9, 19]), torch.tensor([1, 2]))}
    assert torch.equal(module(remapper(batch))["f"], module(batch)["f"])
    made.forget()


def test_an_optimizer_the_plan_made_no_room_for_is_refused() -> None:
    with pytest.raises(MismatchError, match="SparseAdam was given, and the plan made room for sgd"):
        ShardedEmbeddings(plan_of(), SparseAdam())
    assert ShardedEmbeddings(plan_of(optimizer="adagrad"), Adagrad(lr=0.1)).optimizer


def test_a_plan_without_row_order_is_refused_with_the_remedy() -> None:
    plan = plan_of()
    bare = Plan.build("x", plan.profile, plan.cluster, plan.bands)
    with pytest.raises(UserError, match=r"no row order.*rowtier profile"):
        ShardedEmbeddings(bare)


def test_a_world_that_does_not_fit_the_plan_is_refused_with_both_named(workers: Any) -> None:
    with pytest.raises(MismatchError, match="4 devices, and this job has 1 rank"):
        ShardedEmbeddings(plan_of(shape=(2, 2)))
    with pytest.raises(AssertionError, match=r"2 devices in a level0, .* of this job are 4"):
        workers.run(4, _misfit, plan_of(shape=(2, 2)))


def _misfit(rank: int, group: Any, plan: Plan) -> None:
    ShardedEmbeddings(plan, process_group=group, local_world_size=4)


@pytest.mark.parametrize("killed", [0, 1, 2])
def test_a_rank_that_dies_is_named_by_the_others(killed: int) -> None:
    processes = _ranks_of("die.py", 3)
    for process in processes:  # all are training
        assert process.stdout is not None
        while "training" not in (line := process.stdout.readline()):
            assert line, "a rank ended early"
    processes[killed].send_signal(signal.SIGKILL)
    began = time.monotonic()
    outs = [process.communicate(timeout=60)[0] for process in processes]
    assert time.monotonic() - began < 30
    for rank, (process, out) in enumerate(zip(processes, outs, strict=True)):
        if rank != killed:
            assert process.returncode == 1
            assert "LostRankError" in out, out[-2000:]
            named = f"rank {killed} of 3 is gone" in out
            assert named or (killed == 0 and "rank 0, or whoever keeps the store" in out), out[
                -800:
            ]


def test_threads_that_need_the_interpreter_at_exit_do_not_abort_the_process() -> None:
    for process in _ranks_of("leave.py", 2):
        out = process.communicate(timeout=120)[0]
        assert process.returncode == 0, out
        assert "let go" in out


def _ranks_of(script: str, count: int) -> list[subprocess.Popen[str]]:
    """A process for every rank of a script beside this file."""
    port = str(free_port())
    paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    return [
        subprocess.Popen(
            [sys.executable, str(HERE / script), str(rank), port],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        for rank in range(count)
    ]  # fmt: skip


def test_importing_the_facade_is_all_it_takes() -> None:
    assert set(rowtier.torch.__all__) >= {"ShardedEmbeddings", "SGD"}


@pytest.mark.parametrize("exchange", ["rows", "sums"])
def test_a_pipeline_gives_what_a_plain_loop_gives_bit_for_bit(
    workers: Any, exchange: str, tmp_path: Path
) -> None:
    plan = plan_of(shape=(2, 2), exchange=exchange, staged=True, optimizer="adagrad", tier="ssd")
    for plain, piped in workers.run(4, _both_loops, plan, str(tmp_path)):
        for (*_, weights, state), (*_, others, states) in zip(plain, piped, strict=True):
            assert np.array_equal(weights, others)
            assert np.array_equal(state["sum"], states["sum"])


def _both_loops(rank: int, group: Any, plan: Plan, folder: str) -> Any:
    random = np.random.default_rng(rank)
    batches = [{"f": torch.from_numpy(random.integers(0, 20, (3, 4)))} for _ in range(8)]
    found = []
    for piped in (False, True):
        module = ShardedEmbeddings(
            plan, Adagrad(lr=0.1), group, local_world_size=2, tiers={"ssd": folder} if piped else {}
        )
        loop = Pipeline(module, batches) if piped else ((b, module(b)) for b in batches)
        for _, outputs in loop:
            outputs["f"].square().sum().backward()
            module.optimizer.step()
        found.append(jobs.shards_of(module))
    return found


def test_weights_of_rows_that_are_not_pooled_are_refused() -> None:
    ids, lengths = torch.tensor([1, 9]), torch.tensor([2])
    with pytest.raises(UserError, match="'f' has weights, and table 't' is not pooled"):
        ShardedEmbeddings(plan_of("none"))({"f": (ids, lengths, torch.ones(2))})


def test_rows_and_bytes_of_bands_are_counted_only_if_asked_for() -> None:
    plain, counting = (ShardedEmbeddings(plan_of(), counters=on) for on in (False, True))
    for module in (plain, counting):
        module({"f": torch.tensor([[1, 9]])})["f"].sum().backward()
        module.optimizer.step()
    found, facts = plain.count(), counting.count().to_dict()
    assert set(found.to_dict()) == {"steps", "ranks", "bytes_per_step"}
    assert found.to_dict()["bytes_per_step"] == facts["bytes_per_step"]
    assert facts["tiers_per_step"]["ram"]["lookups"] == 2
    for ask in (found.lines, found.lookups, found.moved):
        with pytest.raises(UserError, match="counters=True"):
            ask()
    counting.counters.reset()
    assert next(iter(counting.count().lines()))["rows"]["lookups"] == 0


def test_the_rest_of_the_model_is_measured_without_the_embeddings() -> None:
    module, layer = ShardedEmbeddings(plan_of()), torch.nn.Linear(4, 1)
    real = module.engine.forward

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(0.2)
        return real(*args, **options)

    with patch.object(module.engine, "forward", slow), module.measure_dense() as dense:
        for _ in range(3):
            pooled = module({"f": torch.tensor([[1, 9]])})["f"]
            time.sleep(0.02)
            layer(pooled).sum().backward()
            module.optimizer.step()
        with pytest.raises(UserError, match="one at a time"), module.measure_dense():
            pass
    assert dense.steps == 3
    assert 0.02 <= dense.seconds < 0.2
    module({"f": torch.tensor([[1, 9]])})["f"].sum().backward()
    module.optimizer.step()
    assert dense.steps == 3  # over


def test_dense_time_of_no_step_is_an_error() -> None:
    with ShardedEmbeddings(plan_of()).measure_dense() as dense:
        pass
    with pytest.raises(UserError, match="no step was measured"):
        _ = dense.seconds
