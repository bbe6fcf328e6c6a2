from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reader_helpers import numbers_of, samples_of

from rowtier.errors import UserError
from rowtier.profile.readers import Sample, Sampled, open_source


def data(folder: Path, samples: int, group: int, name: str = "a") -> Path:
    index = np.arange(samples)
    table = pa.table(
        {
            "index": index,
            "list": [[i, -i] if i % 3 else [] for i in range(samples)],
            "text": [str(i) if i % 5 else None for i in range(samples)],
        }
    )
    pq.write_table(table, folder / f"{name}.parquet", row_group_size=group)
    return folder


def indexes(found: dict[str, list[list[Any]]]) -> list[int]:
    return [entry[0] for entry in found["index"]]


def test_a_sample_keeps_whole_rows(tmp_path: Path) -> None:
    source = Sampled(open_source(data(tmp_path, 3000, 1000), ["index"]), Sample(0.3))
    found = samples_of(source, ["index", "list", "text"])
    kept = indexes(found)
    assert 700 < len(kept) < 1100
    assert found["list"] == [[i, -i] if i % 3 else [] for i in kept]
    assert found["text"] == [[str(i)] if i % 5 else [] for i in kept]


def test_a_sample_does_not_depend_on_row_groups_and_files(tmp_path: Path) -> None:
    kept = []
    for group in (3000, 700, 90):
        folder = tmp_path / str(group)
        folder.mkdir()
        source = Sampled(open_source(data(folder, 3000, group), ["index"]), Sample(0.2, seed=5))
        kept.append(indexes(samples_of(pickle.loads(pickle.dumps(source)), ["index"])))
    assert kept[0] == kept[1] == kept[2]


def test_seeds_differ_and_repeat(tmp_path: Path) -> None:
    plain = open_source(data(tmp_path, 2000, 500), ["index"])
    one, same, other = (
        indexes(samples_of(Sampled(plain, Sample(0.5, seed)), ["index"])) for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other
    both = set(one) & set(other)
    assert 400 < len(both) < 600  # independent


def test_of_many_row_groups_few_are_decoded(tmp_path: Path) -> None:
    plain = open_source(data(tmp_path, 20_000, 50), ["index"])
    assert len(plain.parts) == 400
    for share, groups in ((0.001, 20), (0.01, 40), (0.03, 120), (0.1, 400), (1.0, 400)):
        source = Sampled(plain, Sample(share, seed=3))
        assert len(source.parts) == groups
        assert set(source.parts) <= set(plain.parts)
        assert source.row_share == pytest.approx(share * 400 / groups)
        kept = len(indexes(samples_of(source, ["index"])))
        expected = 20_000 * share
        assert abs(kept - expected) <= 5 * expected**0.5


def test_every_row_is_as_likely_as_any_other(tmp_path: Path) -> None:
    plain = open_source(data(tmp_path, 4000, 50), ["index"])
    seen = np.zeros(4000)
    seeds = 150
    for seed in range(seeds):
        seen[indexes(samples_of(Sampled(plain, Sample(0.05, seed)), ["index"]))] += 1
    per_group = seen.reshape(80, 50).mean(axis=1)
    assert seen.mean() == pytest.approx(seeds * 0.05, rel=0.03)
    assert per_group.min() > 0.5 * seeds * 0.05
    assert per_group.max() < 1.5 * seeds * 0.05


def test_samples_keep_the_numbers_that_they_have_in_all_data(tmp_path: Path) -> None:
    source = Sampled(open_source(data(tmp_path, 4001, 77), ["index"]), Sample(0.1, seed=1))
    assert source.ordered
    assert source.samples is None
    assert source.features == ("index", "list", "text")
    found = indexes(samples_of(source, ["index"]))
    assert numbers_of(source, ["index"]) == found
    assert min(found) < 2000 < max(found)


def test_everything_is_a_sample_too(tmp_path: Path) -> None:
    source = Sampled(open_source(data(tmp_path, 100, 10), ["index"]), Sample(1.0))
    assert indexes(samples_of(source, ["index"])) == list(range(100))


def test_other_formats_are_sampled_by_row(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", index=np.arange(5000))
    kept = indexes(samples_of(Sampled(open_source(tmp_path, ["index"]), Sample(0.1)), ["index"]))
    assert 350 < len(kept) < 650
    pq.write_table(pa.table({"index": np.arange(5000)}), tmp_path / "b.parquet")
    same = Sampled(open_source(tmp_path / "b.parquet", ["index"]), Sample(0.1))
    assert kept == indexes(samples_of(same, ["index"]))
    line = "\t".join(["0"] + [""] * 13 + ["{:x}"] + [""] * 25) + "\n"
    text = tmp_path / "c.tsv"
    text.write_text("".join(line.format(i) for i in range(5000)))
    found = samples_of(Sampled(open_source(text, ["C1"]), Sample(0.1)), ["C1"])["C1"]
    assert 350 < len(found) < 650


def test_batches_are_sampled_whatever_their_size() -> None:
    index = np.arange(1000)
    kept = []
    for size in (1000, 70):
        batches = [{"index": index[i : i + size]} for i in range(0, 1000, size)]
        source = Sampled(open_source(batches, ["index"]), Sample(0.2, seed=4))
        kept.append(indexes(samples_of(source, ["index"])))
    assert kept[0] == kept[1]


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_impossible_shares_are_refused(share: float) -> None:
    with pytest.raises(UserError, match="above 0 and up to 1"):
        Sample(share)
