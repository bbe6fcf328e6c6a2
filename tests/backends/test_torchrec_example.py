"""The example that trains TorchRec's DLRM in four ways, as users run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrec_dlrm.py"


def test_four_ways_have_the_same_losses() -> None:
    command = [sys.executable, "-W", "ignore", str(EXAMPLE), "--ranks", "2", "--steps", "6"]
    small = ["--batch-size", "64", "--json"]
    done = subprocess.run([*command, *small], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    (found,) = json.loads(done.stdout)
    names = [facts["way"] for facts in found["ways"]]
    assert names == ["TorchRec's planner", "RowtierPlanner", "split", "ShardedEmbeddings"]
    assert found["largest_difference"] < 1e-5 < found["if_tables_were_frozen"] / 10
    assert all(facts["bytes_per_step"] > 0 and len(facts["loss"]) == 6 for facts in found["ways"])
