from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reader_helpers import chunks_of, late_of, refused, samples_of

from rowtier.errors import UserError
from rowtier.profile.readers import npz, open_source


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=40),
    st.integers(1, 12),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from(["_", "."]),
    st.sampled_from([np.int8, np.uint16, np.int64, np.dtype(">i4"), np.uint64]),
)
def test_any_arrays_in_any_blocks_read_as_plain_python_does(
    tmp_path_factory: pytest.TempPathFactory,
    lists: list[list[int]],
    block: int,
    width: int,
    packed: bool,
    mark: str,
    dtype: Any,
) -> None:
    path = tmp_path_factory.mktemp("npz") / "a.npz"
    samples = len(lists)
    matrix = np.arange(samples * width).reshape(samples, width)
    arrays = {
        "one": np.arange(samples, dtype=dtype),
        "matrix": matrix,
        f"bag{mark}values": np.array([v for entry in lists for v in entry], dtype=dtype),
        f"bag{mark}lengths": np.array([len(entry) for entry in lists], dtype=np.int32),
    }
    (np.savez_compressed if packed else np.savez)(path, **arrays)
    wanted = ["bag", "one", "matrix"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(npz, "BLOCK_SAMPLES", block)
        source = open_source(path, wanted)
        found = samples_of(source, wanted)
        late = late_of(source, wanted)
    assert set(source.features) == {"one", "matrix", "bag"}
    assert source.samples == samples
    assert found == {
        "bag": lists,
        "one": [[i] for i in range(samples)],
        "matrix": matrix.tolist(),
    }
    assert late == [i >= samples // 2 for i in range(samples)]


def test_several_files_are_one_stream(tmp_path: Path) -> None:
    np.savez(tmp_path / "b.npz", f=np.array([3, 4, 5]))
    np.savez(tmp_path / "a.npz", f=np.array([1, 2]))
    source = pickle.loads(pickle.dumps(open_source(tmp_path, ["f"])))
    assert samples_of(source, ["f"])["f"] == [[1], [2], [3], [4], [5]]
    assert late_of(source, ["f"]) == [False, False, True, True, True]
    assert [part.first_sample for part in source.parts] == [0, 2]
    assert chunks_of(source, ["f"])[0].features["f"].lengths is None


def test_npz_is_known_by_its_content(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", f=np.array([1]))
    (tmp_path / "a.npz").rename(tmp_path / "data")
    assert samples_of(open_source(tmp_path / "data", ["f"]), ["f"])["f"] == [[1]]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"f": np.arange(3), "g": np.arange(4)}, ["g", "4", "'f' has 3"]),
        ({"f": np.arange(3), "gg": np.arange(3)}, ["g", "did you mean 'gg'?"]),
        ({"f": np.arange(3.0), "g": np.arange(3)}, ["f", "float64", "whole numbers"]),
        ({"f": np.zeros((2, 2, 2), int), "g": np.arange(2)}, ["f", "(2, 2, 2)"]),
        ({"f": np.array(["a"]), "g": np.arange(1)}, ["f", "<U1"]),
        (
            {"f_values": np.arange(3), "f_lengths": np.array([2, -1]), "g": np.arange(2)},
            ["f", "-1", "negative"],
        ),
        (
            {"f_values": np.arange(3), "f_lengths": np.array([2, 2]), "g": np.arange(2)},
            ["f", "add up to 4", "3 values"],
        ),
        (
            {"f_values": np.arange(3), "f_lengths": np.array([1, 1]), "g": np.arange(2)},
            ["f", "1 values are left"],
        ),
        (
            {"f_values": np.arange(3), "f_lengths": np.array([1.0, 2.0]), "g": np.arange(2)},
            ["f_lengths", "float64"],
        ),
        (
            {"f": np.asfortranarray(np.ones((2, 3), int)), "g": np.arange(2)},
            ["f", "ascontiguousarray"],
        ),
    ],
)
def test_arrays_that_do_not_fit_are_named(
    tmp_path: Path, arrays: dict[str, Any], words: list[str]
) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **arrays)
    refused(path, ["f", "g"], str(path), *words)


@pytest.mark.parametrize("packed", [False, True])
def test_damaged_npz_is_refused(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "a.npz"
    (np.savez_compressed if packed else np.savez)(path, f=np.arange(5000) * 7919 % 5001)
    whole = path.read_bytes()
    for broken in (b"", whole[:100], whole[:-30], whole[:300] + bytes(50) + whole[350:]):
        path.write_bytes(broken)
        refused(path, ["f"], str(path), "cut off or damaged")


def test_an_npz_that_changes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, f=np.arange(5))
    source = open_source(path, ["f"])
    np.savez(path, f=np.arange(6))
    with pytest.raises(UserError, match="changed"):
        samples_of(source, ["f"])
