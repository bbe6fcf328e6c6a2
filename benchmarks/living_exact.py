"""Drawn pairs of plans: migrate in mid-training equals save-under-old and load-under-new.

Bit for bit on 1 to 4 real ranks, all optimizers, disk tiers and 16-bit tables among them, and
bytes by rank and level as `rowtier.diff` says. It is the test of the suite with more pairs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from harness.form import Measured, run

ROOT = Path(__file__).parents[1]
IN_SUITE = 20  # pairs that `make test` draws
TEST = (
    "tests/distributed/test_migrate.py"
    "::test_a_migration_is_a_checkpoint_loaded_under_the_new_plan_bit_for_bit"
)


def measure(quick: bool, pairs: int) -> Measured:
    """Draw so many pairs; the share that is equal is 1 or the test says which is not."""
    times = 1 if quick else max(1, round(pairs / IN_SUITE))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", TEST],
        cwd=ROOT,
        env={**os.environ, "ROWTIER_DRAWN_PLANS": str(times)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        print(done.stdout[-4000:], file=sys.stderr)
    drawn, equal = times * IN_SUITE, done.returncode == 0
    return Measured([{"pairs": drawn, "equal": equal}], {"migrate_exact": float(equal)})


if __name__ == "__main__":
    run(
        "living_exact",
        measure,
        goals={"migrate_exact": (">=", 1.0)},
        options={"pairs": (200, "pairs of plans to draw")},
    )
