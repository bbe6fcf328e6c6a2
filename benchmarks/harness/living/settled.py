"""What a run takes if nothing else stops it: a busy machine stops single steps for long."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def settled_s(times: Sequence[float], neighbours: int) -> float:
    """Seconds of all, if each took what is usual among its neighbours."""
    parts = [times[start : start + neighbours] for start in range(0, len(times), neighbours)]
    return sum(len(part) * statistics.median(part) for part in parts)
