"""`rowtier predict` and `rowtier replay`, with few and with very many tables."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from cli.run import run

import rowtier
from rowtier import Table, Tables


def make(folder: Path, tables: int, samples: int = 640, method: str = "row-wise") -> None:
    """A dataset with so many features, and a plan from its first half."""
    random = np.random.default_rng(tables)
    ids = {
        f"a_feature_with_a_long_name_{i}": random.zipf(1.3, samples) % (50 + i)
        for i in range(tables)
    }
    np.savez(folder / "data.npz", **ids)
    described = [
        Table(name=f"table_{i}", num_embeddings=50 + i, embedding_dim=16, features=(name,))
        for i, name in enumerate(ids)
    ]
    early = {name: values[: samples // 2] for name, values in ids.items()}
    profile = rowtier.make_profile([early], Tables(batch_size=4, tables=tuple(described)))
    rowtier.make_plan(profile, "recshard-16", method).save(folder / "plan")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("replay")
    make(made, 5, 6400)
    return made


def width(text: str) -> int:
    return max(map(len, text.splitlines()))


@pytest.mark.parametrize("tables", [26, 397, 1935])
def test_text_fits_however_many_tables_there_are(tables: int, tmp_path: Path) -> None:
    make(tmp_path, tables, samples=256, method="table-wise")
    plan, data = str(tmp_path / "plan"), str(tmp_path / "data.npz")
    for command in (["predict", plan], ["replay", plan, data, "--after", "50%"]):
        code, text, errors = run(*command)
        assert (code, errors) == (0, "")
        assert " ms a step" in text
        assert width(text) <= 100
        assert len(text.splitlines()) < 120
        assert "more tables: --full shows them" in text


def test_every_table_is_shown_in_full(tmp_path: Path) -> None:
    make(tmp_path, 26)
    plan, data = str(tmp_path / "plan"), str(tmp_path / "data.npz")
    for command in (["predict", plan], ["replay", plan, data, "--after", "50%"]):
        code, text, _ = run(*command, "--full")
        assert code == 0
        assert width(text) <= 100
        assert {f"table_{i}" for i in range(26)} <= set(text.replace(",", " ").split())


def test_predict_and_replay_give_machines_the_same_figures(folder: Path) -> None:
    plan, data = str(folder / "plan"), str(folder / "data.npz")
    predicted = json.loads(run("predict", plan, "--json")[1])
    replayed = json.loads(run("replay", plan, data, "--after", "50%", "--json")[1])
    step = next(figure for figure in replayed["figures"] if figure["name"] == "step")
    assert step["predicted"] == predicted["step_s"]
    assert {"p50", "p90", "p99", "worst", "low", "high", "error"} <= set(step)
    assert replayed["steps"] == 50
    assert replayed["warnings"] == []


def test_replay_warns_about_the_profiled_data(tmp_path: Path) -> None:
    make(tmp_path, 3, 3200)
    whole = rowtier.make_profile(
        tmp_path / "data.npz", rowtier.Plan.load(tmp_path / "plan").profile.tables
    )
    rowtier.make_plan(whole, "recshard-16", "row-wise").save(tmp_path / "plan")
    code, text, _ = run("replay", str(tmp_path / "plan"), str(tmp_path / "data.npz"))
    assert code == 0
    assert text.startswith("! this looks like the data")


def test_text_says_what_is_within_what_and_which_rows_are_new(folder: Path) -> None:
    arguments = ["replay", str(folder / "plan"), str(folder / "data.npz"), "--after", "50%"]
    for order, said in (("shuffled", "shuffled"), ("in_time_order", "in time order")):
        code, text, _ = run(*arguments, "--batches", order)
        told = " ".join(text.split())
        facts = json.loads(run(*arguments, "--batches", order, "--json")[1])
        assert code == 0
        assert re.search(r"[\d,]+ of [\d,]+ figures are within it", told)
        assert f"3.2 k samples, {said}," in told
        assert facts["batches"] == order
        new = f"{facts['unseen_lookups']:,} of {facts['lookups']:,} lookups"
        assert f"rows that the profile never saw: {facts['unseen_rows'] / 50:,.4g} a step" in told
        assert new in told


def test_a_window_is_taken_by_a_time_column(folder: Path, tmp_path: Path) -> None:
    with np.load(folder / "data.npz") as file:
        np.savez(tmp_path / "timed.npz", day=np.arange(6400) // 800, **dict(file))
    plan = str(folder / "plan")
    half = run("replay", plan, str(folder / "data.npz"), "--after", "50%", "--json")[1]
    timed = [str(tmp_path / "timed.npz"), "--after", "4", "--time", "day", "--json"]
    assert run("replay", plan, *timed)[1] == half


def test_both_write_a_trace(folder: Path, tmp_path: Path) -> None:
    plan, data, trace = str(folder / "plan"), str(folder / "data.npz"), tmp_path / "step.json"
    for command in (["predict", plan], ["replay", plan, data, "--steps", "3"]):
        code, text, _ = run(*command, "--trace", str(trace))
        assert code == 0
        assert text.rstrip().endswith(f"written to {trace}")
        assert json.loads(trace.read_text())["traceEvents"]
        trace.unlink()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--on-out-of-range", "guess"], "accepted are error, clip, drop, hash"),
        (["--batch-size", "4000"], "smaller --batch-size"),
        (["--batches", "sorted"], "accepted are shuffled, in_time_order"),
        (["--after", "100%"], "after 100%: no sample lies there"),
        (["--after", "3", "--time", "nowhere"], "no such array"),
        (["--after", "half"], "half"),
    ],
)
def test_what_replay_refuses_says_the_way_out(
    folder: Path, arguments: list[str], says: str
) -> None:
    code, _, errors = run("replay", str(folder / "plan"), str(folder / "data.npz"), *arguments)
    assert code == 2
    assert says in " ".join(errors.split())
