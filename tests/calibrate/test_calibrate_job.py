"""`rowtier calibrate` with real processes that talk through gloo."""

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.run import run

from rowtier.calibrate.links import MESSAGE_BYTES
from rowtier.calibrate.probes import WAYS
from rowtier.cluster import Cluster

pytest.importorskip("torch")

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
PATIENCE_S = 600
MEASURED = 3  # times at most: one short pass on a busy machine may explain all by other things


def under_torchrun(
    processes: int, output: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    command = [*TORCHRUN, str(processes), "-m", "rowtier", "calibrate", "-o", str(output)]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, env=ENVIRONMENT, timeout=PATIENCE_S
    )


def facts_in(out: str) -> dict[str, Any]:
    (line,) = [line for line in out.splitlines() if line.startswith("{")]
    facts: dict[str, Any] = json.loads(line)
    return facts


def assert_links(links: list[dict[str, Any]]) -> None:
    for level in links:
        for kind in ("all_to_all", "copies", "neighbour"):
            times = level[kind]
            assert 1 <= len(times["times_s"]) == len(times["sent_bytes"]) <= len(MESSAGE_BYTES)
            assert all(math.isfinite(t) and t > 0 for t in times["times_s"])
            assert times["latency_s"] >= 0
            assert 0 < times["bandwidth_bytes_per_s"] < math.inf


def assert_work(work: dict[str, Any], cluster: Cluster) -> None:
    ways = {step["name"].rsplit(", ", 1)[1] for step in work["steps"]}
    assert ways == set(WAYS)
    assert all(step["time_s"] > 0 and step["known_s"] > 0 for step in work["steps"])
    assert 0 <= work["hidden"] <= 1
    assert not cluster.work.is_free
    found = list(work["seconds"].values())
    assert all(seconds >= 0 and math.isfinite(seconds) for seconds in found)
    for step in work["steps"]:
        assert sum(map(math.prod, zip(step["counts"].values(), found, strict=True))) > 0


def assert_plannable(folder: Path, cluster: Path) -> None:
    data, profile, plan = (str(folder / name) for name in ("data", "profile", "plan"))
    assert run("synth", "sequence", "-o", data, "--samples", "200", "--rows", "1k")[0] == 0
    tables = f"{data}/tables.yaml"
    assert run("profile", f"{data}/data", "--tables", tables, "-o", profile)[0] == 0
    code, _, errors = run("plan", "--profile", profile, "--cluster", str(cluster), "-o", plan)
    assert (code, errors) == (0, "")


@pytest.mark.parametrize("processes", [2, 4])
def test_under_torchrun_it_writes_a_node_that_can_be_planned_on(
    tmp_path: Path, processes: int
) -> None:
    output = tmp_path / "cluster.yaml"
    for _ in range(MEASURED):
        done = under_torchrun(processes, output, "--memory", "4GiB", "--quick", "--json")
        assert done.returncode == 0, done.stderr
        facts = facts_in(done.stdout)
        cluster = Cluster.load(output)
        if cluster.work.round_s > 0 or cluster.work.step_s > 0:
            break
    assert cluster.work.round_s > 0 or cluster.work.step_s > 0
    assert facts["cluster"] == cluster.to_data()
    assert [(level.name, level.size) for level in cluster.levels] == [("node", processes)]
    assert cluster.device.tiers[0].capacity_bytes == 2**32 // processes
    assert_links(facts["links"])
    assert 0 < cluster.levels[0].sync_efficiency <= 1
    assert 0 < cluster.levels[0].exchange_efficiency <= 1
    assert_work(facts["work"], cluster)
    assert ("one_peer" in facts["links"][0]) == (processes > 2)
    assert_plannable(tmp_path, output)


def test_two_nodes_have_links_inside_and_between(tmp_path: Path) -> None:
    output = tmp_path / "cluster.yaml"
    done = as_nodes(2, 2, "-o", str(output), "--quick", "--json")
    assert [code for code, _, _ in done] == [0, 0, 0, 0], done
    facts = facts_in(done[0][1])
    assert [out for _, out, _ in done[1:]] == ["", "", ""]
    cluster = Cluster.load(output)
    assert [(level.name, level.size) for level in cluster.levels] == [("node", 2), ("cluster", 2)]
    assert_links(facts["links"])
    assert_plannable(tmp_path, output)


def test_what_one_rank_cannot_do_stops_all_with_its_reason(tmp_path: Path) -> None:
    output = tmp_path / "cluster.yaml"
    (tmp_path / "file").write_text("")
    done = as_nodes(1, 2, "-o", str(tmp_path / "file" / "cluster.yaml"))
    assert [code for code, _, _ in done] == [2, 2]
    assert all("rank 0:" in errors and "cannot be written" in errors for _, _, errors in done)
    done = as_nodes(1, 2, "-o", str(output), "--disk", str(tmp_path / "none"))
    assert [code for code, _, _ in done] == [2, 2]
    assert not output.exists()


def test_ranks_that_were_started_differently_say_so(tmp_path: Path) -> None:
    output, port = tmp_path / "cluster.yaml", free_port()
    ranks = [
        start((1, 2), 0, port, "-o", str(output)),
        start((1, 2), 1, port, "-o", str(output), "--row-bytes", "64B"),
    ]
    done = finished(ranks)
    assert [code for code, _, _ in done] == [2, 2]
    assert all("64 B rows" in " ".join(errors.split()) for _, _, errors in done)
    assert not output.exists()


def test_a_rank_that_is_killed_ends_the_others_with_a_reason(tmp_path: Path) -> None:
    output, port = tmp_path / "cluster.yaml", free_port()
    impatient = "import os\nfrom rowtier.calibrate import job, links\njob.TIMEOUT_S = 8.0\n"
    doomed = "links.time_links = lambda *_: os.kill(os.getpid(), 9)\n"
    main = "from rowtier.cli.main import main\nmain()\n"
    ranks = [
        start((1, 2), 0, port, "-o", str(output), program=("-c", impatient + main)),
        start((1, 2), 1, port, "-o", str(output), program=("-c", impatient + doomed + main)),
    ]
    done = finished(ranks)
    assert [code for code, _, _ in done] == [2, -9]
    assert "lost the others" in done[0][2]
    assert not list(tmp_path.iterdir())


def as_nodes(nodes: int, processes: int, *arguments: str) -> list[tuple[int, str, str]]:
    """Run every rank as torchrun would on several machines."""
    port = free_port()
    layout = (nodes, processes)
    return finished([start(layout, r, port, *arguments) for r in range(nodes * processes)])


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def start(
    layout: tuple[int, int],
    rank: int,
    port: int,
    *arguments: str,
    program: tuple[str, ...] = ("-m", "rowtier"),
) -> subprocess.Popen[str]:
    nodes, processes = layout
    job = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(nodes * processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "RANK": str(rank),
    }
    return subprocess.Popen(
        [sys.executable, *program, "calibrate", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **job},
    )


def finished(ranks: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of every rank."""
    try:
        said = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
        return [(rank.returncode, *texts) for rank, texts in zip(ranks, said, strict=True)]
    finally:
        for rank in ranks:
            rank.kill()
