"""Tables of TorchRec models, topologies of clusters, versions that fit, and the command line."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torchrec
from backends.torchrec_cases import machine, statistics, tables
from cli.run import run

import rowtier.torchrec as rt
from rowtier import Cluster, Plan, Tables, UserError
from rowtier.backends import versions
from rowtier.backends.modules import model_of
from rowtier.backends.topology import cluster_for, topology_of
from rowtier.tables import Optimizer

MIXED = tables((900, 64, "sum"), (80, 32, "mean"), (5000, 16, "none"), (40, 32, "none"))


def test_the_facade_imports_nothing_until_a_name_is_used() -> None:
    code = "import sys, rowtier.torchrec as rt; print('torch' in sys.modules, dir(rt))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"False {sorted(rt.__all__)}"
    assert all(callable(getattr(rt, name)) for name in rt.__all__)


def test_a_models_tables_are_found_wherever_they_are() -> None:
    outer = torch.nn.Module()
    outer.add_module("inner", model_of(MIXED))
    found = rt.tables(outer, batch_size=64)
    assert {table.name: table for table in found} == {table.name: table for table in MIXED}


def test_optimizers_are_those_that_the_weights_were_given() -> None:
    wanted = tables((900, 64, "sum"), (80, 32, "sum"))
    changed = wanted.tables[0].model_copy(update={"optimizer": "adam"})
    wanted = wanted.model_copy(update={"tables": (changed, wanted.tables[1])})
    assert [t.optimizer for t in rt.tables(model_of(wanted))] == ["adam", "rowwise_adagrad"]


@pytest.mark.parametrize(
    ("theirs", "numbers", "ours"),
    [
        (torch.optim.SGD, {"lr": 0.1}, "sgd"),
        (torch.optim.Adam, {"lr": 0.1}, "adam"),
        (torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.01}, "adamw"),
        (torchrec.optim.Adam, {"lr": 0.1, "weight_decay": 0.01}, "adamw"),
        (torch.optim.SparseAdam, {"lr": 0.1}, "adam"),
        (torchrec.optim.LAMB, {"lr": 0.1}, "rowwise_adagrad"),  # nothing of ours: the default
    ],
)
def test_classes_in_the_backward_pass_name_fbgemms_kinds(
    theirs: Any, numbers: dict[str, float], ours: str
) -> None:
    assert [t.optimizer for t in rt.tables(in_backward(theirs, numbers))] == [ours]


@pytest.mark.parametrize(
    ("theirs", "numbers", "said"),
    [
        (
            torch.optim.AdamW,
            {"lr": 0.1},
            r"weights decay.*SparseAdamW\(lr=0.1\).* Adam with weight_decay",
        ),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, "MomentumSGD.*trains it without momentum"),
    ],
)
def test_classes_that_only_have_a_dense_meaning_are_refused(
    theirs: Any, numbers: dict[str, float], said: str
) -> None:
    with pytest.raises(UserError, match=f"table 't0'.*no gradient in a step.*{said}"):
        rt.tables(in_backward(theirs, numbers))


def in_backward(theirs: Any, numbers: dict[str, float]) -> Any:
    """A collection of one table that got an optimizer as TorchRec's users give it."""
    config = torchrec.EmbeddingBagConfig(
        name="t0", num_embeddings=10, embedding_dim=4, feature_names=["f0"]
    )
    bags = torchrec.EmbeddingBagCollection(tables=[config])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own torch.jit
        from torch.distributed.optim import _apply_optimizer_in_backward
    _apply_optimizer_in_backward(theirs, bags.parameters(), numbers)
    return bags


def test_torchrec_counts_as_much_state_as_we_do() -> None:
    from torchrec.distributed.planner.shard_estimators import _get_optimizer_multipler

    for kind in get_args(Optimizer):
        table = tables((900, 64, "sum")).tables[0].model_copy(update={"optimizer": kind})
        model = model_of(Tables(batch_size=4, tables=(table,)))
        (weight,) = model.parameters()
        share = _get_optimizer_multipler(weight._optimizer_classes[0], weight.shape)
        assert share * table.row_bytes == table.state_bytes()


def test_models_without_tables_and_tables_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="no EmbeddingBagCollection"):
        rt.tables(torch.nn.Linear(2, 2))
    twice = torch.nn.ModuleList([model_of(MIXED), model_of(MIXED)])
    with pytest.raises(UserError, match="give each its own"):
        rt.tables(twice)


def test_a_sharded_model_is_refused_with_the_way_out() -> None:
    with pytest.raises(UserError, match="before DistributedModelParallel"):
        rt.tables(torch.nn.Sequential())


def test_topology_has_the_clusters_sizes_and_speeds() -> None:
    found = topology_of(Cluster.preset("dgx-h100-2"))
    assert (found.world_size, found.local_world_size, found.compute_device) == (16, 8, "cuda")
    assert found.devices[3].storage.hbm == 80 * 10**9
    assert found.devices[3].storage.ddr == 2 * 10**12 // 8
    assert found.hbm_mem_bw == pytest.approx(3350e9 / 1e3)
    assert found.hbm_to_ddr_mem_bw == pytest.approx(55e9 / 1e3)
    assert found.intra_host_bw == pytest.approx(450e9 / 1e3)
    assert found.inter_host_bw == pytest.approx(50e9 / 1e3)


def test_without_hbm_devices_are_cpus() -> None:
    found = topology_of(Cluster.preset("local"))
    assert found.compute_device == "cpu"
    assert found.devices[0].storage.hbm == 0
    assert found.devices[0].storage.ddr == 2 * 2**30
    assert found.ddr_mem_bw == pytest.approx(5e9 / 1e3)


def test_torchrecs_own_assumptions_are_the_preset_of_that_name() -> None:
    told, untold = topology_of(cluster_for(16)), torchrec.distributed.planner.Topology(16, "cuda")
    assert told.intra_host_bw == pytest.approx(untold.intra_host_bw, rel=0.03)
    assert told.devices[0].storage.hbm == untold.devices[0].storage.hbm


def test_servers_are_refused() -> None:
    with pytest.raises(UserError, match="drop the servers"):
        topology_of(Cluster.preset("parameter-server"))


@pytest.mark.parametrize(
    ("torch_", "fbgemm", "rec", "said"),
    [
        ("2.13.0+cpu", "1.8.0", "1.8.0", None),
        ("2.12.1", "1.7.0", "1.7.0", None),
        ("2.13.0", None, "1.8.0", "fbgemm is not installed"),
        (None, None, "1.8.0", "torch and fbgemm are not installed"),
        ("2.13.0", "1.7.0", "1.8.0", "different releases"),
        ("2.8.0", "1.8.0", "1.8.0", r"built for torch 2\.13"),
    ],
)
def test_versions_that_do_not_fit_are_named(
    torch_: str | None, fbgemm: str | None, rec: str | None, said: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    found = {"torch": torch_, "fbgemm": fbgemm, "torchrec": rec}
    monkeypatch.setattr(versions, "installed", lambda: found)
    if said is None:
        versions.require()
        return
    with pytest.raises(UserError, match=said) as caught:
        versions.require()
    for text in ("torch==2.13.0", "fbgemm-gpu-cpu==1.8.0", "torchrec==1.8.0", str(rec)):
        assert text in str(caught.value)


def test_a_library_that_does_not_load_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise OSError(f"{name}: undefined symbol")

    monkeypatch.setattr(versions.importlib, "import_module", broken)
    with pytest.raises(UserError, match=r"undefined symbol.*torch==2\.13\.0"):
        versions.require()


def test_plan_runs_torchrecs_planner_and_says_how_long_it_took(tmp_path: Path) -> None:
    statistics(MIXED).save(tmp_path / "profile")
    machine().save(tmp_path / "cluster.yaml")
    arguments = [
        "plan", "--profile", str(tmp_path / "profile"), "--cluster", str(tmp_path / "cluster.yaml"),
        "-o", str(tmp_path / "plan"), "--method", "torchrec", "--time-limit", "20",
    ]  # fmt: skip
    code, out, errors = run(*arguments)
    assert (code, errors) == (0, "")
    assert "TorchRec's planner took" in out
    code, out, errors = run(*arguments, "--json")
    assert (code, errors) == (0, "")
    said = json.loads(out)["torchrec"]
    assert said["finished"] is True
    assert said["planner_seconds"] > 0
    plan = Plan.load(tmp_path / "plan")
    assert plan.origin["torchrec"]["score_ms"] == said["score_ms"]
    theirs = rt.to_plan(plan)
    assert rt.score(theirs, statistics(MIXED), machine()) == pytest.approx(said["score_ms"])
    for command in (["verify"], ["predict"], ["explain"]):
        code, _, errors = run(*command, str(tmp_path / "plan"))
        assert (code, errors) == (0, ""), command


def test_plan_refuses_what_torchrec_does_not_take(tmp_path: Path) -> None:
    statistics(MIXED).save(tmp_path / "profile")
    arguments = ["plan", "--profile", str(tmp_path / "profile"), "--cluster", "recshard-16",
                 "-o", str(tmp_path / "plan"), "--method", "torchrec", "--fit", "all"]  # fmt: skip
    code, _, errors = run(*arguments)
    assert code == 2
    assert "--reserve" in errors
