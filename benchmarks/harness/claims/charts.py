"""The charts of docs/results.md: what each shows, from the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.claims.judge import Judged
from harness.claims.markdown import amount
from harness.claims.marks import Rows, bars, claim_chart, model_chart, plan_chart, svg
from harness.claims.papers import judge_all
from harness.claims.results import Data
from harness.claims.settings import setting_name

Results = Mapping[str, Data]


def names(results: Results) -> list[str]:
    """The charts that these results are enough for."""
    return [name for name, (_, rows, _) in CHARTS.items() if rows(results)]


def caption(name: str) -> str:
    """What a chart shows."""
    return CHARTS[name][0]


def draw(results: Results, folder: Path) -> None:
    """Write every chart that the results are enough for, and remove those of other results."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = names(results)
    for old in folder.glob("*.svg"):
        if old.stem not in drawn:
            old.unlink()
    for name in drawn:
        _, rows, chart = CHARTS[name]
        (folder / f"{name}.svg").write_text(svg(chart(rows(results))))


def claim_rows(results: Results) -> Rows:
    """Every claim that was measured: how far it is from the paper's figure, 1 is reached."""
    return [
        {
            "claim": f"{found.claim.paper}: {found.claim.claim}{_way(found)}",
            "share": _share(found),
            "ours": f"{amount(found.ours, found.claim.form)}, paper {found.claim.said}",
            "verdict": "reached" if found.reached else "missed",
        }
        for found in judge_all(results)
        if found.ours is not None and found.claim.bar[1]
    ]


def model_rows(results: Results) -> Rows:
    """Speed-ups of RM1 to RM3, a point per seed, and the paper's."""
    rows = _rows(results, "recshard")
    said = {"rm1": 2.58, "rm2": 5.26, "rm3": 7.41}
    field = "recshard, split (recshard)"
    return [
        {"model": row["model"].upper(), "speed-up": row[field], "paper": said[row["model"]]}
        for row in rows
        if row["model"] in said and field in row
    ]


def contender_rows(
    benchmark: str, field: str, by: Sequence[str], keep: Callable[[Mapping[str, Any]], bool]
) -> Callable[[Results], Rows]:
    """One bar per contender and setting."""

    def rows(results: Results) -> Rows:
        return [
            {
                "contender": row.get("contender", row.get("method")),
                "value": row[field],
                "setting": setting_name(row, by),
            }
            for row in _rows(results, benchmark)
            if row.get(field) is not None and keep(row)
        ]

    return rows


def _plan_rows(results: Results) -> Rows:
    found: dict[str, dict[str, Any]] = {}
    for row in _rows(results, "plan_scale"):
        if "gap" in row and "kind" in row:
            name = f"{row['run']}, {row['kind']}, {row['seed']}"
            found[name] = {"run": row["run"], "gap": row["gap"], "seconds": row["seconds"]}
    return list(found.values())


def _share(found: Judged) -> float:
    assert found.ours is not None
    sign, bar = found.claim.bar
    return found.ours / bar if sign == ">=" else bar / max(found.ours, 1e-9)


def _way(found: Judged) -> str:
    return ", by the model" if found.claim.how.startswith("by the cost model") else ""


def _rows(results: Results, benchmark: str) -> Iterable[Mapping[str, Any]]:
    return results[benchmark]["rows"] if benchmark in results else ()


def _every(_: Mapping[str, Any]) -> bool:
    return True


CHARTS: dict[str, tuple[str, Callable[[Results], Rows], Callable[[Rows], Any]]] = {
    "claims": ("Claims that were measured, against the paper's figure", claim_rows, claim_chart),
    "recshard": ("Speed-ups by the cost model, ten seeds", model_rows, model_chart),
    "recshard_trained": (
        "Samples per second when trained here, mean of seeds",
        contender_rows(
            "recshard_trained",
            "samples_per_s",
            ("zipf",),
            lambda row: row.get("part", "trained") == "trained",
        ),
        bars("samples per second"),
    ),
    "flexshard": (
        "Bytes between nodes in a step, measured",
        contender_rows("flexshard", "measured_bytes", ("cluster", "mbit_per_s", "data"), _every),
        bars("MB between nodes", 1e6),
    ),
    "flexshard_time": (
        "Time in collectives of a step, measured",
        contender_rows("flexshard", "comm_ms", ("cluster", "mbit_per_s", "data"), _every),
        bars("ms in collectives"),
    ),
    "traffic": (
        "Bytes between two nodes of eight devices in a step, by the cost model, no extra memory, "
        "mean of seeds",
        contender_rows(
            "traffic",
            "inter_node_bytes",
            ("kind", "zipf"),
            lambda row: row["cluster"] == "2x8" and row["budget"] in (None, 0.0),
        ),
        bars("MB a device sends between nodes", 1e6),
    ),
    "sca": (
        "Training behind a link of 1 Gbit/s",
        contender_rows(
            "sca", "measured", ("data", "workers"), lambda row: row.get("part") == "trained"
        ),
        bars("samples per second"),
    ),
    "step": (
        "A training step against TorchRec, in the same processes",
        contender_rows(
            "runtime_step", "ms", ("step", "ranks", "zipf"), lambda row: "contender" in row
        ),
        bars("ms a step"),
    ),
    "disk": (
        "A model of four times the memory, trained from a disk",
        contender_rows("disk_tier", "samples_per_s", ("workload", "batch"), _every),
        bars("samples per second"),
    ),
    "plans": ("Planning: time and gap of every instance", _plan_rows, plan_chart),
}
