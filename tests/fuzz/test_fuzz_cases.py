"""What the fuzzer once found stays fixed; and the fuzzer notices what it is there to notice."""

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from fault_kinds.fuzz import judge, processes, targets  # noqa: E402
from fault_kinds.fuzz.changes import apply  # noqa: E402
from fault_kinds.fuzz.corpus import BASES  # noqa: E402
from fault_kinds.fuzz.draw import Case, draw  # noqa: E402
from fault_kinds.fuzz.processes import Kept, in_child, run_cases  # noqa: E402

from rowtier.errors import UserError  # noqa: E402

CASES = Path(__file__).parent / "cases.yaml"


def test_every_kept_case_is_done_or_refused() -> None:
    kept = Kept.load(CASES)
    found = run_cases(kept)
    said = [f"{case.base} {list(case.changes)}: {outcome}" for _, case, outcome in found.failures]
    assert not said, "\n".join(said)
    assert found.cases == kept.count >= 20


def _dies(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hangs(*_: object) -> None:
    time.sleep(60)


def _hangs_without_python(*_: object) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(60)


def _raises(*_: object) -> None:
    raise KeyError("no bug of a user")


def _grows(*_: object) -> None:
    np.ones(2**31)


def _warns(*_: object) -> None:
    warnings.warn("invalid value", RuntimeWarning, stacklevel=1)


def _refuses(*_: object) -> None:
    raise UserError("as it should be")


def _is_nonsense(*_: object) -> None:
    targets._finite(float("nan"))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("does", "what"),
    [
        (_dies, "died"),
        (_hangs, "hang"),
        (_hangs_without_python, "hang"),
        (_raises, "crash"),
        (_grows, "memory"),
        (_warns, "warning"),
        (_is_nonsense, "crash"),
        (_refuses, "refused"),
        (lambda *_: None, "done"),
    ],
)
def test_what_goes_wrong_is_told_apart(
    does: Callable[..., None], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(targets.TARGETS, "texts", does)
    monkeypatch.setattr(judge, "LONGEST_S", 0.3)
    monkeypatch.setattr(processes, "SILENCE_S", 1.5)
    (tmp_path / "corpus" / "texts").mkdir(parents=True)
    kept = Kept((Case("texts", ()), Case("texts", ())))
    found = list(in_child(kept, [0, 1], tmp_path / "corpus", tmp_path / "work"))
    assert {outcome.what for _, outcome in found} == {what}
    lost = what == "died" or does is _hangs_without_python
    assert len(found) == (1 if lost else 2)  # the next child goes on behind it


def test_a_seed_draws_the_same_cases_and_another_draws_others(tmp_path: Path) -> None:
    for base in ("tables", "cluster", "constraints", "texts", "options", "tsv", "npz", "parquet"):
        (tmp_path / base).mkdir()
        BASES[base](tmp_path / base)
    for base in {*BASES} - {path.name for path in tmp_path.iterdir()}:
        (tmp_path / base).mkdir()
        (tmp_path / base / "a.json").write_text('{"a": [1, 2]}')
    first = [draw(tmp_path, 1, number) for number in range(300)]
    assert [repr(draw(tmp_path, 1, number)) for number in range(300)] == [repr(c) for c in first]
    assert [repr(draw(tmp_path, 2, number)) for number in range(300)] != [repr(c) for c in first]
    assert {case.base for case in first} == set(BASES)


def test_a_change_whose_place_is_gone_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    for change in (
        {"op": "put", "file": "a.json", "path": ["b", 3, "c"], "value": 0},
        {"op": "column", "file": "a.json", "column": 0, "do": "drop"},
        {"op": "flip", "file": "missing", "bits": [1]},
    ):
        apply(tmp_path, change)
    assert (tmp_path / "a.json").read_text() == '{"a": 1}'
    apply(tmp_path, {"op": "put", "file": "a.json", "path": ["a"], "value": 2})
    assert "2" in (tmp_path / "a.json").read_text()


def test_a_sealed_folder_has_right_checksums_again(tmp_path: Path) -> None:
    import json

    import xxhash

    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "order.bin").write_bytes(b"changed")
    entry = {"files": {"order.bin": {"bytes": 1, "xxh3": "0"}, "gone": {"bytes": 1, "xxh3": "0"}}}
    (tmp_path / "plan" / "manifest.json").write_text(json.dumps(entry))
    apply(tmp_path, {"op": "seal", "file": "plan"})
    sealed = json.loads((tmp_path / "plan" / "manifest.json").read_text())["files"]
    assert sealed["order.bin"] == {"bytes": 7, "xxh3": xxhash.xxh3_64(b"changed").hexdigest()}
    assert sealed["gone"] == {"bytes": 1, "xxh3": "0"}
