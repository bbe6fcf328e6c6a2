"""The real files that lie beside the project; their README says what must come out."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from reader_helpers import chunks_of, real_data, samples_of

from rowtier.profile.readers import open_source


def distinct(path: Path, features: list[str]) -> tuple[int, dict[str, int], dict[str, int]]:
    """Samples, and per feature its ids and its distinct ids."""
    samples = 0
    values: dict[str, list[np.ndarray]] = {name: [] for name in features}
    for chunk in chunks_of(open_source(path, features), features):
        samples += chunk.samples
        for name, ids in chunk.features.items():
            values[name].append(ids.values)
    ids = {name: sum(map(len, found)) for name, found in values.items()}
    return samples, ids, {name: len(np.unique(np.concatenate(v))) for name, v in values.items()}


@pytest.mark.parametrize(
    ("name", "samples", "ids", "rows"),
    [
        ("diginetica.parquet", 186_670, 906_140, 43_097),
        ("nowplaying.parquet", 128_077, 953_381, 60_416),
    ],
)
def test_sessions(name: str, samples: int, ids: int, rows: int) -> None:
    assert distinct(real_data(name), ["item"]) == (samples, {"item": ids}, {"item": rows})


def test_bookcrossing() -> None:
    rows = {
        "user_id": 105_283,
        "isbn": 340_556,
        "book_author": 101_592,
        "publisher": 16_729,
        "city": 26_111,
    }
    samples, ids, found = distinct(real_data("bookcrossing.parquet"), list(rows))
    assert samples == 1_149_780
    assert set(ids.values()) == {samples}
    assert found == rows


def test_criteo_sample_plain_and_gzipped(tmp_path: Path) -> None:
    path = real_data("criteo_sample.tsv")
    features = [*(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    expected = {
        name: [[int(row[at], 10 if at < 14 else 16)] if row[at] else [] for row in rows]
        for at, name in enumerate(features, 1)
    }
    assert len(rows) == 10_000
    assert samples_of(open_source(path, features), features) == expected
    packed = tmp_path / "sample.tsv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert samples_of(open_source(packed, features), features) == expected
