"""Another plan in the middle of training equals a checkpoint loaded under it, bit for bit.

ROWTIER_DRAWN_PLANS multiplies how many pairs of plans are drawn.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import counted

torch = pytest.importorskip("torch", reason="torch is not installed")

from cases import Case, drawn_plans, placed_bands, placements
from migrate_jobs import (
    moved_and_reloaded,
    other_batches,
    other_calls,
    piped,
    refused,
    two_plans,
)
from pool import free_port

import rowtier
from rowtier import Band, Device, Plan, Profile, UserError
from rowtier.runtime.store.storage import Shard
from rowtier.torch import Disk, ShardedEmbeddings

HERE = Path(__file__).parent
MANY = int(os.environ.get("ROWTIER_DRAWN_PLANS", "1"))


@st.composite
def plan_pairs(draw: st.DrawFn) -> tuple[Plan, Plan]:
    """Two plans of the same tables on the same ranks: other heat, other bands, or only one."""
    old = draw(drawn_plans(dtypes=("fp32", "fp32", "fp16", "bf16")))
    stats = [old.profile[table.name] for table, _ in old]
    again = []
    for table, _ in old:
        rows = table.num_embeddings
        heat = draw(st.lists(st.integers(0, 4), min_size=rows, max_size=rows))
        again.append(counted(table, np.array(heat, dtype=np.int64)))
    cluster = old.cluster
    kinds = draw(st.one_of(st.just([]), placements(cluster)))
    placed = {
        entry.table.name: draw(
            st.one_of(
                placed_bands(entry.table, cluster, kinds), st.just(old.bands[entry.table.name])
            )
        )
        for entry in stats
    }
    new = Plan.build("drawn", Profile(4, tuple(again)), cluster, placed)
    if draw(st.sampled_from([False, False, True])):  # the same rows are hot
        new = Plan(new.method, placed, cluster, old.profile, old.made_for, old.order)
    return old, new


@settings(max_examples=20 * MANY, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan_pairs(), st.integers(0, 2**32), st.booleans(), st.sampled_from([1 << 20, 1000, 3000]))
def test_a_migration_is_a_checkpoint_loaded_under_the_new_plan_bit_for_bit(
    workers: Any, tmp_path_factory: Any, plans: tuple[Plan, Plan], seed: int, on_disk: bool,
    extra: Any,
) -> None:  # fmt: skip
    old, new = plans
    case = Case(old, seed, 4, exact=False)
    options: dict[str, Any] = {"extra_memory": extra}
    if on_disk:
        options["tiers"] = {"ssd": Disk(tmp_path_factory.mktemp("ssd"), "1MiB")}
    results = workers.run(
        case.size, moved_and_reloaded, old, new, case.weights, case.steps, case.grads, options
    )
    check_figures(rowtier.diff(old, new, extra_bytes=extra), results)


def check_figures(expected: rowtier.Diff, results: list[dict[str, Any]]) -> None:
    """What really travelled is what diff said, by holder and level."""
    for found in results:
        assert found["moved_bytes"] == expected.moved_bytes
        assert found["within_bytes"] == int(expected.within_bytes.sum())
        assert found["sent_bytes"] == tuple(expected.sent_bytes.sum(axis=0).tolist())
        assert found["received_bytes"] == tuple(expected.received_bytes.sum(axis=0).tolist())
        assert found["within_by_rank"] == tuple(expected.within_bytes.sum(axis=0).tolist())
        assert found["level_bytes"] == {level.name: level.moved_bytes for level in expected.levels}
        assert found["predicted_s"] == pytest.approx(expected.move_s)


def test_what_does_not_fit_is_refused_by_name_and_changes_nothing(workers: Any) -> None:
    said = workers.run(2, refused)
    for found in said:
        assert "num_embeddings 40 in the old plan and 41 in the new" in found["other model"]
        assert "MismatchError" in found["other size"]
        assert (
            "save_checkpoint here and load_checkpoint in a job of that size"
            in (found["other size"])
        )
        assert "takes a rowtier.Plan, and this is a str" in found["no plan"]
        assert "extra_memory 10: give" in found["little memory"]
        assert "gradients of 1 backward pass wait: call optimizer.step()" in found["gradients wait"]
        assert "rank 1 has order of rows of table 't0'" in found["ranks differ"]
    assert "rank 1 cannot migrate, so no rank can: " in said[0]["one refuses"]
    assert "num_embeddings 40" in said[1]["one refuses"]


def test_batches_of_before_are_asked_for_again_or_refused(workers: Any) -> None:
    for found in workers.run(4, other_batches):
        assert "for another plan, where its rows have other addresses" in found["addressed"]
        assert "embeddings.plan.remapper()" in found["asked of addressed"]
        assert "made before embeddings.migrate" in found["backward"]


def test_a_pipeline_goes_on_over_a_migration(workers: Any) -> None:
    workers.run(4, piped)


def test_a_rank_that_makes_another_call_is_named(workers: Any) -> None:
    for said in workers.run(2, other_calls):
        assert re.search("rank 1 is in forward and rank 0 is in migrate", said), said


def test_after_a_failure_in_the_middle_nothing_works_any_more() -> None:
    old, new = two_plans(1)
    module = ShardedEmbeddings(old)
    with (
        patch.object(Shard, "put", side_effect=OSError("disk is gone")),
        pytest.raises(OSError, match="disk is gone"),
    ):
        module.migrate(new)
    for call in (
        lambda: module(old.remapper()({"t0": [[1]], "t1": [[1]]})),
        module.state_dict,
        module.optimizer.step,
        lambda: module.migrate(old),
    ):
        with pytest.raises(UserError, match=r"after a migration that failed \(OSError: disk is"):
            call()


def test_rows_need_no_room_twice_while_they_move() -> None:
    done = _started("migrate_peak.py")
    out = done.communicate(timeout=120)[0]
    assert done.returncode == 0, out
    rounds, peak, rows = map(int, re.findall(r"\d+", out.splitlines()[-1]))
    assert rounds > 4
    assert peak < rows / 3, out  # 8 MiB were asked for; both plans at once would be all of it


def test_a_rank_that_dies_in_a_migration_is_named_by_the_others() -> None:
    port = str(free_port())
    processes = [_started("migrate_until_killed.py", str(rank), port) for rank in range(3)]
    for process in processes:  # all are at it
        assert process.stdout is not None
        while "training" not in (line := process.stdout.readline()):
            assert line, "a rank ended early"
    processes[1].send_signal(signal.SIGKILL)
    outs = [process.communicate(timeout=60)[0] for process in processes]
    for rank in (0, 2):
        assert processes[rank].returncode == 1
        assert "LostRankError" in outs[rank], outs[rank][-2000:]
        assert "rank 1 of 3 is gone" in outs[rank], outs[rank][-800:]


def _started(script: str, *arguments: str) -> subprocess.Popen[str]:
    """A script beside this file in a process of its own."""
    paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, str(HERE / script), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_pages_of_a_disk_are_used_again(tmp_path: Path) -> None:
    old, new = two_plans(1)
    on_disk = [
        Plan.build(
            "made",
            Profile(4, tuple(counted(t, np.arange(t.num_embeddings) % (9 - i)) for t, _ in old)),
            old.cluster,
            {t.name: (Band(start=0, stop=t.num_embeddings, scope="device", tier="ssd"),)
             for t, _ in old},
        )
        for i in range(2)
    ]  # fmt: skip
    module = ShardedEmbeddings(old, tiers={"ssd": Disk(tmp_path, "1MiB")})
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    disk = module.engine.memories["ssd"]
    assert isinstance(disk, Disk)
    pages = []
    for plan in [*on_disk, new, *on_disk, old, *on_disk]:
        made = module.migrate(plan)
        assert made.within_bytes == sum(rowtier.diff(old, plan).within_bytes.flat)
        pages.append(sum(one.count for one in disk.pages.values()))
        for name, value in module.state_dict().items():
            assert torch.equal(value, weights[name])
        old = plan
    assert pages[-1] == pages[1]


def test_a_plan_that_cannot_be_placed_leaves_the_old_one_in_place(tmp_path: Path) -> None:
    old, new = two_plans(1)
    module = ShardedEmbeddings(old, tiers={"ssd": tmp_path})
    only_ram = new.cluster.model_copy(update={"device": Device(tiers=new.cluster.device.tiers[:1])})
    before = module.state_dict()
    with pytest.raises(UserError, match="tiers: no tier 'ssd'"):
        module.migrate(Plan(new.method, new.bands, only_ram, new.profile, new.made_for, new.order))
    assert module.plan is old
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    module({"t0": torch.tensor([[1]]), "t1": torch.tensor([[2]])})["t0"].sum().backward()
    module.optimizer.step()
    assert module.migrate(new).rounds == 1
