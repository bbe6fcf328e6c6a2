"""The report: one page that needs nothing but a browser.

Text and small tables are HTML from the start; what charts and the table of tables show is
packed into the page, together with the chart library, and unpacked when it is opened.
"""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from rowtier import __version__
from rowtier.evaluate.drift import PlanDrift
from rowtier.evaluate.phrases import prices
from rowtier.foreign import shown
from rowtier.plan.plan import Plan
from rowtier.reading import StrPath
from rowtier.report.alerts import Alert, find_alerts
from rowtier.report.charts import all_charts, altair
from rowtier.report.facts import Facts
from rowtier.report.sheets import all_sheets, curves, drift_sheet
from rowtier.report.verdict import (
    comparison_rows,
    drift_rows,
    headline,
    inputs,
    level_rows,
    step_lines,
    tiles,
)
from rowtier.writing import write_atomic

MAX_BYTES = 2_000_000


@dataclass(frozen=True, eq=False)
class Report:
    """A finished page, and in short what it says."""

    html: str
    headline: str
    alerts: tuple[Alert, ...]

    def save(self, path: StrPath) -> None:
        """Write the page, beside its place first and then renamed."""
        write_atomic(path, self.html)

    def to_dict(self) -> dict[str, Any]:
        """What it says, for machines."""
        return {
            "headline": self.headline,
            "alerts": [{"level": alert.level, "text": alert.text} for alert in self.alerts],
            "bytes": len(self.html.encode()),
        }


def make_report(
    plan: Plan | StrPath, *, baselines: bool = True, drift: PlanDrift | None = None
) -> Report:
    """Make the page of a plan; the baselines it is compared with are planned on the way.

    With `drift` the page says what newer data makes of the plan. Equal plans give equal pages.
    Needs `pip install "rowtier[report]"`.
    """
    altair()  # what is missing is said before anything is planned
    folder = "plan/" if isinstance(plan, Plan) else shown(plan)
    facts = Facts.of(plan if isinstance(plan, Plan) else Plan.load(plan), baselines)
    alerts, sheets = find_alerts(facts), all_sheets(facts)
    if drift is not None:
        sheets["drift"] = drift_sheet(drift)
    data = {
        "sheets": {name: sheet.to_dict() for name, sheet in sheets.items()},
        "charts": all_charts(facts, sheets),
        "curves": curves(facts),
        "order": facts.by_importance,
        "tiers": list(facts.plan.cluster.tier_names),
        "holders": facts.plan.cluster.num_holders,
        "devices": facts.plan.cluster.num_devices,
    }
    html = _template().render(
        plan=facts.plan,
        headline=headline(facts),
        tiles=tiles(facts),
        alerts=alerts,
        comparison=comparison_rows(sheets["comparison"]),
        levels=level_rows(facts),
        step_lines=step_lines(facts),
        prices=prices(facts.plan.certificate),
        inputs=inputs(facts, folder),
        drift=drift,
        drifted=[] if drift is None else drift_rows(sheets["drift"]),
        grouped=any(bar == "" for bar in sheets["load"].column("bar")),
        style=_page_file("page.css"),
        script=_page_file("page.js"),
        data=_packed(json.dumps(data, separators=(",", ":"), ensure_ascii=False)),
        library=_library(),
        version=__version__,
    )
    return Report(_encodable(html).decode(), headline(facts), tuple(alerts))


def _template() -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_page_file("page.html"))


def _page_file(name: str) -> str:
    return (resources.files("rowtier.report") / "page" / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _library() -> str:
    """Vega, Vega-Lite and vega-embed of the version that Altair writes for, packed."""
    import vl_convert

    version = ".".join(altair().SCHEMA_VERSION.lstrip("v").split(".")[:2])
    return _packed(vl_convert.javascript_bundle("window.vegaEmbed=vegaEmbed", vl_version=version))


def _packed(text: str) -> str:
    """Gzip and base64: a third of the size, and no byte of it can be taken for HTML."""
    return base64.b64encode(gzip.compress(_encodable(text), 9, mtime=0)).decode()


def _encodable(text: str) -> bytes:
    """UTF-8, in which half a character (of a name that is no Unicode) is spelled as JSON does."""
    return text.encode("utf-8", "backslashreplace")
