"""Drawn pairs of plans: migrate in mid-training equals save-under-old and load-under-new.

Bit for bit on 1 to 4 real ranks, all optimizers, disk tiers and 16-bit tables among them, and
bytes by rank and level as `rowtier.diff` says. It is the test of the suite with more pairs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness.form import Measured

ROOT = Path(__file__).parents[3]
IN_SUITE, PAIRS = 20, 200  # that `make test` draws, and that are drawn here
TEST = (
    "tests/distributed/test_migrate.py"
    "::test_a_migration_is_a_checkpoint_loaded_under_the_new_plan_bit_for_bit"
)


def measure(quick: bool) -> Measured:
    """Draw pairs; 1 if all are equal, and if not the test says which one is not."""
    times = 1 if quick else PAIRS // IN_SUITE
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", TEST],
        cwd=ROOT,
        env={**os.environ, "ROWTIER_DRAWN_PLANS": str(times)},
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1):  # nothing was tried
        raise RuntimeError(f"pytest could not run {TEST}: {done.stdout[-4000:]}{done.stderr}")
    if done.returncode:
        print(done.stdout[-4000:], file=sys.stderr)
    drawn, equal = times * IN_SUITE, done.returncode == 0
    return Measured([{"pairs": drawn, "equal": equal}], {"migrate_exact": float(equal)})
