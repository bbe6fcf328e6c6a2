"""What commands say of data to come, and of the order of its samples."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli.run import run

from rowtier import Profile, Table, Tables


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data whose neighbours agree, its tables and a profile of its first half."""
    home = tmp_path_factory.mktemp("forecast")
    random = np.random.default_rng(0)
    ids = np.repeat(random.zipf(1.3, 3000) % 400, 8)
    pq.write_table(pa.table({"f": ids}), home / "data.parquet", row_group_size=5000)
    table = Table(name="t", num_embeddings=400, embedding_dim=8, features=("f",))
    Tables(batch_size=64, tables=(table,)).save(home / "tables.yaml")
    assert profile(home, "first", "--before", "50%")[0] == 0
    return home


def profile(home: Path, name: str, *more: str) -> tuple[int, str, str]:
    data, tables = str(home / "data.parquet"), str(home / "tables.yaml")
    return run("profile", data, "--tables", tables, "-o", str(home / name), *more)


def test_profiles_say_what_to_expect(folder: Path) -> None:
    code, out, _ = run("profile", "show", str(folder / "first"), "--json")
    assert code == 0
    found = json.loads(out)["tables"][0]["expected"]
    known = Profile.load(folder / "first")
    assert found["unseen"] == known.unseen("t").to_dict()
    assert [entry["rows"] for entry in found["coverage"]] == [1, 4, 20, 40]
    assert [entry["samples"] for entry in found["distinct"]] == [64, 512, 4096]
    for entry in (*found["coverage"], found["distinct"][0]):
        assert entry["low"] <= entry.get("share", entry.get("value")) <= entry["high"]
    assert found["in_time_order"][0]["value"] < 0.5 * found["distinct"][0]["value"]
    code, out, _ = run("profile", "show", str(folder / "first"))
    assert code == 0
    assert "what holds nine times in ten" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 100


def test_plans_say_which_batches_they_assume(folder: Path) -> None:
    steps, rows = {}, {}
    for batches in ("shuffled", "in_time_order"):
        plan = str(folder / batches)
        made = ("--cluster", "local", "-o", plan, "--batches", batches)
        code, _, errors = run("plan", "--profile", str(folder / "first"), *made)
        assert (code, errors) == (0, "")
        found = json.loads(run("predict", plan, "--json")[1])
        assert found["batches"] == batches
        rows[batches] = found["rows_touched"]["device"]
        replayed = run("replay", plan, str(folder / "data.parquet"), "--after", "50%", "--json")
        facts = json.loads(replayed[1])
        assert facts["batches"] == batches
        steps[batches] = next(
            figure
            for figure in facts["figures"]
            if figure["kind"] == "step"
            and (figure["name"], figure["at"]) == ("rows touched", "device")
        )
    assert rows["in_time_order"] < 0.5 * rows["shuffled"]
    for batches, figure in steps.items():
        assert figure["predicted"] == pytest.approx(rows[batches])
        assert figure["predicted"] == pytest.approx(figure["replayed"], rel=0.15)
    other = run("predict", str(folder / "shuffled"), "--batches", "in_time_order", "--json")[1]
    assert json.loads(other)["rows_touched"]["device"] == pytest.approx(rows["in_time_order"])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--horizon", "0"), "--horizon 0: give a number above 0"),
        (("--horizon", "500"), "horizon 500: looking 500 times"),
        (("--first-sample", "-1"), "first-sample"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    folder: Path, more: tuple[str, ...], said: str
) -> None:
    code, _, errors = profile(folder, "refused", *more)
    assert code == 2
    assert said in " ".join(errors.split())
    assert not (folder / "refused").exists()


def test_batches_nobody_knows_are_refused(folder: Path) -> None:
    assert profile(folder, "sampled", "--sample", "50%")[0] == 0
    made = ("--cluster", "local", "-o", str(folder / "x"))
    source = ("--profile", str(folder / "sampled"))
    code, _, errors = run("plan", *source, *made, "--batches", "in_time_order")
    assert code == 2
    assert "without --sample" in " ".join(errors.split())
    code, _, errors = run("plan", *source, *made, "--batches", "sorted")
    assert (code, "shuffled, in_time_order" in errors) == (2, True)


def test_old_profiles_are_refused_with_the_command_that_makes_them(folder: Path) -> None:
    file = folder / "first" / "profile.json"
    kept = file.read_text()
    file.write_text(kept.replace('"format_version": 2', '"format_version": 1'))
    code, _, errors = run("profile", "show", str(folder / "first"))
    file.write_text(kept)
    assert code == 2
    assert f"rowtier profile DATA --tables tables.yaml -o {folder / 'first'}" in " ".join(
        errors.split()
    )


def test_parts_with_other_horizons_are_not_merged(folder: Path) -> None:
    assert profile(folder, "near", "--after", "50%", "--horizon", "0.5")[0] == 0
    parts = [str(folder / name) for name in ("first", "near")]
    code, _, errors = run("profile", "merge", *parts, "-o", str(folder / "merged"))
    assert (code, "--horizon" in errors) == (2, True)
