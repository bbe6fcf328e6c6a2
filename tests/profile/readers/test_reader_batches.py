from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reader_helpers import chunks_of, late_of, refused, samples_of

from rowtier.errors import UserError
from rowtier.profile.readers import open_source

LISTS = st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=5)


def pair(lists: list[list[int]]) -> tuple[Any, Any]:
    values = np.array([v for entry in lists for v in entry], dtype=np.int64)
    return values, np.array([len(entry) for entry in lists], dtype=np.int32)


@given(st.lists(LISTS, max_size=5), st.booleans())
def test_dictionaries_of_values_and_lengths(batches: list[list[list[int]]], known: bool) -> None:
    data = [{"f": pair(lists), "other": 7} for lists in batches]
    total = sum(map(len, batches))
    source = open_source(data, ["f"], samples=total if known else None)
    assert samples_of(source, ["f"])["f"] == [entry for lists in batches for entry in lists]
    if known:
        assert late_of(source, ["f"]) == [i >= total // 2 for i in range(total)]


@given(st.integers(1, 6), st.integers(1, 5))
def test_batches_of_equal_size_are_cut_in_the_middle(count: int, size: int) -> None:
    source = open_source([{"f": np.arange(size)} for _ in range(count)], ["f"])
    total = count * size
    assert source.ordered
    assert late_of(source, ["f"]) == [i >= total // 2 for i in range(total)]
    assert [chunk.done for chunk in chunks_of(source, ["f"])][-1] == 1.0


def test_every_form_of_a_feature() -> None:
    forms: dict[str, Any] = {
        "array": np.array([1, 2], np.uint8),
        "list": [1, 2],
        "holes": [1, None],
        "lists": [[1, 2], None],
        "matrix": np.array([[1, 2], [3, 4]]),
        "strings": ["a", "b"],
        "string array": np.array(["a", "b"]),
        "pair of lists": ([1, 2, 3], [2, 1]),
        "collated": [np.array([1, 2, 3]), np.array([2, 1])],
        "string pair": (["a", "b"], [0, 2]),
        "nothing": ([], [0, 0]),
        "arrow": pa.array(["a", None]),
        "chunked": pa.chunked_array([[1], [2]]),
    }
    found = samples_of(open_source(forms, list(forms)), list(forms))
    assert found == {
        "array": [[1], [2]],
        "list": [[1], [2]],
        "holes": [[1], []],
        "lists": [[1, 2], []],
        "matrix": [[1, 2], [3, 4]],
        "strings": [["a"], ["b"]],
        "string array": [["a"], ["b"]],
        "pair of lists": [[1, 2], [3]],
        "collated": [[1, 2], [3]],
        "string pair": [[], ["a", "b"]],
        "nothing": [[], []],
        "arrow": [["a"], []],
        "chunked": [[1], [2]],
    }


def test_a_generator_has_no_middle_and_is_read_once() -> None:
    def batches() -> Iterator[dict[str, Any]]:
        yield {"f": np.array([1])}
        yield {"f": np.array([2, 3])}

    source = open_source(batches(), ["f"])
    assert not source.ordered
    assert [chunk.late for chunk in chunks_of(source, ["f"])] == [False, False]
    with pytest.raises(UserError, match="read already"):
        chunks_of(source, ["f"])
    known = open_source(batches(), ["f"], samples=3)
    assert known.ordered
    assert late_of(known, ["f"]) == [False, True, True]


class Jagged:
    """As much of a JaggedTensor as is needed."""

    def __init__(self, values: Any, lengths: Any):
        self._values, self._lengths = values, lengths

    def values(self) -> Any:
        return self._values

    def lengths(self) -> Any:
        return self._lengths


class Keyed:
    """As much of a KeyedJaggedTensor as is needed."""

    def __init__(self, features: dict[str, Jagged]):
        self._features = features

    def keys(self) -> list[str]:
        return list(self._features)

    def stride(self) -> int:
        return 2

    def to_dict(self) -> dict[str, Jagged]:
        return self._features

    def __getitem__(self, key: str) -> Jagged:
        return self._features[key]


def test_anything_like_a_keyed_jagged_tensor_will_do() -> None:
    keyed = Keyed({"f": Jagged(np.array([1, 2, 3]), np.array([1, 2]))})
    assert samples_of(open_source(keyed, ["f"]), ["f"])["f"] == [[1], [2, 3]]
    refused([keyed], ["g"], "batch 0", "g", "there are f")


def test_torchrec_batches() -> None:
    torch = pytest.importorskip("torch")
    sparse = pytest.importorskip("torchrec.sparse.jagged_tensor")
    keyed = sparse.KeyedJaggedTensor(
        keys=["f", "g"],
        values=torch.tensor([1, 2, 3, 4, 5]),
        lengths=torch.tensor([2, 0, 1, 2], dtype=torch.int32),
    )
    expected = {"f": [[1, 2], []], "g": [[3], [4, 5]]}
    assert samples_of(open_source([keyed], ["f", "g"]), ["f", "g"]) == expected

    class Batch:
        sparse_features = keyed

    assert samples_of(open_source([Batch()], ["f", "g"]), ["f", "g"]) == expected
    loader = torch.utils.data.DataLoader([{"f": torch.tensor(i)} for i in range(5)], batch_size=2)
    source = open_source(loader, ["f"])
    assert samples_of(source, ["f"])["f"] == [[i] for i in range(5)]
    assert late_of(source, ["f"]) == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"g": np.arange(2)}, ["f", "no such feature"]),
        ({"f": np.array([1.5])}, ["f", "double", "whole numbers"]),
        ({"f": (np.arange(3), np.array([1, 1]))}, ["f", "add up to 2", "3 values"]),
        ({"f": (np.arange(3), np.array([4, -1]))}, ["f", "-1", "negative"]),
        ({"f": (np.arange(3),)}, ["f", "two, values and lengths"]),
        ({"f": (np.ones((2, 2), int), [2, 2])}, ["f", "flat"]),
        ({"f": ([1, None], [2])}, ["f", "flat"]),
        ({"f": (["a"], ["b"])}, ["f", "flat"]),
        ({"f": 5}, ["f", "int"]),
        ({"f": [2**70]}, ["f"]),
        ({"f": [1, "a"]}, ["f", "list"]),
        ({"f": np.ones((1, 1, 1), int)}, ["f"]),
        (7, ["is a int", "KeyedJaggedTensors"]),
    ],
)
def test_batches_that_hold_no_ids_are_refused(batch: Any, words: list[str]) -> None:
    refused([batch], ["f"], "batch 0", *words)
    refused(iter([{"f": [1]}, batch]), ["f"], "batch 1", *words)


def test_features_with_different_samples_are_refused() -> None:
    refused([{"f": [1, 2], "g": [1, 2, 3]}], ["f", "g"], "batch 0", "g", "3", "'f' has 2")


def test_what_cannot_be_iterated_is_refused() -> None:
    with pytest.raises(UserError, match="cannot read ids from a int"):
        open_source(5, ["f"])  # type: ignore[arg-type]
