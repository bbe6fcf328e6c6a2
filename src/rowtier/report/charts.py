"""The charts, as Vega-Lite specifications made by Altair; the page brings the data.

Every chart reads the data set `sheet`, whose fields are the columns of a sheet. Colours and
fonts are not here: the page sets them, once for light and once for dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowtier.errors import UserError
from rowtier.report.facts import Facts
from rowtier.report.sheet import Sheet
from rowtier.report.sheets import FLOWS, PARTS

BAR_HEIGHT, HEIGHT = 26, 230
_BYTES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
_SECONDS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
_DATA = "sheet"


def altair() -> Any:
    """The chart library, or an error that says how to get it."""
    try:
        import altair as found
        import jinja2  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"a report needs {error.name}, which is not installed: "
            'pip install "rowtier[report]", or pip install ".[report]" in a source folder'
        ) from None
    return found


def all_charts(facts: Facts, sheets: dict[str, Sheet]) -> dict[str, dict[str, Any]]:
    """Specifications by name; every tier has its own, so that each has a unit that suits it."""
    tiers = facts.plan.cluster.tier_names
    charts = {
        **{f"memory {tier}": memory_chart(sheets["memory"].where("tier", tier)) for tier in tiers},
        "load": load_chart(sheets["load"]),
        "curve": curve_chart(tiers),
        "links": links_chart(sheets["links"]),
        "comparison": comparison_chart(sheets["comparison"], _bound_s(facts)),
    }
    return {name: chart.to_dict() for name, chart in charts.items()}


def memory_chart(sheet: Sheet) -> Any:
    """Stacked bytes of every memory of one tier, and its capacity."""
    alt, (unit, size) = altair(), _unit(sheet.column("capacity_bytes"), _BYTES)
    base = alt.Chart(alt.NamedData(_DATA), width="container", height=HEIGHT).transform_calculate(
        amount=f"datum.bytes / {size}", capacity=f"datum.capacity_bytes / {size}"
    )
    x = alt.X("bar:N", sort=None, title=None, axis=_ticks(alt))
    bars = base.mark_bar().encode(
        x=x,
        y=alt.Y("sum(amount):Q", title=unit),
        color=_colours(alt, "part", list(PARTS.values())),
        order=alt.Order("order:Q"),
        tooltip=[
            alt.Tooltip("place:N"),
            alt.Tooltip("part:N"),
            alt.Tooltip("amount:Q", title=unit, format=".4~g"),
            alt.Tooltip("capacity:Q", title=f"capacity, {unit}", format=".4~g"),
        ],
    )
    capacity = base.mark_tick(thickness=2, width={"band": 1}, style="limit").encode(
        x=x, y=alt.Y("max(capacity):Q")
    )
    return alt.layer(bars.transform_calculate(order=_position("part", PARTS.values())), capacity)


def load_chart(sheet: Sheet) -> Any:
    """Stacked busy time of every holder, of its memories, its work or its links."""
    parts = list(dict.fromkeys(sheet.column("part")))
    alt, (unit, size) = altair(), _unit(_per_bar(sheet), _SECONDS)
    base = alt.Chart(alt.NamedData(_DATA), width="container", height=HEIGHT)
    return (
        base.transform_calculate(time=f"datum.seconds / {size}", order=_position("part", parts))
        .mark_bar()
        .encode(
            x=alt.X("bar:N", sort=None, title=None, axis=_ticks(alt)),
            y=alt.Y("sum(time):Q", title=f"{unit} a step"),
            color=_colours(alt, "part"),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("holder:N"),
                alt.Tooltip("part:N"),
                alt.Tooltip("time:Q", title=unit, format=".4~g"),
            ],
        )
    )


def curve_chart(tiers: Sequence[str]) -> Any:
    """Share of lookups that the hottest rows serve, over the bands they are cut into.

    Points of the curve have `position` and `share`; bands have `start`, `stop` and `tier`.
    """
    alt = altair()
    position = {"scale": alt.Scale(type="log", nice=False), "title": "hottest rows (logarithmic)"}
    base = alt.Chart(alt.NamedData(_DATA), width="container", height=HEIGHT + 40)
    bands = (
        base.transform_filter("isValid(datum.tier)")
        .mark_rect(opacity=0.3)
        .encode(
            x=alt.X("start:Q", axis=alt.Axis(format="~s", grid=False), **position),
            x2="stop:Q",
            color=_colours(alt, "tier", tiers),
            tooltip=[alt.Tooltip("home:N"), alt.Tooltip("served:Q", format=".1%")],
        )
    )
    rules = (
        base.transform_filter("isValid(datum.tier)")
        .mark_rule(strokeDash=[5, 3], strokeWidth=1.5, style="limit")
        .encode(x=alt.X("stop:Q", **position), opacity=_only_if(alt, "datum.cut"))
    )
    line = (
        base.transform_filter("isValid(datum.position)")
        .mark_line(interpolate="monotone", strokeWidth=2.5, style="curve")
        .encode(
            x=alt.X("position:Q", **position),
            y=alt.Y(
                "share:Q",
                title="share of lookups served",
                axis=alt.Axis(format="%"),
                scale=alt.Scale(domain=[0, 1]),
            ),
        )
    )
    return alt.layer(bands, rules, line)


def links_chart(sheet: Sheet) -> Any:
    """Bytes through the links of every level, by what they carry."""
    levels = list(dict.fromkeys(sheet.column("level")))
    totals = [sum(_numbers(r[2] for r in sheet.rows if r[0] == level)) for level in levels]
    alt, (unit, size) = altair(), _unit(totals, _BYTES)
    return (
        alt.Chart(alt.NamedData(_DATA), width="container", height=2 * BAR_HEIGHT * len(levels))
        .transform_calculate(
            amount=f"datum.bytes / {size}", order=_position("flow", FLOWS.values())
        )
        .mark_bar()
        .encode(
            y=alt.Y("level:N", sort=None, title=None),
            x=alt.X(
                "sum(amount):Q",
                title=f"{unit} a step, all devices together",
                axis=alt.Axis(tickCount=8),
            ),
            color=_colours(alt, "flow", list(FLOWS.values())),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("level:N"),
                alt.Tooltip("flow:N"),
                alt.Tooltip("amount:Q", title=unit, format=".4~g"),
            ],
        )
    )


def comparison_chart(sheet: Sheet, bound_s: float | None) -> Any:
    """Step time of the plan and the baselines, and what no placement can beat."""
    alt, (unit, size) = altair(), _unit(sheet.column("step_s"), _SECONDS)
    bars_drawn = len(_numbers(sheet.column("step_s")))
    base = alt.Chart(alt.NamedData(_DATA), width="container", height=BAR_HEIGHT * bars_drawn)
    columns = {"memory time": "memory_s", "work": "work_s", "link time": "links_s"}
    time = list(columns)
    bars = (
        base.transform_filter("isValid(datum.step_s)")
        .transform_calculate(**{part: f"datum.{column}" for part, column in columns.items()})
        .transform_fold(time, ["part", "seconds"])
        .transform_calculate(time=f"datum.seconds / {size}", order=_position("part", time))
        .mark_bar()
        .encode(
            y=alt.Y("plan:N", sort=None, title=None),
            x=alt.X("sum(time):Q", title=f"{unit} a step", axis=alt.Axis(tickCount=8)),
            color=_colours(alt, "part", time),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("plan:N"),
                alt.Tooltip("part:N"),
                alt.Tooltip("time:Q", title=unit, format=".4~g"),
            ],
        )
    )
    if bound_s is None:
        return bars
    rule = alt.Chart(alt.NamedData(_DATA)).mark_rule(strokeDash=[5, 3], style="limit")
    return alt.layer(bars, rule.encode(x=alt.datum(bound_s / size)))


def _bound_s(facts: Facts) -> float | None:
    certificate = facts.plan.certificate
    return certificate.bound if certificate is not None and certificate.times_a_step else None


def _colours(alt: Any, field: str, domain: Sequence[str] | None = None) -> Any:
    """Colours by value, in the order of `domain`, else as the data brings them."""
    legend = alt.Legend(title=None, orient="top", direction="horizontal", symbolType="square")
    scale = alt.Undefined if domain is None else alt.Scale(domain=list(domain))
    return alt.Color(f"{field}:N", scale=scale, sort=None, legend=legend)


def _only_if(alt: Any, test: str) -> Any:
    return alt.condition(test, alt.value(1), alt.value(0))


def _ticks(alt: Any) -> Any:
    return alt.Axis(labelAngle=0, labelOverlap=True, labelPadding=6, ticks=False)


def _position(field: str, values: Any) -> str:
    """An expression for the place of a value in a list: the order in which parts are stacked."""
    import json

    return f"indexof({json.dumps(list(values))}, datum.{field})"


def _per_bar(sheet: Sheet) -> list[float]:
    totals: dict[Any, float] = {}
    for holder, _, kind, _, seconds in sheet.rows:
        totals[holder, kind] = totals.get((holder, kind), 0.0) + float(seconds or 0)
    return list(totals.values())


def _numbers(cells: Any) -> list[float]:
    return [float(cell) for cell in cells if cell is not None]


def _unit(cells: Any, units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """The largest unit in which the largest figure is at least one."""
    largest = max(_numbers(cells), default=0.0)
    return next((unit for unit in units if largest >= unit[1]), units[-1])
