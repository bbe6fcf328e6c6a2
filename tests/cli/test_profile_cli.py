"""`rowtier profile` as a user runs it, and what it says when something is wrong."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli.profile_cases import counts, nothing_left, one_table, profile, runs
from cli.run import run

from rowtier import Profile, ProfileOptions, Table, Tables, make_workload
from rowtier.profile.count_legs import CountingJob
from rowtier.profile.make import plan_legs
from rowtier.profile.readers import open_source

DATA = Path(os.environ.get("ROWTIER_DATA", Path(__file__).parents[3] / "shared" / "data"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the real files in {DATA}")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    make_workload("sequence", tmp_path / "data", samples=2000, rows=5000, users=300)
    return tmp_path / "data"


def test_measure_then_show(dataset: Path, tmp_path: Path) -> None:
    code, text, errors = profile(dataset / "data", dataset / "tables.yaml", tmp_path / "p")
    assert (code, errors) == (0, "")
    assert text.startswith("2 tables")
    assert "of 'user'" not in text  # nearly every user occurs
    code, shown, _ = run("profile", "show", str(tmp_path / "p"))
    assert code == 0
    assert "item" in shown
    assert max(map(len, shown.splitlines())) <= 100
    facts = json.loads(run("profile", "show", str(tmp_path / "p"), "--json")[1])
    item = next(table for table in facts["tables"] if table["name"] == "item")
    assert item["served_by"][0] < item["served_by"][1] < item["served_by"][2]
    assert item["lookups"] == Profile.load(tmp_path / "p")["item"].lookups
    nothing_left(tmp_path, "data", "p")


def test_untouched_rows_and_drift_raise_alerts(tmp_path: Path) -> None:
    make_workload("drift", tmp_path / "d", samples=300_000, rows=2000, rate=0.9)
    tables = tmp_path / "d" / "tables.yaml"
    text = tables.read_text().replace("num_embeddings: 2000", "num_embeddings: 90000")
    assert "90000" in text
    tables.write_text(text)
    code, said, _ = profile(tmp_path / "d" / "data", tables, tmp_path / "p")
    assert code == 0
    flat = " ".join(said.split())
    assert "of 'item' is never touched" in flat
    assert "could be given back" in flat
    assert "hot set of 'item' changed" in flat


def test_rows_that_a_small_sample_missed_are_not_called_waste(tmp_path: Path) -> None:
    make_workload("drift", tmp_path / "d", samples=3000, rows=20_000, rate=0.0)
    code, said, _ = profile(tmp_path / "d" / "data", tmp_path / "d" / "tables.yaml", tmp_path / "p")
    assert code == 0
    assert "could be given back" not in " ".join(said.split())
    assert "of lookups to come will be there: profile more data" in " ".join(said.split())


def test_the_same_profile_is_not_merged_twice(dataset: Path, tmp_path: Path) -> None:
    profile(dataset / "data", dataset / "tables.yaml", tmp_path / "p")
    code, _, errors = run("profile", "merge", *[str(tmp_path / "p")] * 2, "-o", str(tmp_path / "m"))
    assert code == 2
    assert "give each part of the data once" in errors
    assert not (tmp_path / "m").exists()


def test_a_sample_is_a_sample_and_repeatable(dataset: Path, tmp_path: Path) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        more = ("--sample", "10%", "--seed", seed)
        assert profile(dataset / "data", dataset / "tables.yaml", tmp_path / name, *more)[0] == 0
    a, b, c = (Profile.load(tmp_path / name) for name in "abc")
    assert a.fingerprint == b.fingerprint != c.fingerprint
    assert 100 < a["item"].samples < 320


@pytest.mark.parametrize("by", [("50%", "50%"), ("2016-01-02", "2016-01-02", "--time", "day")])
def test_what_lies_before_and_after_an_edge_gives_the_whole(
    dataset: Path, tmp_path: Path, by: tuple[str, ...]
) -> None:
    whole = pq.read_table(dataset / "data")
    days = [datetime.date(2016, 1, 1 + i // 1000) for i in range(len(whole))]
    pq.write_table(whole.append_column("day", pa.array(days)), tmp_path / "all.parquet", 300)
    for name, edge in zip(("--before", "--after"), by[:2], strict=True):
        arguments = (tmp_path / "all.parquet", dataset / "tables.yaml", tmp_path / name[2:])
        code, _, errors = profile(*arguments, name, edge, *by[2:])
        assert (code, errors) == (0, "")
        assert Profile.load(tmp_path / name[2:])["item"].samples == 1000
    parts = [str(tmp_path / name) for name in ("after", "before")]
    code, _, _ = run("profile", "merge", *parts, "-o", str(tmp_path / "merged"))
    assert code == 0
    profile(dataset / "data", dataset / "tables.yaml", tmp_path / "whole")
    assert counts(tmp_path / "merged") == counts(tmp_path / "whole")


def test_files_of_a_whole_are_merged_with_the_number_of_their_first_sample(
    dataset: Path, tmp_path: Path
) -> None:
    whole = pq.read_table(dataset / "data")
    for first, part in ((0, whole[:700]), (700, whole[700:])):
        file = tmp_path / f"{first}.parquet"
        pq.write_table(part, file)
        more = ("--first-sample", str(first))
        assert profile(file, dataset / "tables.yaml", tmp_path / str(first), *more)[0] == 0
    parts = [str(tmp_path / name) for name in ("700", "0")]
    assert run("profile", "merge", *parts, "-o", str(tmp_path / "merged"))[0] == 0
    profile(dataset / "data", dataset / "tables.yaml", tmp_path / "whole")
    assert counts(tmp_path / "merged") == counts(tmp_path / "whole")


def test_an_interrupted_run_leaves_nothing_and_resumes(dataset: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from rowtier.profile import make\n"
        "make.LEG_BYTES = 1\n"
        "count = make.count_leg\n"
        "def slow(*a, **k):\n"
        "    print('leg', flush=True); time.sleep(0.2); return count(*a, **k)\n"
        "make.count_leg = slow\n"
        "from rowtier.cli.main import main\n"
        "main()\n"
    )
    out = tmp_path / "p"
    arguments = ["profile", str(dataset / "data"), "--tables", str(dataset / "tables.yaml")]
    command = [sys.executable, "-c", code, *arguments, "-o", str(out)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    for _ in range(3):
        running.stdout.readline()
    running.send_signal(signal.SIGKILL)
    running.wait()
    running.stdout.close()
    assert not out.exists()
    nothing_left(tmp_path, "data", ".p.rowtier-lock", ".p.rowtier-parts")
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=True)
    again = done.stdout.count("leg\n")
    fresh = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again <= fresh.stdout.count("leg\n") - 2
    resumed = Profile.load(out).fingerprint
    profile(dataset / "data", dataset / "tables.yaml", tmp_path / "direct")
    assert resumed == Profile.load(tmp_path / "direct").fingerprint
    nothing_left(tmp_path, "data", "p", "direct")


def test_resuming_another_job_is_refused(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / ".p.rowtier-parts" / "0123456789abcdef").mkdir(parents=True)
    arguments = (dataset / "data", dataset / "tables.yaml", tmp_path / "p")
    code, _, errors = profile(*arguments, "--resume")
    assert code == 2
    assert "0123456789abcdef" in errors
    assert "without --resume" in " ".join(errors.split())
    assert profile(*arguments)[0] == 0
    nothing_left(tmp_path, "data", "p")


@pytest.mark.parametrize("left", [".p.rowtier-parts", ".p.rowtier-parts/{job}", ".p.rowtier-lock"])
def test_a_run_killed_before_its_first_part_is_resumed(
    left: str, dataset: Path, tmp_path: Path
) -> None:
    options = ProfileOptions()
    job = CountingJob(
        open_source(dataset / "data", ["history", "user"]), Tables.load(dataset / "tables.yaml")
    )
    path = tmp_path / left.format(job=job.fingerprint(plan_legs(job, options)))
    path.write_text("") if left.endswith("lock") else path.mkdir(parents=True)
    arguments = (dataset / "data", dataset / "tables.yaml", tmp_path / "p")
    code, _, errors = profile(*arguments, "--resume")
    assert (code, errors) == (0, "")
    nothing_left(tmp_path, "data", "p")


def test_an_output_that_is_being_written_is_refused_before_any_work(tmp_path: Path) -> None:
    hold = (
        "import sys\n"
        "from rowtier.folders import claimed\n"
        "with claimed(sys.argv[1], 'profile.json'):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    out = str(tmp_path / "p")
    start = [sys.executable, "-c", hold, out]
    with subprocess.Popen(start, stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        one_table(tmp_path)
        given = ("--tables", str(tmp_path / "tables.yaml"))
        for command in (
            ("profile", "no-data", *given),
            ("profile", "no-data", *given, "--resume"),
            ("profile", "merge", "none", "nothing"),
            ("plan", "--profile", "none", "--cluster", "local"),
            ("synth", "rm1"),
            ("synth", "drift"),
        ):
            code, text, errors = run(*command, "-o", out)
            assert (code, text) == (2, ""), command
            assert f"process {other.pid} (-c {out}) is writing it" in " ".join(errors.split())
        other.kill()
    nothing_left(tmp_path, "tables.yaml", ".p.rowtier-lock")


def test_workers_end_when_their_parent_is_killed(dataset: Path, tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from rowtier.profile import make\n"
        "def slow(job, leg):\n"
        "    Path(sys.argv[2], f'pid-{os.getpid()}').touch()\n"
        "    time.sleep(300)\n"
        "make.count_leg = slow\n"
        "if __name__ == '__main__':\n"
        "    data = Path(sys.argv[1])\n"
        "    options = make.ProfileOptions(workers=2)\n"
        "    make.make_profile(data / 'data', data / 'tables.yaml', options)\n"
    )
    command = [sys.executable, str(script), str(dataset), str(tmp_path)]
    until = time.monotonic() + 100
    with subprocess.Popen(command) as parent:
        while len(found := list(tmp_path.glob("pid-*"))) < 2:
            assert parent.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        parent.kill()
    workers = [int(path.name.removeprefix("pid-")) for path in found]
    while any(map(runs, workers)):
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"f": [5, 7, 250, 9]}), tmp_path / "in" / "x.parquet")
    return tmp_path / "in"


def refused(tmp_path: Path, data: object, tables: Path, *says: str) -> None:
    code, text, errors = profile(data, tables, tmp_path / "p")
    assert (code, text) == (2, "")
    assert "Traceback" not in errors
    flat = " ".join(errors.split())
    for part in says:
        assert part in flat
    assert not (tmp_path / "p").exists()
    assert not list(tmp_path.glob(".p*"))


def test_bad_data_is_refused_by_name(ids: Path, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    tables = one_table(tmp_path / "t")
    file = ids / "x.parquet"
    refused(
        tmp_path, ids, tables, "x.parquet", "'f' has id 250 in sample 2", "0 to 99", "ids: hash"
    )
    (tmp_path / "g").mkdir()
    refused(tmp_path, ids, one_table(tmp_path / "g", features=["g"]), "x.parquet", "g: there is no")
    refused(tmp_path, tmp_path / "nowhere", tables, "nowhere")
    (tmp_path / "empty").mkdir()
    refused(tmp_path, tmp_path / "empty", tables, "empty")
    pq.write_table(pa.table({"f": ["red", "blue"]}), file)
    refused(tmp_path, ids, tables, "x.parquet", "'f' holds strings such as 'red'", "ids: hash")
    pq.write_table(pa.table({"f": [0.5, 1.5]}), file)
    refused(tmp_path, ids, tables, "x.parquet", "f", "double")
    pq.write_table(pa.table({"f": list(range(100)) * 50}), file)
    file.write_bytes(file.read_bytes()[:-200])
    refused(tmp_path, ids, tables, "x.parquet")


def test_a_wrong_option_is_refused(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rowtier.profile.on_dask.TIMEOUT_S", 1)
    arguments = (dataset / "data", dataset / "tables.yaml", tmp_path / "p")
    for more, says in (
        (("--on-out-of-range", "ignore"), "error, clip, drop, hash"),
        (("--before", "half"), "a share such as 10%"),
        (("--after", "150%"), "between 0% and 100%"),
        (("--before", "20%", "--after", "80%"), "no sample lies there"),
        (("--before", "0%"), "no sample lies there"),
        (("--before", "7", "--time", "nowhere"), "no such column"),
        (("--sample", "200%"), "10%"),
        (("--memory", "lots"), "24GiB"),
        (("--dask", "tcp://127.0.0.1:1"), "no Dask scheduler answers"),
    ):
        code, _, errors = profile(*arguments, *more)
        assert code == 2, more
        assert says in " ".join(errors.split()), more
        assert not (tmp_path / "p").exists()


def test_a_file_that_vanishes_is_named(dataset: Path) -> None:
    from rowtier.profile.make import make_profile
    from rowtier.profile.readers import open_source

    source = open_source(dataset / "data", ["history", "user"])
    shutil.rmtree(dataset / "data")
    with pytest.raises(ValueError, match="parquet"):
        list(source.read(source.parts[0], ["user"]))
    with pytest.raises(ValueError, match="data"):
        make_profile(dataset / "data", Tables.load(dataset / "tables.yaml"))


def test_a_full_disk_leaves_nothing_half_written(dataset: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs root to mount a small tmpfs")
    try:
        code, text, errors = profile(dataset / "data", dataset / "tables.yaml", small / "p")
        assert (code, text) == (2, "")
        assert "No space left" in " ".join(errors.split())
        assert not (small / "p").exists()
    finally:
        time.sleep(0.1)
        subprocess.run(["umount", str(small)], check=True)


@needs_data
def test_the_real_files_profile_with_no_options_beyond_the_tables(tmp_path: Path) -> None:
    tables = one_table(tmp_path, features=["item"], num_embeddings=43_098, pooling="none")
    code, _, errors = profile(DATA / "diginetica.parquet", tables, tmp_path / "d")
    assert (code, errors) == (0, "")
    stats = Profile.load(tmp_path / "d").stats[0]
    assert (stats.samples, stats.lookups, stats.touched) == (186_670, 906_140, 43_097)

    tables = one_table(tmp_path, features=["item"], num_embeddings=60_417, pooling="none")
    profile(DATA / "nowplaying.parquet", tables, tmp_path / "n")
    stats = Profile.load(tmp_path / "n").stats[0]
    assert (stats.samples, stats.lookups, stats.touched) == (128_077, 953_381, 60_416)

    books = {"user_id": 105_283, "isbn": 340_556, "book_author": 101_592, "publisher": 16_729}
    listed = tuple(
        Table(name=name, num_embeddings=2 * rows, embedding_dim=8, features=(name,), ids="hash")
        for name, rows in books.items()
    )
    Tables(batch_size=8, tables=listed).save(tmp_path / "tables.yaml")
    assert profile(DATA / "bookcrossing.parquet", tmp_path / "tables.yaml", tmp_path / "b")[0] == 0
    found = Profile.load(tmp_path / "b")
    for name, rows in books.items():
        assert found[name].samples == 1_149_780
        assert found[name].distinct_ids is not None
        assert found[name].distinct_ids.count == rows


@needs_data
def test_the_criteo_sample_profiles_with_its_empty_fields(tmp_path: Path) -> None:
    listed = tuple(
        Table(name=f"C{i}", num_embeddings=10_000, embedding_dim=8, features=(f"C{i}",), ids="hash")
        for i in range(1, 27)
    )
    Tables(batch_size=8, tables=listed).save(tmp_path / "tables.yaml")
    file = DATA / "criteo_sample.tsv"
    assert profile(file, tmp_path / "tables.yaml", tmp_path / "c")[0] == 0
    found = Profile.load(tmp_path / "c")
    fields = [line.split("\t") for line in file.read_text().splitlines()]
    for i in range(1, 27):
        values = [row[13 + i] for row in fields]
        stats = found[f"C{i}"]
        assert stats.samples == len(fields) == 10_000
        assert stats.lookups == sum(value != "" for value in values)
        assert stats.distinct_ids is not None
        assert stats.distinct_ids.count == len({value for value in values if value})
    assert 5_500 < found["C3"].distinct_ids.count < 6_500  # type: ignore[union-attr]
    assert np.mean([found[f"C{i}"].coverage for i in range(1, 27)]) < 1
