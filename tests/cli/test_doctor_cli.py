"""`rowtier doctor`, with few cases; the device itself is nobody's here."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.run import run

pytest.importorskip("torch", reason="torch is not installed")

from rowtier.runtime.device import compiling, doctor, interpreted

FEW = {"host": 1, "device": 1, "interpreter": 1}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No processes, and one case of each operation."""
    monkeypatch.setattr(doctor, "PER_OPERATION", FEW)
    found = lambda *_args, **_more: interpreted.Interpreted(cases=14)  # noqa: E731
    monkeypatch.setattr(interpreted, "run_interpreter", found)
    monkeypatch.setattr(doctor, "devices", list)
    monkeypatch.setattr(compiling, "compile_all", lambda *_args: compiling.Compiled(compiled=20))


@pytest.mark.usefixtures("quick")
def test_the_verdict_comes_first_and_says_that_there_is_no_gpu(tmp_path: Path) -> None:
    code, out, err = run("doctor", "-o", str(tmp_path / "doctor.json"))
    assert (code, err) == (0, "")
    first, *_ = out.splitlines()
    assert first.startswith("all 4 checks")
    assert "nothing ran on a GPU" in first
    assert max(map(len, out.replace(str(tmp_path), "").splitlines())) <= 100
    facts = json.loads((tmp_path / "doctor.json").read_text())
    assert facts["holds"] is True
    assert facts["versions"]["torch"]
    assert facts["devices"] == []


@pytest.mark.usefixtures("quick")
def test_a_kernel_that_differs_ends_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.PlainKernels, "squares", lambda _self, grads: grads.sum(1))
    code, out, _ = run("doctor", "--json")
    facts = json.loads(out)
    assert (code, facts["holds"]) == (1, False)
    assert "squares" in facts["checks"][0]["troubles"][0]


@pytest.mark.usefixtures("quick")
def test_without_triton_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = importlib.util.find_spec
    absent = lambda name, *rest: None if name == "triton" else real(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", absent)
    code, out, _ = run("doctor")
    assert code == 0
    assert "rowtier[cuda]" in out


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "rowtier.runtime.device.doctor")
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, err = run("doctor")
    assert code == 2
    assert "rowtier[torch]" in " ".join(err.split())


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    code, _, err = run("doctor", "-o", str(tmp_path))
    assert code == 2
    assert "doctor.json" in err


@pytest.mark.usefixtures("quick")
def test_bandwidths_and_devices_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    device = {"device": "cuda:0", "name": "a GPU", "arch": "sm_90", "memory_bytes": 80 << 30}

    def examined(_progress: Any) -> doctor.Health:
        rate = {"device": "cuda:0", "what": "device memory, copied", "bytes_per_s": 1.5e12}
        return doctor.Health(doctor.versions(), [device], [], [rate])

    monkeypatch.setattr(doctor, "examine", examined)
    code, out, _ = run("doctor")
    assert code == 0
    assert "a GPU" in out
    assert "1.5" in out
