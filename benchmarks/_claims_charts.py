"""The charts of docs/results.md, as pictures that need no script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from _claims import Judged, judge_all
from _claims_run import Data
from _claims_settings import setting_name
from _claims_tables import amount

from rowtier.report.charts import altair

WIDTH, ROW = 520, 20
REACHED, MISSED, PLAIN, PAPER, OTHER = "#2a9d6f", "#d1495b", "#3b6fb6", "#d1495b", "#b9bec6"
CUT = 8
OURS = ("joint", "flexshard", "sca", "recshard", "recshard, split")
FONT = "system-ui, 'DejaVu Sans', sans-serif"
Results = Mapping[str, Data]
Rows = list[dict[str, Any]]


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


def svg(chart: Any) -> str:
    """A chart on white, so that it can be read on a dark page too."""
    import vl_convert

    spec = chart.configure(
        background="white",
        padding=12,
        font=FONT,
        axis={"labelFontSize": 12, "titleFontSize": 12, "gridColor": "#e6e6e6", "labelLimit": 480},
        legend={"labelFontSize": 12, "title": None, "orient": "top"},
        header={"labelFontSize": 12, "title": None, "labelFontWeight": "bold"},
        view={"stroke": None},
    ).to_dict()
    return str(vl_convert.vegalite_to_svg(spec))


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


def claim_chart(rows: Rows) -> Any:
    """Bars from 1: to the right reached, to the left missed; very long ones are cut."""
    alt = altair()
    base = alt.Chart(alt.Data(values=rows), width=300, height=ROW * len(rows))
    y = alt.Y("claim:N", sort=None, title=None)
    x = alt.X(
        "share:Q",
        scale=alt.Scale(type="log", domain=[1 / CUT, CUT], clamp=True),
        axis=alt.Axis(values=[0.125, 0.25, 0.5, 1, 2, 4, 8], format="~g"),
        title=f"ours over the paper's figure, cut at {CUT} (logarithmic)",
    )
    colour = alt.Color(
        "verdict:N", scale=alt.Scale(domain=["reached", "missed"], range=[REACHED, MISSED])
    )
    drawn = base.transform_calculate(one="1").mark_bar().encode(y=y, x=x, x2="one:Q", color=colour)
    said = base.mark_text(align="left", fontSize=12).encode(y=y, x=alt.value(308), text="ours:N")
    return alt.layer(drawn, base.mark_rule(color="#444").encode(x=alt.datum(1)), said)


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


def model_chart(rows: Rows) -> Any:
    """Points for ours, ticks for the paper."""
    alt = altair()
    base = alt.Chart(alt.Data(values=rows), width=WIDTH, height=150)
    y = alt.Y("model:N", title=None)
    title = "speed-up over the best greedy placement (logarithmic)"
    scale = alt.Scale(type="log", domain=[1, 2 * max(row["speed-up"] for row in rows)])
    points = base.transform_calculate(series="'rowtier, one seed'").mark_point(size=60, filled=True)
    ticks = base.transform_calculate(series="'RecShard, the paper'").mark_tick(thickness=3, size=30)
    colour = alt.Color(
        "series:N",
        scale=alt.Scale(domain=["rowtier, one seed", "RecShard, the paper"], range=[PLAIN, PAPER]),
    )
    x = alt.X("speed-up:Q", scale=scale, title=title)
    return alt.layer(
        points.encode(x=x, y=y, color=colour, opacity=alt.value(0.6)),
        ticks.encode(x=alt.X("paper:Q", scale=scale, title=title), y=y, color=colour),
    )


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


def bars(title: str, divide: float = 1.0) -> Callable[[Rows], Any]:
    """Bars of contenders, a panel per setting; several rows of one bar are averaged."""

    def chart(rows: Rows) -> Any:
        alt = altair()
        settings = list(dict.fromkeys(row["setting"] for row in rows))
        contenders = list(dict.fromkeys(row["contender"] for row in rows))
        colour = alt.condition(
            alt.FieldOneOfPredicate("contender", list(OURS)), alt.value(PLAIN), alt.value(OTHER)
        )
        return (
            alt.Chart(alt.Data(values=rows), width=230, height=ROW * len(contenders))
            .transform_calculate(shown=f"datum.value / {divide}")
            .mark_bar()
            .encode(
                y=alt.Y("contender:N", sort=contenders, title=None),
                x=alt.X("mean(shown):Q", title=title),
                color=colour,
                facet=alt.Facet("setting:N", columns=2, sort=settings),
            )
            .resolve_scale(x="independent")  # settings differ in size; contenders are compared
        )

    return chart


def _plan_rows(results: Results) -> Rows:
    found: dict[str, dict[str, Any]] = {}
    for row in _rows(results, "plan_scale"):
        if "gap" in row and "kind" in row:
            name = f"{row['run']}, {row['kind']}, {row['seed']}"
            found[name] = {"run": row["run"], "gap": row["gap"], "seconds": row["seconds"]}
    return list(found.values())


def _plan_chart(rows: Rows) -> Any:
    alt = altair()
    log = alt.Scale(type="log")
    return (
        alt.Chart(alt.Data(values=rows), width=WIDTH, height=260)
        .mark_point(filled=True, size=50, opacity=0.7)
        .encode(
            x=alt.X("seconds:Q", scale=log, title="CPU seconds (logarithmic)"),
            y=alt.Y(
                "gap:Q",
                scale=alt.Scale(type="log", domain=[1e-5, 1], clamp=True),
                title="gap to the bound (0.001 % and less as one)",
                axis=alt.Axis(format=".3~%", values=[1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1]),
            ),
            color=alt.Color("run:N", sort=None, legend=alt.Legend(columns=4)),
        )
    )


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
        contender_rows("recshard_trained", "samples_per_s", ("zipf",), _every),
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
        "Samples per second of SCA's training",
        contender_rows("sca", "samples_per_s", ("part", "data", "zipf"), _every),
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
        "A model of four times the memory, trained from a disk, by batch size",
        contender_rows("disk_tier", "samples_per_s", ("batch",), _every),
        bars("samples per second"),
    ),
    "plans": ("Planning: time and gap of every instance", _plan_rows, _plan_chart),
}
