"""`rowtier compare`: methods beside folders, names that fit, few and very many tables."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cli.run import run
from cli.test_replay_cli import make, width

import rowtier
from rowtier import Cluster
from rowtier.cli import compare as compare_cli
from rowtier.cli.names import shortened, unique


@pytest.mark.parametrize("tables", [26, 397, 1935])
def test_text_fits_however_many_tables_there_are(tables: int, tmp_path: Path) -> None:
    make(tmp_path, tables, samples=256, method="table-wise")
    names = ("row-wise", "size-lookup")
    code, text, errors = run("compare", str(tmp_path / "plan"), *names)
    assert (code, errors) == (0, "")
    assert "ms a step" in text.splitlines()[0]
    assert width(text) <= 100
    assert all(f" {name} " in text for name in ("plan", *names))


def test_long_names_many_plans_and_many_devices_fit(tmp_path: Path) -> None:
    make(tmp_path, 3)
    plan = rowtier.Plan.load(tmp_path / "plan")
    data = Cluster.preset("recshard-16").to_data()
    data["levels"][-1]["size"] = 128
    large = rowtier.make_plan(plan.profile, Cluster.model_validate(data), "row-wise")
    folders = [tmp_path / f"{'a_very_long_folder_name' * 4}_{i}" for i in range(9)]
    for folder in folders:
        large.save(folder)
    arguments = [*map(str, folders), str(folders[0])]
    code, text, _ = run("compare", *arguments)
    assert code == 0
    assert width(text) <= 100
    assert "more holders: --full shows them" in text
    assert len(json.loads(run("compare", *arguments, "--json")[1])["plans"]) == 10
    code, full, _ = run("compare", *arguments, "--full")
    assert width(full) <= 100
    assert f"device {large.cluster.num_devices - 1} " in full


def test_the_data_is_replayed_for_every_plan(tmp_path: Path) -> None:
    make(tmp_path, 4, 3200)
    plan, data = str(tmp_path / "plan"), str(tmp_path / "data.npz")
    arguments = ["compare", plan, "table-wise", "--data", data, "--after", "50%"]
    code, text, errors = run(*arguments)
    assert (code, errors) == (0, "")
    assert "on the data" in text.splitlines()[0]
    assert "replayed, in ms, over 25 steps" in text
    assert width(text) <= 100
    facts = json.loads(run(*arguments, "--json")[1])
    assert all(found["replayed"]["replayed"] > 0 for found in facts["plans"])


def test_the_way_out_that_an_error_names_is_there(tmp_path: Path) -> None:
    make(tmp_path, 2, 3200)
    with np.load(tmp_path / "data.npz") as file:
        np.savez(tmp_path / "other.npz", **{name: ids + 1000 for name, ids in file.items()})
    arguments = ["compare", str(tmp_path / "plan"), "--data", str(tmp_path / "other.npz")]
    code, _, errors = run(*arguments)
    assert code == 2
    assert "`drop` or `hash` (--on-out-of-range for all tables)" in " ".join(errors.split())
    code, text, errors = run(*arguments, "--on-out-of-range", "hash")
    assert (code, errors) == (0, "")
    assert "6,400 ids have no row in their table and were hashed" in " ".join(text.split())


def test_warnings_name_the_plans_that_they_are_about() -> None:
    warned = {"a": ("for all", "for two"), "b": ("for all", "for two"), "c": ("for all", "for c")}
    loads = [
        SimpleNamespace(name=name, replayed=SimpleNamespace(warnings=texts))
        for name, texts in warned.items()
    ]
    found = compare_cli._warnings(SimpleNamespace(loads=loads))  # type: ignore[arg-type]
    assert found == ["for all", "a, b: for two", "c: for c"]


def test_the_same_folder_twice_is_shown_twice(tmp_path: Path) -> None:
    make(tmp_path, 2)
    plan = str(tmp_path / "plan")
    code, text, _ = run("compare", plan, plan)
    assert code == 0
    assert "as fast as plan (2)" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "no such method; the methods are row-wise"),
        (["row-wise"], "give a plan folder too"),
        (["plan", "--steps", "3"], "give data too"),
        (["plan", "--before", "50%"], "give data too"),
        (["plan", "--batches", "sorted"], "accepted are shuffled, in_time_order"),
        (["plan", "--data", "data.npz", "--after", "2", "--time", "day"], "no such array"),
    ],
)
def test_what_compare_refuses_says_the_way_out(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, 2)
    monkeypatch.chdir(tmp_path)
    code, _, errors = run("compare", *arguments)
    assert code == 2
    assert says in " ".join(errors.split())


def test_shortened_names_stay_apart() -> None:
    names = ["a" * 40, "a" * 41, "short", "b" * 30 + "end"]
    told = shortened(names, 12)
    assert len(set(told)) == 4
    assert max(map(len, told)) <= 12
    assert told[2] == "short"
    assert told[3].endswith("end")
    assert unique(["x", "x", "y", "x"]) == ["x", "x (2)", "y", "x (3)"]
