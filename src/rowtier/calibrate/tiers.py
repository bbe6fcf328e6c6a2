"""What timing a memory tier gives, and how the ranks' timings become one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rowtier.calibrate.fit import Grain, fit_grain
from rowtier.cluster import Tier

ROW_BYTES = (64, 128, 256, 512, 1024, 2048, 4096)
MIB = 2**20

Tick = Callable[[], None]


@dataclass(frozen=True)
class TierTimes:
    """Seconds per row of each size in random order, and bytes per second in sequence."""

    name: str
    capacity_bytes: int
    read_s: tuple[float, ...]  # one for each of ROW_BYTES
    write_s: tuple[float, ...]
    sequential_read_bytes_per_s: float
    sequential_write_bytes_per_s: float
    granularities: tuple[int, ...]  # those that this kind of memory can have
    cached: bool = False  # a disk whose reads could not go past the page cache

    def fit(self, typical_row_bytes: int) -> Grain:
        """Granularity and bandwidth for rows that are read as often as written, as in training."""
        both = [(read + write) / 2 for read, write in zip(self.read_s, self.write_s, strict=True)]
        return fit_grain(ROW_BYTES, both, typical_row_bytes, self.granularities)

    def mean_with(self, other: TierTimes) -> TierTimes:
        """The means of two times of everything."""
        rates = ("sequential_read_bytes_per_s", "sequential_write_bytes_per_s")
        means = {name: (getattr(self, name) + getattr(other, name)) / 2 for name in rates}
        for name in ("read_s", "write_s"):
            pairs = zip(getattr(self, name), getattr(other, name), strict=True)
            means[name] = tuple((one + two) / 2 for one, two in pairs)
        return replace(self, **means)

    def tier(self, typical_row_bytes: int) -> Tier:
        """The tier as a cluster file has it."""
        grain = self.fit(typical_row_bytes)
        return Tier(
            name=self.name,
            capacity_bytes=self.capacity_bytes,
            bandwidth_bytes_per_s=rounded(grain.bandwidth_bytes_per_s),
            granularity_bytes=grain.granularity_bytes,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "row_bytes": list(ROW_BYTES),
            "read_s": list(self.read_s),
            "write_s": list(self.write_s),
            "sequential_read_bytes_per_s": self.sequential_read_bytes_per_s,
            "sequential_write_bytes_per_s": self.sequential_write_bytes_per_s,
            "cached": self.cached,
        }


def slowest(times: Sequence[TierTimes]) -> TierTimes:
    """One tier for all ranks: the longest times, the least capacity."""
    return TierTimes(
        times[0].name,
        min(t.capacity_bytes for t in times),
        tuple(map(max, zip(*(t.read_s for t in times), strict=True))),
        tuple(map(max, zip(*(t.write_s for t in times), strict=True))),
        min(t.sequential_read_bytes_per_s for t in times),
        min(t.sequential_write_bytes_per_s for t in times),
        times[0].granularities,
        any(t.cached for t in times),
    )


def rounded(value: float) -> float:
    """Three digits: more would be noise."""
    return float(f"{value:.3g}")
