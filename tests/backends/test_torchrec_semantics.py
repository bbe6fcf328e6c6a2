"""Our collections do what TorchRec's unsharded ones do, on one process and on two."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends.semantics_cases import CASES, compare


def check(name: str, pairs: dict[str, tuple[Any, Any]]) -> None:
    close = CASES[name].close
    for what, (found, expected) in pairs.items():
        if isinstance(expected, torch.Tensor):
            assert found.dtype == expected.dtype, what
            torch.testing.assert_close(
                found, expected, rtol=close, atol=close, msg=lambda said, at=what: f"{at}: {said}"
            )
        else:
            assert found == expected, what


@pytest.mark.parametrize("name", CASES)
def test_one_process_equals_the_unsharded_collection(name: str) -> None:
    check(name, compare(name, 0, 1))


@pytest.mark.parametrize("name", CASES)
def test_two_processes_equal_the_unsharded_collection(name: str, ranks: list[Any]) -> None:
    for found in ranks:
        assert "error" not in found["semantics"][name], found["semantics"][name]["error"]
        check(name, found["semantics"][name])
