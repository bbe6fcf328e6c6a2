"""What the charts of docs/results.md look like, and how they become pictures without script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rowtier.report.charts import altair

WIDTH, ROW = 520, 20
REACHED, MISSED, PLAIN, PAPER, OTHER = "#2a9d6f", "#d1495b", "#3b6fb6", "#d1495b", "#b9bec6"
CUT = 8
OURS = ("joint", "joint fp16", "flexshard", "sca", "recshard", "recshard split")
FONT = "system-ui, 'DejaVu Sans', sans-serif"
Rows = list[dict[str, Any]]


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


def plan_chart(rows: Rows) -> Any:
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
