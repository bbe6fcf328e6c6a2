"""One process with rows on the pretend accelerator: memories, checkpoints, clipping, refusals.

torch takes one such device a process, for good, so the trials run in a process of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

TRIALS = """
import json, sys
from rowtier.runtime.device.pretend import install
install()
import numpy as np, torch
from strategies import counted
from rowtier import Band, Cluster, Device, Level, Plan, Profile, Server, Table, Tier
from rowtier.cost.memory import used_bytes
from rowtier.runtime.on_devices import refuse_on_device
from rowtier.runtime.options import RunOptions
from rowtier.torch import Adagrad, ShardedEmbeddings, load_checkpoint, save_checkpoint

folder, said = sys.argv[1], {}
common = {"capacity_bytes": 2**40, "bandwidth_bytes_per_s": 1e9}
tiers = tuple(Tier(name=name, **common) for name in ("hbm", "dram"))
cluster = Cluster(
    name="one", levels=(Level(name="node", size=1, bandwidth_bytes_per_s=1e9),),
    device=Device(tiers=tiers),
)


def plan_of(cluster=cluster, **facts):
    table = Table(
        name="item", num_embeddings=700, embedding_dim=24, features=("item",), optimizer="adagrad",
        **{"dtype": "bf16"} | facts,
    )
    heat = np.random.default_rng(2).integers(0, 9, 700)
    bands = [Band(start=a, stop=b, scope=cluster.scopes[-1], tier=t)
             for a, b, t in ((0, 100, "hbm"), (100, 700, "dram"))]
    profile = Profile(4, (counted(table, heat),))
    return Plan.build("two tiers", profile, cluster, {"item": tuple(bands)}), profile


plan, profile = plan_of()
batch = {"item": (torch.arange(40) * 17 % 700, torch.full((8,), 5))}


def made(device, plan=plan, **options):
    return ShardedEmbeddings(plan, Adagrad(lr=0.1), device=device, **options)


def step(module, clipped=None):
    out = module(batch)["item"]
    out.backward(torch.ones(8, 24).to(out.device) / 3)
    norm = None if clipped is None else module.clip_grad_norm_(clipped)
    module.clip_grad_value_(0.2)
    module.optimizer.step()
    return norm


def weights(module):
    return module.state_dict()["item.weight"] if "item.weight" in module.state_dict() else next(
        iter(module.state_dict().values()))


there, here = made("pretend"), made("cpu")
said["devices"] = [str(m(batch)["item"].device) for m in (there, here)]
said["norms"] = [step(there, 0.5), step(here, 0.5)]
said["same"] = float((weights(there).float() - weights(here).float()).abs().max())
planned = used_bytes({t.name: b for t, b in plan}, profile, cluster)[0].tolist()
found = {name: 0 for name in cluster.tier_names}
for shard in there.engine.run_shards.values():
    arrays = (shard.weights, *shard.state.values())
    found[shard.piece.band.tier] += sum(a.numel() * a.element_size() for a in arrays)
    assert all(a.device.type == "pretend" for a in arrays)
said["planned"], said["allocated"] = planned, list(found.values())

for source, target in (("pretend", "cpu"), ("cpu", "pretend")):
    one = there if source == "pretend" else here
    path = f"{folder}/{source}"
    save_checkpoint(path, model=one, rows=one.optimizer)
    other = made(target)
    load_checkpoint(path, model=other, rows=other.optimizer)
    step(one), step(other)
    said[f"from {source}"] = float((weights(one).float() - weights(other).float()).abs().max())


def tried(name, job):
    try:
        job()
        said[name] = "nothing was refused"
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"


server = Server(name="parameters", level="node", tiers=tiers)
served, _ = plan_of(cluster.model_copy(update={"servers": (server,)}))
refused = RunOptions(), there.engine.side
tried("servers", lambda: refuse_on_device(served, *refused))
tried("grows", lambda: refuse_on_device(plan_of(ids="grow")[0], *refused))
tried("no such device", lambda: made("tpu"))
tried("no gpu", lambda: made("cuda"))
tried("moved", lambda: there.to("cpu"))
tried("migrate", lambda: there.migrate(plan))
tried("deltas", lambda: made("pretend", deltas=True))
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of the trials."""
    folder = tmp_path_factory.mktemp("saves")
    done = subprocess.run(
        [sys.executable, "-c", TRIALS, str(folder)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_outputs_are_where_the_rows_are(said: dict[str, Any]) -> None:
    assert said["devices"] == ["pretend:0", "cpu"]


def test_clipped_steps_give_what_the_host_gives(said: dict[str, Any]) -> None:
    assert said["norms"][0] == pytest.approx(said["norms"][1], rel=1e-6)
    assert said["same"] <= 1e-5


def test_each_memory_takes_what_was_planned(said: dict[str, Any]) -> None:
    for planned, allocated in zip(said["planned"], said["allocated"], strict=True):
        assert allocated == pytest.approx(planned, rel=0.1)
        assert allocated > 0


@pytest.mark.parametrize("source", ["pretend", "cpu"])
def test_checkpoints_go_from_one_device_to_the_other(said: dict[str, Any], source: str) -> None:
    assert said[f"from {source}"] <= 1e-5


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("no such device", ["UserError", "'tpu'", "cpu and cuda"]),
        ("no gpu", ["UserError", "'cuda'", "rowtier doctor"]),
        ("moved", ["UserError", "pretend:0", "device="]),
        ("migrate", ["UserError", "migrate on pretend:0", "checkpoint"]),
        ("servers", ["UserError", "parameters", 'device="cpu"']),
        ("grows", ["UserError", "'item'", "ids: hash"]),
        ("deltas", ["UserError", "deltas=True", 'device="cpu"']),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_way_out(
    said: dict[str, Any], what: str, words: list[str]
) -> None:
    assert all(word in said[what] for word in words), said[what]
