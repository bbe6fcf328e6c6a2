"""What a claim comes to in every setting that was measured, from the rows of a result.

A setting is what a benchmark varies; in each one ours is compared with the best of its baselines.
Rows that lack a field, or settings without both sides, are left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from harness.claims.results import Data

Settings = dict[str, float]
GREEDY = ("size", "lookup", "size-lookup")
LEAST_IMBALANCE = 0.01
COUNTED = 1e5
NAMED = {"zipf": "Zipf {}", "seed": "seed {}", "batch": "batch {}", "ranks": "{} ranks",
         "mbit_per_s": "{} Mbit/s", "workers": "{} workers", "lookups": "{} lookups",
         "cache": "cache {}"}  # fmt: skip


def paired(
    data: Data,
    by: Sequence[str],
    field: str,
    ours: str,
    baselines: Sequence[str],
    part: str = "trained",
) -> dict[str, tuple[float, list[float]]]:
    """By setting: our figure and those of the baselines."""
    mine: dict[str, float] = {}
    theirs: dict[str, list[float]] = {}
    for row in data["rows"]:
        value, name = row.get(field), setting_name(row, by)
        if not isinstance(value, (int, float)) or row.get("part", "trained") != part:
            continue
        if row.get("contender") == ours:
            mine[name] = float(value)
        elif row.get("contender") in baselines:
            theirs.setdefault(name, []).append(float(value))
    return {name: (value, theirs[name]) for name, value in mine.items() if name in theirs}


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


def trained_throughput(data: Data) -> Settings:
    """Samples per second over the fastest greedy placement's, on one rank and on two."""
    found: Settings = {}
    for part, end in (("trained", ""), ("two ranks", ", two ranks")):
        pairs = paired(data, _TRAINED, "samples_per_s", "joint", GREEDY, part)
        found |= {f"{name}{end}": ours / max(others) for name, (ours, others) in pairs.items()}
    return found


def trained_slow(data: Data) -> Settings:
    """Slow accesses of the best greedy placement over ours; ours count as one at least."""
    pairs = paired(data, _TRAINED, "slow_reads", "joint", GREEDY)
    return {name: min(others) / max(ours, 1.0) for name, (ours, others) in pairs.items()}


def trained_balance(data: Data) -> Settings:
    """How uneven ranks are under the fastest greedy placement, over ours; 1 % is even."""
    uneven, speed = (
        paired(data, _TRAINED, what, "joint", GREEDY, part="two ranks")
        for what in ("imbalance", "samples_per_s")
    )
    found = {}
    for name, (ours, others) in uneven.items():
        speeds = speed[name][1] if name in speed else []
        if len(speeds) == len(others):
            fastest = others[speeds.index(max(speeds))]
            found[name] = max(fastest, LEAST_IMBALANCE) / max(ours, LEAST_IMBALANCE)
    return found


_SHAPED = ("cluster", "mbit_per_s", "data")
_TORCHREC = ("torchrec row_wise",)


def flexshard_bytes(data: Data) -> Settings:
    """Share of the bytes between nodes of TorchRec's row-wise that joint saves."""
    pairs = paired(data, _SHAPED, "measured_bytes", "joint", _TORCHREC)
    return {name: 1 - ours / min(others) for name, (ours, others) in pairs.items()}


def flexshard_time(data: Data) -> Settings:
    """Communication time of TorchRec's row-wise over joint's."""
    pairs = paired(data, _SHAPED, "comm_ms", "joint", _TORCHREC)
    return {name: min(others) / ours for name, (ours, others) in pairs.items() if ours}


def flexshard_memory(data: Data) -> Settings:
    """Peak bytes of the plans that were trained over plain row-wise's, minus 1."""
    return {
        setting_name(row, (*_SHAPED, "contender")): float(row["memory_ratio"]) - 1
        for row in data["rows"]
        if row.get("contender") in ("flexshard", "joint") and row.get("memory_ratio")
    }


def sca_throughput(data: Data) -> Settings:
    """Samples per second over those without coalescing and caching."""
    return {
        setting_name(row, ("data", "workers")): float(row["ratio"])
        for row in data["rows"]
        if (row.get("part"), row.get("method")) == ("trained", "sca") and row.get("ratio")
    }


def sca_distinct(data: Data) -> Settings:
    """Error of the expected distinct rows, where enough were counted for chance to be small."""
    return {
        setting_name(row, ("data", "lookups", "workers", "cache")): abs(row["error"])
        for row in data["rows"]
        if row.get("part") == "rows"
        and row.get("error") is not None
        and (row.get("counted") or 0) >= COUNTED
    }


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
