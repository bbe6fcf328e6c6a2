"""The claims collector, its gate on counts, and the page of results."""

# ruff: noqa: E402  (the imports follow the path)
from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
sys.path.append(str(ROOT / "docs"))

import claims
import make_results
from harness.claims.charts import draw, names
from harness.claims.gate import compare, counts_of, report
from harness.claims.own import OWN
from harness.claims.page import results_page
from harness.claims.papers import CLAIMS, FIGURES, figures_of, judge_all
from harness.claims.results import constant, goals_of, load_results, run_benchmark

VERSIONS = {"python": "3.11", "cpus": 2}
NAMES = [name for names in FIGURES.values() for name in names]


def sample(rows: list[dict[str, Any]], **figures: float | None) -> dict[str, Any]:
    return {"benchmark": "sample", "versions": VERSIONS, "rows": rows, "figures": figures}


def script(folder: Path, name: str, data: dict[str, Any], head: str = "") -> None:
    folder.mkdir(exist_ok=True)
    text = f"{head}\nimport json, sys\nprint('working', file=sys.stderr)\n"
    (folder / f"{name}.py").write_text(f"{text}print({json.dumps(data)!r})\n")


def trained(slow: int = 10, greedy: int = 500) -> dict[str, Any]:
    rows = [
        {"zipf": zipf, "seed": 0, "contender": who, "samples_per_s": speed, "slow_reads": reads}
        for zipf, gain in ((1.05, 9.0), (0.8, 2.0))
        for who, speed, reads in (("joint", 100.0 * gain, slow), ("size", 100.0, greedy))
    ]
    return sample(rows, recshard_throughput_ratio=5.5, recshard_slow_ratio=50.0)


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, Path]:
    """Benchmarks that print at once, in a folder of their own, and a folder of results."""
    folder, results = tmp_path / "benchmarks", tmp_path / "results"
    head = 'KEY = ("zipf", "contender")\nCOUNTS: tuple[str, ...] = ("slow_reads",)'
    script(folder, "recshard_trained", trained(), head)
    script(folder, "flexshard", sample([], **dict.fromkeys(FIGURES["flexshard"])))
    script(folder, "sca", sample([{"data": "a", "sent_bytes": 100}], sca_throughput_ratio=7.0))
    script(folder, "gated_plans", sample([{"setting": "rm1", "gap": 0.02}], gap_max=0.02))
    return folder, results


def run(place: tuple[Path, Path], *arguments: str) -> str | int | None:
    with pytest.raises(SystemExit) as stopped:
        claims.main(arguments, folder=place[0], results=place[1])
    return stopped.value.code


def test_claims_collects_exactly_the_agreed_figures_and_a_row_per_claim(
    place: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(place, "--json") == 0
    said = capsys.readouterr()
    data = json.loads(said.out)
    assert list(data["figures"]) == NAMES
    assert len(NAMES) == len(set(NAMES)) == 13
    assert data["figures"]["recshard_throughput_ratio"] == 5.5
    assert data["figures"]["flexshard_time_ratio"] is None
    assert [row["claim"] for row in data["rows"]] == [claim.claim for claim in CLAIMS]
    assert {"memory_gib", "kernel", "cpus"} <= data["versions"].keys()
    assert "flexshard skipped" in said.err
    # The full run keeps what was measured, and nothing half-written or skipped.
    kept = {path.name for path in place[1].iterdir()}
    assert kept == {"recshard_trained.json", "sca.json", "claims.json"}


def test_a_failing_benchmark_is_named_and_the_rest_still_run(
    place: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    place[1].mkdir()
    (place[1] / "sca.json").write_text(json.dumps(sample([], sca_throughput_ratio=3.0)))
    late = (
        "import atexit\natexit.register(print, 'one more thing', file=__import__('sys').stderr)\n"
    )
    (place[0] / "sca.py").write_text(f"{late}raise RuntimeError('no links here')")
    assert run(place, "--json") == "sca failed: RuntimeError: no links here"
    data = json.loads(capsys.readouterr().out)
    assert data["figures"]["sca_throughput_ratio"] is None  # never that of an earlier run
    assert data["figures"]["recshard_slow_ratio"] == 50.0
    row = next(row for row in data["rows"] if row["benchmark"] == "sca")
    assert row["where it does not hold"] == "failed: RuntimeError: no links here"
    assert load_results(place[1])["sca"]["figures"]["sca_throughput_ratio"] == 3.0
    assert not (place[1] / "claims.json").exists()


def test_a_benchmark_that_does_not_end_or_prints_no_result_fails(tmp_path: Path) -> None:
    endless, silent = tmp_path / "endless.py", tmp_path / "silent.py"
    endless.write_text("import time\ntime.sleep(60)")
    silent.write_text("print('{}')")
    assert run_benchmark(endless, limit_s=0.5).error == "not done after 0.5 s"
    assert "printed no result" in run_benchmark(silent).error


def test_the_gate_catches_a_regression_and_passes_an_improvement(
    place: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(place, "--accept") == "there is no quick run to accept: make results-quick"
    assert run(place, "--quick", "--json", "--gate") == 0  # nothing accepted yet
    assert run(place, "--accept") == 0
    assert run(place, "--quick", "--json", "--gate") == 0
    head = 'KEY = ("zipf", "contender")\nCOUNTS = ("slow_reads",)'

    script(place[0], "recshard_trained", trained(slow=11), head)
    capsys.readouterr()
    assert run(place, "--quick", "--json", "--gate") == "counts are worse, see above"
    said = capsys.readouterr().err
    assert "worse: recshard_trained, 1.05, joint, slow_reads: 10 → 11 (+10.00%)" in said
    assert "make results-accept" in said

    script(place[0], "recshard_trained", trained(slow=9), head)
    assert run(place, "--quick", "--json", "--gate") == 0
    assert "better: recshard_trained, 1.05, joint, slow_reads: 10 → 9" in capsys.readouterr().err
    assert run(place, "--accept") == 0
    script(place[0], "recshard_trained", trained(slow=10), head)
    assert run(place, "--quick", "--json", "--gate") == "counts are worse, see above"


@pytest.mark.parametrize(
    ("field", "old", "new", "kind"),
    [
        ("sent_bytes", 1000, 1019, None),
        ("sent_bytes", 1000, 1021, "worse"),
        ("distinct_rows", 1000, 1006, "worse"),
        ("slow_reads", 0, 1, "worse"),
        ("gap", 1e-7, 9e-4, None),
        ("gap", 0.02, 0.023, "worse"),
        ("gap", 0.02, 0.017, "better"),
        ("sent_bytes", 1000, None, "gone"),
        ("sent_bytes", None, 1000, "new"),
    ],
)
def test_counts_are_judged_by_their_kind(
    field: str, old: float | None, new: float | None, kind: str | None
) -> None:
    was, now = ({"b": {"s": {} if v is None else {field: v}}} for v in (old, new))
    changes = compare(was, now)
    assert [change.kind for change in changes] == ([kind] if kind else [])
    assert report(changes, [])[0] is (kind not in ("worse", "gone"))


def test_settings_and_benchmarks_that_cannot_run_here_are_told_not_failed() -> None:
    changes = compare({"b": {"real data": {"x_bytes": 1.0}, "drawn": {"x_bytes": 1.0}}},
                      {"b": {"drawn": {"x_bytes": 1.0}}})  # fmt: skip
    good, text = report(changes, ["flexshard"])
    assert good
    assert "b: 1 counts not measured here, as of real data" in text
    assert "flexshard: not compared" in text


def test_counts_are_found_by_name_where_a_benchmark_does_not_say(tmp_path: Path) -> None:
    rows = [{"data": "a", "zipf": 0.8, "step_s": 1.0, "sent_bytes": size, "slow_reads": 2}
            for size in (5, 6)]  # fmt: skip
    found = counts_of("unknown", sample(rows), tmp_path)
    assert found["a, 0.8"] == {"sent_bytes": 5, "slow_reads": 2}
    assert found["a, 0.8 #2"] == {"sent_bytes": 6, "slow_reads": 2}


def test_constants_and_goals_are_read_without_importing(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text("import nowhere\nKEY = ('a',)\nGOALS: dict = {'r': ('<=', 1 / 15)}\nX = f()\n")
    assert constant(path, "KEY") == ("a",)
    assert goals_of(path) == {"r": ("<=", 1 / 15)}
    assert constant(path, "X") is None
    assert goals_of(ROOT / "benchmarks" / "recshard.py")["rm2_speedup_median"] == (">=", 10.0)


def test_settings_that_fall_short_are_listed_by_name() -> None:
    judged = next(j for j in judge_all({"recshard_trained": trained()}) if j.ours == 5.5)
    assert judged.reached is False
    assert judged.where_not == "short in 1 of 2 settings: Zipf 0.8, seed 0 (2×)"


def test_figures_are_found_by_setting_in_the_rows_of_every_benchmark() -> None:
    rows: list[dict[str, Any]] = [
        {"cluster": "2x2", "mbit_per_s": 1000.0, "data": data, "contender": who,
         "measured_bytes": size, "comm_ms": size / 10, "memory_ratio": 1.0}
        for data, saved in (("zipf 1.2", 0.9), ("zipf 0.8", 0.5))
        for who, size in (("torchrec row_wise", 100), ("joint", 100 * (1 - saved)))
    ]  # fmt: skip
    flexshard = sample(rows, flexshard_bytes_reduction=0.9, flexshard_time_ratio=10.0)
    drawn = {"part": "rows", "lookups": 256, "workers": 2, "cache": 0.1, "data": "zipf 1.0"}
    sca = sample(
        [
            {"part": "trained", "method": "sca", "data": "criteo", "workers": 2, "ratio": 5.0},
            {**drawn, "error": -0.02, "counted": 2e5},
            {**drawn, "cache": 0.0, "error": 0.5, "counted": 10.0},
        ],
        sca_throughput_ratio=6.5,
        distinct_error_max=0.02,
    )
    found = {j.claim.claim: j.where_not for j in judge_all({"flexshard": flexshard, "sca": sca})}
    zipf = "short in 1 of 2 settings: 2x2, 1000 Mbit/s, zipf 0.8"
    assert found["less traffic between nodes, sequence tables"] == f"{zipf} (50 %)"
    assert found["lower communication latency in training"] == f"{zipf} (2×)"
    assert found["additional memory, peak bytes of a device"] == "holds in all 2 settings"
    assert found["training throughput"] == "short in 1 of 1 settings: criteo, 2 workers (5×)"
    expected = "short in 1 of 1 settings: zipf 1.0, 256 lookups, 2 workers, cache 0.1 (2 %)"
    assert found["expected distinct rows are what is measured"] == expected


def test_settings_of_one_rank_and_of_two_are_told_apart() -> None:
    rows = [
        {"part": part, "zipf": 0.8, "seed": 0, "contender": who, "samples_per_s": speed}
        for part, who, speed in (
            ("trained", "joint", 80.0), ("trained", "lookup", 10.0),
            ("two ranks", "joint", 40.0), ("two ranks", "lookup", 10.0),
            ("plain loop", "joint", 1.0),
        )
    ]  # fmt: skip
    results = {"recshard_trained": sample(rows, recshard_throughput_ratio=8.0)}
    found = {j.claim.claim: j.where_not for j in judge_all(results)}
    said = "short in 1 of 2 settings: Zipf 0.8, seed 0, two ranks (4×)"
    assert found["embedding training throughput, capacity-constrained"] == said


def test_the_page_is_written_from_results_and_says_what_is_absent(tmp_path: Path) -> None:
    results = {"recshard_trained": trained()}
    page = results_page(results)
    assert "| over 6× | 5.5× | **missed** |" in page
    assert "throughput, capacity-constrained: 5.5× where the paper says over 6×." in page
    assert "| 0.8 | 0 | joint | 200 | 10 |" in page
    assert "SCA, training throughput: not measured." in page
    assert results_page({}).count("not measured") > len(CLAIMS) + len(OWN)
    draw(results, tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {"claims", "recshard_trained"}
    for name in names(results):
        assert f"(img/results/{name}.svg)" in page
        assert (tmp_path / f"{name}.svg").read_text().startswith("<svg")


def test_check_sees_a_result_that_the_page_does_not_show(tmp_path: Path) -> None:
    for name in ("docs", "benchmarks"):
        (tmp_path / name).mkdir()
    for part in (
        "benchmarks/results",
        "docs/img",
        "docs/results.md",
        "docs/statistics.md",
        "README.md",
    ):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, tmp_path / part)
    assert make_results.stale(tmp_path) == []
    path = tmp_path / "benchmarks/results/recshard.json"
    data = json.loads(path.read_text())
    data["figures"]["rm2_speedup_median"] += 1
    path.write_text(json.dumps(data))
    (tmp_path / "docs/img/results/recshard.svg").unlink()
    found = ["docs/results.md", "README.md", "docs/img/results/recshard.svg"]
    assert make_results.stale(tmp_path) == found


def test_every_figure_that_is_shown_exists_where_it_was_measured() -> None:
    results = load_results()
    for own in OWN:
        if own.benchmark in results:
            assert own.figure in results[own.benchmark]["figures"]
    for benchmark, wanted in FIGURES.items():
        if benchmark in results:
            assert set(wanted) <= results[benchmark]["figures"].keys()
    assert set(figures_of(results)) == set(NAMES)
    for judged in judge_all(results):
        assert judged.ours is None or judged.settings, judged.claim  # its rows have other names
