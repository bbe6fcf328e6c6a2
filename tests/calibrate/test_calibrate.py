"""`rowtier calibrate` alone: a cluster file that planning accepts, or nothing at all."""

import json
import math
import shutil
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from cli.run import run

from rowtier.calibrate import disk, memory
from rowtier.calibrate.job import Job
from rowtier.calibrate.make import check_output
from rowtier.calibrate.tiers import ROW_BYTES
from rowtier.cluster import Cluster
from rowtier.errors import UserError


@pytest.fixture(autouse=True)
def _small_and_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(memory, "TABLE_BYTES", 2**24)
    monkeypatch.setattr(disk, "FILE_BYTES", disk.LEAST_FILE_BYTES)
    monkeypatch.setattr(disk, "REPEAT_S", 0.01)


def assert_times(times: list[float]) -> None:
    assert len(times) == len(ROW_BYTES)
    assert all(math.isfinite(t) and t > 0 for t in times)


def test_alone_it_writes_one_device_without_levels(tmp_path: Path) -> None:
    output = tmp_path / "made" / "cluster.yaml"
    code, out, errors = run(
        "calibrate", "--quick", "-o", str(output), "--disk", str(tmp_path), "--json"
    )
    assert (code, errors) == (0, "")
    facts = json.loads(out)
    cluster = Cluster.load(output)
    assert facts["cluster"] == cluster.to_data()
    assert (cluster.num_devices, cluster.levels, facts["links"]) == (1, (), [])
    assert [tier.name for tier in cluster.device.tiers] == ["ram", "ssd"]
    for tier in facts["tiers"]:
        assert_times(tier["read_s"])
        assert_times(tier["write_s"])
    assert {step["name"].rsplit(", ", 1)[1] for step in facts["work"]["steps"]} == {"alone"}
    assert not cluster.work.is_free
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["cluster.yaml", "made"]


def test_what_it_writes_can_be_planned_on_and_written_again(tmp_path: Path) -> None:
    output = tmp_path / "cluster.yaml"
    code, out, _ = run(
        "calibrate", "--quick", "-o", str(output), "--memory", "1GiB", "--name", "mine"
    )
    assert code == 0
    assert f"written to {output}" in out
    assert Cluster.load(output).device.tiers[0].capacity_bytes == 2**30
    assert run("validate", str(output))[0] == 0
    data, profile, plan = (str(tmp_path / name) for name in ("data", "profile", "plan"))
    assert run("synth", "sequence", "-o", data, "--samples", "200", "--rows", "1k")[0] == 0
    tables = f"{data}/tables.yaml"
    assert run("profile", f"{data}/data", "--tables", tables, "-o", profile)[0] == 0
    code, _, errors = run("plan", "--profile", profile, "--cluster", str(output), "-o", plan)
    assert (code, errors) == (0, "")
    assert run("calibrate", "--quick", "-o", str(output), "--name", "again")[0] == 0
    assert Cluster.load(output).name == "again"


def test_ram_is_never_taken_for_a_disk_nor_a_disk_for_ram(tmp_path: Path) -> None:
    output = tmp_path / "cluster.yaml"
    assert run("calibrate", "--quick", "-o", str(output), "--disk", str(tmp_path))[0] == 0
    ram, ssd = Cluster.load(output).device.tiers
    assert ram.granularity_bytes < 512 <= ssd.granularity_bytes


def test_progress_reaches_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rowtier.calibrate import work
    from rowtier.calibrate.make import CalibrateOptions, calibrate

    monkeypatch.setattr(work, "LEAST_S", 1.0)
    monkeypatch.setattr(work, "LONGEST_S", 1.0)
    shares: list[float] = []
    calibrate(CalibrateOptions(disk=tmp_path), progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_disk_without_direct_access_is_timed_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = disk.os.open

    def no_direct(path: str, flags: int, *rest: int) -> int:
        if flags & disk.os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return really(path, flags, *rest)

    monkeypatch.setattr(disk.os, "open", no_direct)
    found = disk.time_disk(tmp_path, 1, lambda: None)
    assert found.cached
    assert_times(list(found.read_s))
    assert not list(tmp_path.iterdir())


def refused(output: Path, *arguments: str) -> str:
    code, out, errors = run("calibrate", "--quick", "-o", str(output), *arguments)
    assert (code, out) == (2, "")
    assert not output.is_file()
    return " ".join(errors.split())


def test_an_output_that_cannot_be_written_is_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "time_memory", lambda *_: pytest.fail("measured"))
    (tmp_path / "file").write_text("mine")
    assert "cannot be written" in refused(tmp_path / "file" / "cluster.yaml")
    assert "is a folder" in refused(tmp_path)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_file_that_people_wrote_is_left_alone(tmp_path: Path) -> None:
    output = tmp_path / "cluster.yaml"
    Cluster.preset("local").save(output)
    before = output.read_bytes()
    code, _, errors = run("calibrate", "--quick", "-o", str(output))
    assert code == 2
    assert "left alone" in errors
    assert output.read_bytes() == before


def test_a_disk_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100, 90, 10))
    said = refused(tmp_path / "cluster.yaml", "--disk", str(tmp_path))
    assert "10 B are free" in said
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_meanwhile_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.os, "pwritev", full)
    assert "No space left" in refused(tmp_path / "cluster.yaml", "--disk", str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--disk", "/no/such/folder"), "no such folder"),
        (("--memory", "0B"), "less than 1 MiB"),
        (("--memory", "much"), "cannot be read"),
        (("--row-bytes", "100B"), "accepted are 64"),
        (("--name", ""), "name"),
    ],
)
def test_options_that_cannot_be_are_refused(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    assert says in refused(tmp_path / "cluster.yaml", *arguments)


def test_links_without_torch_name_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for module in ("torch", "torch.distributed"):
        monkeypatch.setitem(sys.modules, module, None)
    assert 'pip install "rowtier[torch]"' in refused(tmp_path / "cluster.yaml")


@pytest.mark.parametrize(
    "environment",
    [
        {"WORLD_SIZE": "4"},
        {"WORLD_SIZE": "4", "RANK": "0"},
        {"WORLD_SIZE": "four", "RANK": "0", "LOCAL_WORLD_SIZE": "2"},
        {"WORLD_SIZE": "4", "RANK": "4", "LOCAL_WORLD_SIZE": "2"},
        {"WORLD_SIZE": "4", "RANK": "0", "LOCAL_WORLD_SIZE": "3"},
        {"WORLD_SIZE": "4", "RANK": "0", "LOCAL_WORLD_SIZE": "0"},
    ],
)
def test_a_job_that_does_not_add_up_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(UserError, match="torchrun"):
        Job.from_environment(environment)


def test_levels_follow_from_the_job() -> None:
    assert Job().levels == ()
    assert Job(0, 4, 4).levels == (("node", 4),)
    assert Job(0, 4, 1).levels == (("cluster", 4),)
    two_by_three = Job(0, 6, 3)
    assert two_by_three.levels == (("node", 3), ("cluster", 2))
    assert two_by_three.groups("node") == [[0, 1, 2], [3, 4, 5]]
    assert two_by_three.groups("cluster") == [[0, 3], [1, 4], [2, 5]]


def test_devices_and_links_may_be_given_as_output(tmp_path: Path) -> None:
    check_output(Path("/dev/null"))
    (tmp_path / "link").symlink_to("made/cluster.yaml")
    check_output(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "made").is_dir()
