"""These tests run real TorchRec; without it they are skipped, with a message."""

import importlib
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # fbgemm warns of every kernel that its CPU build leaves out
    pytest.importorskip(
        "torchrec", reason="needs TorchRec: make install, or pip install 'rowtier[torchrec]'"
    )
    importlib.import_module("torch.distributed.optim")  # warns of torch.jit, which it uses


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of what two processes found share them, so one test process runs them all."""
    for item in items:
        if "ranks" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("torchrec ranks"))


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What two processes found."""
    import torch

    folder, script = tmp_path_factory.mktemp("dropin"), Path(__file__).parent / "train_dropin.py"
    launch = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    command = [*launch, "--nproc-per-node", "2", str(script), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]
