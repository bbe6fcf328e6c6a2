"""What a claim comes to in every setting that was measured, from the rows of a result.

A setting is what a benchmark varies; in each one ours is compared with the best of its baselines.
Rows that lack a field, or settings without both sides, are left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from _claims_run import Data

Settings = dict[str, float]
GREEDY = ("size", "lookup", "size-lookup")
NAMED = {"zipf": "Zipf {}", "seed": "seed {}", "batch": "batch {}", "ranks": "{} ranks",
         "mbit_per_s": "{} Mbit/s", "workers": "{} workers", "lookups": "{} lookups",
         "cache": "cache {}"}  # fmt: skip


def paired(
    data: Data,
    by: Sequence[str],
    field: str,
    ours: Sequence[str],
    baselines: Sequence[str],
    *,
    more_is_better: bool = False,
    least: float = 0.0,
) -> dict[str, tuple[float, float]]:
    """By setting: our best figure and the best of the baselines."""
    best: Callable[[list[float]], float] = max if more_is_better else min
    sides: dict[str, tuple[list[float], list[float]]] = {}
    for row in data["rows"]:
        value, contender = row.get(field), row.get("contender")
        if not isinstance(value, (int, float)) or contender not in (*ours, *baselines):
            continue
        side = sides.setdefault(setting_name(row, by), ([], []))
        side[contender not in ours].append(max(float(value), least))
    return {name: (best(a), best(b)) for name, (a, b) in sides.items() if a and b}


def setting_name(row: Mapping[str, Any], by: Sequence[str]) -> str:
    """What people call a setting: "Zipf 1.05, seed 0"."""
    given = [key for key in by if row.get(key) is not None]
    return ", ".join(NAMED.get(key, "{}").format(_plain(row[key])) for key in given)


def median(settings: Settings) -> float | None:
    """The median over settings; None without any."""
    return statistics.median(settings.values()) if settings else None


def models(data: Data, field: str, names: Sequence[str]) -> Settings:
    """A field of benchmarks/recshard.py per model and seed."""
    rows = [row for row in data["rows"] if row.get("model") in names and field in row]
    return {f"{row['model']}, seed {row['seed']}": float(row[field]) for row in rows}


def traffic_memory(data: Data) -> Settings:
    """Peak bytes over row-wise's, minus 1, at a budget of +0 %, the most of all seeds."""
    found: Settings = {}
    for row in data["rows"]:
        if row.get("budget") == 0.0 and row["method"] in ("flexshard", "joint"):
            name = f"{row['method']}, {row['kind']}, {row['cluster']}, Zipf {row['zipf']}"
            found[name] = max(found.get(name, -1.0), float(row["memory_ratio"]) - 1)
    return found


_TRAINED = ("zipf", "seed")
_PLACED = ("joint", "recshard")


def trained_throughput(data: Data) -> Settings:
    """Samples per second over the best greedy placement's."""
    pairs = paired(data, _TRAINED, "samples_per_s", _PLACED, GREEDY, more_is_better=True)
    return {name: a / b for name, (a, b) in pairs.items() if b}


def trained_slow(data: Data) -> Settings:
    """Slow accesses of the best greedy placement over ours; ours count as one at least."""
    pairs = paired(data, _TRAINED, "slow_reads", _PLACED, GREEDY, least=1.0)
    return {name: b / a for name, (a, b) in pairs.items()}


def trained_balance(data: Data) -> Settings:
    """How much less uneven the devices are than under the most even greedy placement."""
    pairs = paired(data, _TRAINED, "imbalance", _PLACED, GREEDY, least=1e-9)
    return {name: b / a for name, (a, b) in pairs.items()}


def trained_balance_median(data: Data) -> float | None:
    """The median of that over settings."""
    return median(trained_balance(data))


_SHAPED = ("cluster", "mbit_per_s", "data")
_TORCHREC = ("torchrec row_wise",)


def flexshard_bytes(data: Data) -> Settings:
    """Share of the bytes between nodes of TorchRec's row-wise that joint saves."""
    pairs = paired(data, _SHAPED, "measured_bytes", ("joint",), _TORCHREC)
    return {name: 1 - a / b for name, (a, b) in pairs.items() if b}


def flexshard_time(data: Data) -> Settings:
    """Communication time of TorchRec's row-wise over joint's."""
    pairs = paired(data, _SHAPED, "comm_ms", ("joint",), _TORCHREC)
    return {name: b / a for name, (a, b) in pairs.items() if a}


def flexshard_memory(data: Data) -> Settings:
    """Peak bytes of the plans that were trained over plain row-wise's, minus 1."""
    return {
        setting_name(row, (*_SHAPED, "contender")): float(row["memory_ratio"]) - 1
        for row in data["rows"]
        if row.get("contender") in ("flexshard", "joint") and row.get("memory_ratio")
    }


def sca_throughput(data: Data) -> Settings:
    """Samples per second over those without coalescing and caching."""
    return _figures(data, "sca_throughput_ratio")


def sca_distinct(data: Data) -> Settings:
    """Error of the expected distinct rows."""
    return _figures(data, "distinct_error_max")


def _figures(data: Data, name: str) -> Settings:
    """Figures of parts, which are named after the whole: x_zipf_1.0 is x at "zipf 1.0"."""
    return {
        key.removeprefix(name).strip("_").replace("_", " "): float(value)
        for key, value in data["figures"].items()
        if key.startswith(f"{name}_") and isinstance(value, (int, float))
    }


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
