"""Making workloads: the folder, its reproducibility, and what is refused."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rowtier.errors import UserError
from rowtier.synth import write
from rowtier.synth.make import WORKLOADS, make_workload, options_of
from rowtier.tables import Tables

SMALL = {
    "criteo": {"samples": 3000, "scale": 0.02},
    "sequence": {"samples": 1000, "rows": 5000, "users": 300, "mean_length": 8},
    "meta": {"tables": 5, "scale": 0.001, "batches": 1},
    "drift": {"samples": 20_000, "rows": 500},
}
DATASETS = pytest.mark.parametrize("name", SMALL)


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def data_of(folder):
    return {k: v for k, v in contents(folder).items() if k.startswith("data/")}


@DATASETS
def test_a_dataset_folder_is_complete(name, tmp_path):
    written = make_workload(name, tmp_path / "d", seed=3, **SMALL[name])
    tables = Tables.load(tmp_path / "d" / "tables.yaml")
    facts = json.loads((tmp_path / "d" / "workload.json").read_text())
    data = pq.read_table(tmp_path / "d" / "data")
    assert facts["format_version"] == 1
    assert (facts["workload"], facts["seed"]) == (name, 3)
    assert set(facts["options"]) == set(options_of(name))
    assert SMALL[name].items() <= facts["options"].items()
    assert data.column_names == [feature for table in tables for feature in table.features]
    assert data.num_rows == facts["samples"] == written.samples
    assert written.workload == name
    assert written.tables == len(tables)
    assert written.folder == tmp_path / "d"
    assert written.to_dict()["folder"] == str(tmp_path / "d")


@DATASETS
def test_ids_are_rows_of_their_table_and_counted(name, tmp_path):
    written = make_workload(name, tmp_path / "d", **SMALL[name])
    data, ids = pq.read_table(tmp_path / "d" / "data"), 0
    for table in Tables.load(tmp_path / "d" / "tables.yaml"):
        column = data[table.features[0]].combine_chunks()
        assert column.null_count == 0
        assert column.type in (pa.int64(), pa.list_(pa.int64()))
        if pa.types.is_list(column.type):
            column = column.flatten()
        rows = column.to_numpy()
        ids += len(rows)
        assert not len(rows) or (rows.min() >= 0 and rows.max() < table.num_embeddings)
    assert ids == written.ids


@DATASETS
def test_data_comes_in_several_files_of_several_row_groups(name, tmp_path):
    written = make_workload(name, tmp_path / "d", **SMALL[name])
    parts = sorted((tmp_path / "d" / "data").iterdir())
    assert [part.name for part in parts] == [f"part-{i:05d}.parquet" for i in range(len(parts))]
    assert len(parts) == written.files >= 2
    assert sum(part.stat().st_size for part in parts) == written.bytes
    assert all(pq.ParquetFile(part).num_row_groups > 1 for part in parts)


@DATASETS
def test_the_same_arguments_give_the_same_bytes(name, tmp_path):
    for folder in "ab":
        make_workload(name, tmp_path / folder, seed=5, **SMALL[name])
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@DATASETS
def test_another_seed_gives_other_bytes_in_every_column(name, tmp_path):
    for seed in (1, 2):
        make_workload(name, tmp_path / str(seed), seed=seed, **SMALL[name])
    one, two = (pq.read_table(tmp_path / str(seed) / "data") for seed in (1, 2))
    assert data_of(tmp_path / "1") != data_of(tmp_path / "2")
    # C13's like have too few rows to differ for sure; most columns do.
    equal = [one[name].equals(two[name]) for name in one.column_names]
    assert sum(equal) <= len(equal) // 3


def test_two_processes_give_the_same_bytes(tmp_path):
    script = (
        "import sys; from rowtier.synth.make import make_workload;"
        "make_workload('sequence', sys.argv[1], samples=500)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "a")], check=True)
    make_workload("sequence", tmp_path / "b", samples=500)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@DATASETS
def test_row_groups_do_not_change_the_data(name, tmp_path, monkeypatch):
    make_workload(name, tmp_path / "a", **SMALL[name])
    monkeypatch.setattr(write, "LEAST_GROUPS", 3)
    make_workload(name, tmp_path / "b", **SMALL[name])
    a, b = (pq.read_table(tmp_path / folder / "data") for folder in "ab")
    assert data_of(tmp_path / "a") != data_of(tmp_path / "b")
    assert a.equals(b)


def test_row_groups_stay_small_however_many_samples():
    from rowtier.synth.criteo import criteo
    from rowtier.synth.options import CriteoOptions

    dataset = criteo(CriteoOptions(samples=10**8, scale=1.0), seed=0)
    start, stop = next(write.group_bounds(dataset))
    assert start == 0
    assert (stop - start) * 214 <= write.GROUP_CELLS


def test_a_single_sample_is_a_dataset(tmp_path):
    written = make_workload("criteo", tmp_path / "d", samples=1)
    assert (written.samples, written.files) == (1, 1)


def test_progress_rises_to_one(tmp_path):
    told = []
    make_workload("drift", tmp_path / "d", samples=9000, progress=told.append)
    assert told == sorted(told)
    assert len(told) >= 8
    assert told[-1] == 1.0


@DATASETS
def test_a_failure_midway_leaves_nothing_behind(name, tmp_path):
    def fail(done):
        if done > 0.4:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        make_workload(name, tmp_path / "d", progress=fail, **SMALL[name])
    assert list(tmp_path.iterdir()) == []


def test_a_failure_midway_keeps_the_earlier_dataset(tmp_path):
    make_workload("drift", tmp_path / "d", samples=9000)
    before = contents(tmp_path / "d")

    def fail(_done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_workload("drift", tmp_path / "d", seed=1, samples=9000, progress=fail)
    assert contents(tmp_path / "d") == before
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_an_earlier_workload_is_replaced(tmp_path):
    make_workload("criteo", tmp_path / "d", samples=100)
    make_workload("drift", tmp_path / "d", samples=100)
    assert pq.read_table(tmp_path / "d" / "data").column_names == ["item"]


@pytest.mark.parametrize("name", ["drift", "rm1"])
def test_a_folder_with_anything_else_is_left_alone(name, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="left alone"):
        make_workload(name, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("criteoo", {}, ["'criteoo'", "did you mean 'criteo'", "rm3"]),
        ("zzz", {}, ["'zzz'", "criteo, sequence, meta, drift, rm1, rm2, rm3"]),
        ("criteo", {"scale": 0}, ["scale=0", "above 0", "0.01"]),
        ("criteo", {"scale": -0.5}, ["scale=-0.5", "above 0"]),
        ("criteo", {"scale": float("nan")}, ["scale=nan", "a number"]),
        ("criteo", {"scale": "big"}, ["scale='big'", "a number"]),
        ("criteo", {"samples": 0}, ["samples=0", "at least 1"]),
        ("criteo", {"samples": 1.5}, ["samples=1.5", "whole number"]),
        ("criteo", {"samples": True}, ["samples=True", "whole number"]),
        ("criteo", {"hashed": 1}, ["hashed=1", "True or False"]),
        ("criteo", {"zipf": -1}, ["zipf=-1", "at least 0"]),
        ("criteo", {"rows": 5}, ["rows=5", "option of sequence, drift", "criteo takes seed"]),
        ("criteo", {"sample": 5}, ["sample=5", "did you mean 'samples'"]),
        ("criteo", {"colour": 5}, ["colour=5", "any workload"]),
        ("criteo", {"batch_size": 0}, ["batch_size=0", "at least 1"]),
        ("criteo", {"embedding_dim": 0}, ["embedding_dim=0", "at least 1"]),
        ("sequence", {"mean_length": 300}, ["mean_length=300", "max_length=200", "raise"]),
        ("sequence", {"users": 0}, ["users=0", "at least 1"]),
        ("sequence", {"spread": -1}, ["spread=-1", "at least 0"]),
        ("drift", {"rate": 1.2}, ["rate=1.2", "at most 1"]),
        ("drift", {"scale": 0.1}, ["scale=0.1", "criteo, meta"]),
        ("meta", {"year": 2020}, ["year=2020", "2021 or 2022"]),
        ("meta", {"scale": 2}, ["scale=2", "at most 1"]),
        ("meta", {"batches": 0}, ["batches=0", "at least 1"]),
        ("meta", {"tables": 100_000, "scale": 1}, ["tables=100000", "lower scale or tables"]),
        ("rm1", {"samples": 5}, ["samples=5", "criteo, sequence, drift", "rm1 takes seed, fat"]),
        ("rm2", {"fat": "yes"}, ["fat='yes'", "True or False"]),
        ("drift", {"seed": -1}, ["seed=-1", "0 or more"]),
        ("drift", {"seed": "x"}, ["seed='x'", "0 or more"]),
    ],
)
def test_mistakes_are_named_with_the_way_out(name, options, parts, tmp_path):
    with pytest.raises(UserError) as caught:
        make_workload(name, tmp_path / "d", **options)
    for part in parts:
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_options_that_are_none_take_the_default(tmp_path):
    make_workload("drift", tmp_path / "d", samples=50, scale=None, rate=None)
    facts = json.loads((tmp_path / "d" / "workload.json").read_text())
    assert facts["options"]["rate"] == options_of("drift")["rate"].default == 0.2


def test_numpy_numbers_are_numbers(tmp_path):
    written = make_workload("drift", tmp_path / "d", samples=np.int64(50), rate=np.float32(0.5))
    assert written.samples == 50


def test_every_workload_describes_its_options():
    for name in WORKLOADS:
        assert WORKLOADS[name]
        for option in options_of(name).values():
            assert option.help
            assert option.accepted
            assert option.read(option.default) == option.default


def test_listing_workloads_imports_neither_numba_nor_pyarrow():
    script = (
        "import sys, rowtier; rowtier.WORKLOADS; from rowtier.synth.make import options_of;"
        "options_of('meta'); sys.exit(bool({'numba', 'pyarrow', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
