"""Where benchmarks are, where their results are kept, and where real data is."""

from __future__ import annotations

import os
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1]
RESULTS = BENCHMARKS / "results"
DATA = Path(os.environ.get("ROWTIER_DATA", BENCHMARKS.resolve().parents[1] / "shared" / "data"))
