"""The pretend accelerator is as strict as a real one. torch has one such device a process."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rowtier.runtime.device import pretend  # noqa: E402
from rowtier.runtime.kernels.protocol import OPERATIONS  # noqa: E402

TRIALS = """
import json
import numpy as np, torch
from rowtier.runtime.device.pretend import PretendTensor, install
device = install()
assert install() is device
here, there = torch.arange(6.0), torch.arange(6.0).to(device)
said = {}

def tried(name, job):
    PretendTensor.stops.clear()
    try:
        job()
        said[name] = [stop.operation for stop in PretendTensor.stops]
    except (RuntimeError, TypeError) as error:
        said[name] = str(error)

tried("adds", lambda: there + there)
tried("a number of the host", lambda: there * torch.tensor(2.0))
tried("mixes", lambda: there + here)
tried("indexed by the host", lambda: there[torch.tensor([1])])
tried("numpy", lambda: there.numpy())
tried("asarray", lambda: np.asarray(there))
tried("data_ptr", lambda: there.data_ptr())
tried("item", lambda: there[0].item())
tried("flags", lambda: there[there > 2])
tried("nonzero", lambda: torch.nonzero(there))
tried("unique", lambda: torch.unique(there))
tried("to the host", lambda: there.cpu())
tried("into the host", lambda: here.copy_(there))
tried("from the host", lambda: here.to(device))
tried("accumulates", lambda: there.index_put_((torch.tensor([0]).to(device),), there[:1], True))
large = torch.tensor([1e8, 1.0, -1e8, 3.0] * 50).to(device)
at = torch.zeros(200, dtype=torch.int64).to(device)
sums = {torch.zeros(1, device=device).index_add_(0, at, large).cpu().item() for _ in range(20)}
said["sums"] = len(sums)
said["shape"] = list(torch.zeros(2, 3, device=device).shape)
print(json.dumps(said))
"""


def test_what_a_gpu_refuses_is_refused_and_what_stops_the_host_is_noted() -> None:
    code = textwrap.dedent(TRIALS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for name in ("adds", "a number of the host", "from the host"):
        assert said[name] == [], name
    for name in ("mixes", "indexed by the host"):
        assert "mixes tensors" in said[name]
    assert "no numpy array" in said["numpy"]
    assert isinstance(said["asarray"], str)
    assert "must not touch" in said["data_ptr"]
    for name in ("item", "flags", "nonzero", "unique", "to the host", "into the host"):
        assert len(said[name]) == 1, name
    assert "atomics" in said["accumulates"]
    assert said["sums"] > 1  # a sum by atomics depends on luck
    assert said["shape"] == [2, 3]


def test_plain_operations_stay_on_the_device_and_give_the_hosts_bits() -> None:
    ran = pretend.run_pretend(2 * len(OPERATIONS))
    assert ran.mismatches == []
    assert ran.cases == 2 * len(OPERATIONS)
    assert set(ran.stops) == set(OPERATIONS)
    assert not any(ran.stops[name] for name in ("holders", "gather", "squares", "update"))


def test_a_process_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretend.sys, "executable", "/bin/false")
    assert "ended" in pretend.run_pretend(1).mismatches[0]
