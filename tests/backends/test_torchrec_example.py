"""The example that trains TorchRec's DLRM with our tables, as users run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrec_dlrm.py"


def test_losses_are_those_of_the_unsharded_model_under_both_pipelines_and_optimizers() -> None:
    launch = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    command = [*launch, "--nproc-per-node", "2", str(EXAMPLE)]
    one = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=one)
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.findall(r"(\w+) +TrainPipeline(\w+) .*within (\S+) of", done.stdout)
    assert [facts[:2] for facts in found] == [
        ("SGD", "SparseDist"),
        ("SGD", "PT2"),
        ("RowWiseAdagrad", "SparseDist"),
        ("RowWiseAdagrad", "PT2"),
    ]
    assert all(float(apart) < 1e-5 for *_, apart in found), done.stdout
