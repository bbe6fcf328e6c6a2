"""The program in hostile environments; benchmarks/fault_kinds tries more of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from fault_kinds.environments import Case, make_cases, try_case

from rowtier.cli import stops, trouble
from rowtier.errors import UserError

TRIED = (
    "full output, --help",
    "closed output",
    "ASCII",
    "pipe",
    "machine code, swapped",
    "SIGINT in plan",
    "SIGTERM in profile",
    "out of memory",
)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return {case.kind: case for case in make_cases(tmp_path_factory.mktemp("environments"))}


def test_there_are_many(cases: dict[str, Case]) -> None:
    assert len(cases) >= 50


@pytest.mark.parametrize("kind", TRIED)
def test_the_program_ends_as_documented(cases: dict[str, Case], kind: str) -> None:
    assert try_case(cases[kind]) == []


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(13, "Permission denied", "a.yaml"), "a.yaml: Permission denied; check"),
        (OSError(28, "No space left on device", b"b"), "b: No space left on device; free"),
        (OSError(18, "Cross-device link", "a", None, "b"), "a -> b: Cross-device link"),
        (OSError(24, "Too many open files"), "ulimit -n"),
        (MemoryError("Unable to allocate 7 GiB"), "not enough memory (Unable to allocate 7 GiB)"),
    ],
)
def test_what_the_machine_refuses_is_a_message(error: Exception, says: str) -> None:
    with pytest.raises(UserError) as found, trouble.told():
        raise error
    assert says in str(found.value)


@pytest.mark.parametrize("error", [ValueError("odd"), KeyError("x"), ChildProcessError(10, "no")])
def test_a_bug_keeps_its_traceback_and_says_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as found, trouble.told():
        raise error
    assert found.value is error
    assert not hasattr(error, "__notes__") or "bug in rowtier" in error.__notes__[0]


def test_a_stop_is_no_exception_that_something_could_swallow() -> None:
    assert not issubclass(stops.Stopped, Exception)
    assert stops.EXIT_CODE == 130


def test_signals_are_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stops.listening():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_reader_that_leaves_is_no_error() -> None:
    head = subprocess.run(
        f"{sys.executable} -m rowtier --help | true; exit ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, check=False,
        env=dict(os.environ),
    )  # fmt: skip
    assert head.returncode in (0, 1)
    assert head.stderr == ""
