"""Vocabularies: built, kept, read back, and refused where they do not fit."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli.run import run

from rowtier import (
    Cluster,
    Device,
    MismatchError,
    Plan,
    Profile,
    ProfileOptions,
    Table,
    Tables,
    Tier,
    UserError,
    Vocabulary,
    make_plan,
    make_profile,
)
from rowtier.evaluate.baselines import plan_baseline
from rowtier.manifest import write_manifest
from rowtier.profile import make as make_module
from rowtier.profile.count_ids import IdCounter

WORDS = ["b", "a", "é", "a", "b", "z", "a", "c", "c", "é"]


def tables(**changes: Any) -> Tables:
    base = {"name": "t", "num_embeddings": 5, "embedding_dim": 2, "features": ("f",)}
    table = Table.model_validate({**base, "ids": "vocabulary", **changes})
    return Tables(batch_size=2, tables=(table,))


def plan_for(profile: Profile) -> Plan:
    tier = Tier(name="ram", capacity_bytes=2**30, bandwidth_bytes_per_s=1e9)
    return make_plan(profile, Cluster(name="one", device=Device(tiers=(tier,))), "row-wise")


def write(path: Path, words: list[Any] = WORDS, group: int = 3) -> Path:
    path.mkdir(exist_ok=True)
    pq.write_table(pa.table({"f": words}), path / "a.parquet", row_group_size=group)
    return path


def test_the_hottest_ids_have_rows_and_ties_go_by_id(tmp_path: Path) -> None:
    stats = make_profile(write(tmp_path / "d"), tables())["t"]
    assert stats.vocabulary is not None
    assert stats.vocabulary.ids.to_pylist() == ["a", "b", "c", "é"]
    assert stats.vocabulary.counts.tolist() == [3, 2, 2, 2]
    assert stats.counts is not None
    assert dict(zip(stats.counts.rows, stats.counts.counts, strict=True)) == {
        0: 3, 1: 2, 2: 2, 3: 2, 4: 1
    }  # fmt: skip
    rare = make_profile(tmp_path / "d", tables(min_count=3))["t"]
    assert rare.vocabulary is not None
    assert rare.vocabulary.ids.to_pylist() == ["a"]
    assert rare.touched == 2  # rows 1 to 3 stay unused


def test_however_the_work_is_divided_the_profile_is_the_same(tmp_path: Path) -> None:
    data, wanted = write(tmp_path / "d"), tables()
    whole = make_profile(data, wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make_module, "LEG_BYTES", 1)
        patch.setattr("rowtier.profile.count_ids._WAITING", 1)
        assert make_profile(data, wanted).fingerprint == whole.fingerprint
    two = make_profile(data, wanted, ProfileOptions(workers=2))
    shards = make_profile(data, wanted, ProfileOptions(memory_bytes=4))
    assert two.fingerprint == shards.fingerprint == whole.fingerprint


def test_progress_goes_through_both_passes_and_never_falls(tmp_path: Path) -> None:
    told: list[float] = []
    make_profile(write(tmp_path / "d"), tables(), progress=told.append)
    assert told == sorted(told)
    assert min(told) < 0.5 < max(told) <= 1


def test_profile_and_plan_keep_the_vocabulary_as_plain_parquet(tmp_path: Path) -> None:
    profile = make_profile(write(tmp_path / "d"), tables(name="a/b", num_shared=2))
    plan = plan_for(profile)
    profile.save(tmp_path / "profile")
    plan.save(tmp_path / "plan")
    for folder, noun in (("profile", Profile), ("plan", Plan)):
        path = tmp_path / folder / "vocabulary" / "a%2Fb.parquet"
        expected = {"row": [0, 1, 2], "id": ["a", "b", "c"], "count": [3, 2, 2]}
        assert pq.read_table(path).to_pydict() == expected
        loaded = noun.load(tmp_path / folder)
        assert loaded.fingerprint == {"profile": profile, "plan": plan}[folder].fingerprint
    assert Plan.load(tmp_path / "plan").rows_of("a/b", ["b", "q"]).tolist()[0] == 1
    baseline = plan_baseline("table-wise", plan)
    assert baseline.vocabularies == plan.vocabularies
    assert not (tmp_path / "plan" / "curve" / "vocabulary").exists()


def test_another_vocabulary_changes_fingerprints(tmp_path: Path) -> None:
    data = write(tmp_path / "d", [1, 1, 2, 2])
    found = [
        make_profile(data, tables(), ProfileOptions(vocabulary={"t": Vocabulary(ids, np.ones(2))}))
        for ids in ([1, 2], [2, 1])
    ]
    assert found[0].fingerprint != found[1].fingerprint
    assert plan_for(found[0]).fingerprint != plan_for(found[1]).fingerprint
    again = pickle.loads(pickle.dumps(found[0]))
    assert again.fingerprint == found[0].fingerprint


def test_parts_are_profiled_with_one_vocabulary_and_merged(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", WORDS[:5]), write(tmp_path / "b", WORDS[5:])
    tables().save(tmp_path / "tables.yaml")

    def measure(data: Path, output: str, *more: str) -> tuple[int, str, str]:
        described = str(tmp_path / "tables.yaml")
        return run("profile", str(data), "--tables", described, "-o", str(tmp_path / output), *more)

    later = ("--first-sample", "5")
    assert measure(first, "p1")[0] == measure(second, "alone", *later)[0] == 0
    assert measure(second, "p2", "--vocabulary", str(tmp_path / "p1"), *later)[0] == 0
    parts = [str(tmp_path / name) for name in ("p1", "alone")]
    code, _, errors = run("profile", "merge", *parts, "-o", str(tmp_path / "m"))
    assert code == 2
    assert "different vocabularies" in " ".join(errors.split())
    assert "--vocabulary" in errors
    parts[1] = str(tmp_path / "p2")
    assert run("profile", "merge", *parts, "-o", str(tmp_path / "m"))[0] == 0
    merged = Profile.load(tmp_path / "m")
    assert merged["t"].vocabulary is not None
    assert merged["t"].lookups == len(WORDS)
    plan_for(merged).save(tmp_path / "plan")
    assert measure(second, "p3", "--vocabulary", str(tmp_path / "plan"), *later)[0] == 0
    assert Profile.load(tmp_path / "p3").fingerprint == Profile.load(tmp_path / "p2").fingerprint
    with pytest.raises(MismatchError, match="different vocabularies"):
        Profile.load(tmp_path / "p1").merge(Profile.load(tmp_path / "alone"))


def test_a_folder_without_the_vocabulary_is_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "d")
    with pytest.raises(UserError, match=r"vocabulary of table 't' is missing"):
        make_profile(data, tables(), ProfileOptions(vocabulary=tmp_path))
    with pytest.raises(UserError, match=r"that of table 't' is missing"):
        make_profile(data, tables(), ProfileOptions(vocabulary={}))


def test_an_iterator_is_refused_with_what_can_be_read_twice() -> None:
    batches = [{"f": ["a", "b"]}]
    with pytest.raises(UserError, match=r"read twice.*give files, a list.*vocabulary="):
        make_profile(iter(batches), tables())
    words = {"t": Vocabulary(["a"], np.array([1]))}
    given = make_profile(iter(batches), tables(), ProfileOptions(vocabulary=words))
    assert given["t"].touched == 2


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"row": [0, 1], "id": ["a", "a"], "count": [2, 1]}, "id: 'a': is there more than once"),
        ({"row": [0, 1], "id": [7, 7], "count": [2, 1]}, "id: 7: is there more than once"),
        ({"row": [1, 0], "id": [7, 8], "count": [2, 1]}, "row: 1: is at place 0; rows must be"),
        ({"row": [0, 1], "id": [None, 1], "count": [2, 1]}, "id: 1 values are null"),
        ({"row": [0], "count": [2]}, "id: this column is missing"),
        ({"row": [0], "id": [1.5], "count": [2]}, "id: 'double': the column must hold"),
        ({"row": [0, 1], "id": [1, 2], "count": [1, 2]}, "hottest first"),
        ({"row": list(range(5)), "id": list(range(5)), "count": [1] * 5}, "id: 5: so many ids"),
        ({"row": [0], "id": [1], "count": [0]}, "count: 0: must be at least the table's min_count"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused(
    columns: Any, words: str, tmp_path: Path
) -> None:
    (tmp_path / "v" / "vocabulary").mkdir(parents=True)
    pq.write_table(pa.table(columns), tmp_path / "v" / "vocabulary" / "t.parquet")
    with pytest.raises(UserError, match=words):
        make_profile([{"f": [1]}], tables(), ProfileOptions(vocabulary=tmp_path / "v"))


def test_the_vocabulary_of_another_plan_is_refused(tmp_path: Path) -> None:
    for name, words in (("a", ["a", "a", "b"]), ("b", ["b", "b", "a"])):
        plan_for(make_profile([{"f": words}], tables())).save(tmp_path / name)
    file = "vocabulary/t.parquet"
    (tmp_path / "a" / file).write_bytes((tmp_path / "b" / file).read_bytes())
    write_manifest(tmp_path / "a")
    with pytest.raises(UserError, match=r"t\.parquet.*\n.*vocabulary of another"):
        Plan.load(tmp_path / "a")
    (tmp_path / "b" / file).unlink()
    with pytest.raises(UserError, match="is missing"):
        Plan.load(tmp_path / "b")
    data = json.loads((tmp_path / "b" / "plan.json").read_text())
    assert list(data["vocabularies"]) == ["t"]


def test_a_vocabulary_takes_lists_and_refuses_nulls() -> None:
    assert len(Vocabulary(["x", "y"], [2, 1])) == 2
    assert Vocabulary(np.array([2**63 + 1], np.uint64), [1]).ids.dtype == np.uint64
    with pytest.raises(UserError, match="null"):
        Vocabulary(["x", None], [2, 1])
    with pytest.raises(UserError, match="2 ids has 1 counts"):
        Vocabulary(["x", "y"], [2])


def test_large_ids_are_kept_unsigned(tmp_path: Path) -> None:
    counter = IdCounter(tables().tables[0])
    counter.add(np.array([3, 3]), "f", "data")
    counter.add(np.array([2**64 - 1], dtype=np.uint64), "f", "data")
    made = counter.finish()
    made.save(tmp_path / "v.parquet")
    loaded = Vocabulary.load(tmp_path / "v.parquet")
    assert loaded.ids.tolist() == [3, 2**64 - 1]
    assert loaded.fingerprint == made.fingerprint


def test_strings_whose_hashes_share_a_slot_are_told_apart() -> None:
    words = [f"word {i}" for i in range(5000)]
    table = Table(name="t", num_embeddings=6000, embedding_dim=1, features=("f",), ids="vocabulary")
    vocabulary = Vocabulary(words, np.ones(5000))
    index = vocabulary.index(table.hash_seed)
    found = index.find(pa.array(words, pa.large_string()), np.zeros(5000, dtype=np.uint64))
    assert set(found.tolist()) <= {-1, *range(5000)}
    assert all(row in (-1, i) for i, row in enumerate(found.tolist()))
