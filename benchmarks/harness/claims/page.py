"""docs/results.md and the results in README.md, from the results that are kept and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.claims.charts import caption, names
from harness.claims.judge import Judged
from harness.claims.markdown import (
    amount,
    expected_table,
    folded,
    goal_text,
    model_table,
    rows_table,
    table,
    traffic_table,
    verdict,
)
from harness.claims.own import OWN, reached
from harness.claims.papers import judge_all
from harness.claims.results import Data

Results = Mapping[str, Data]
BEGIN, END = "<!-- results: written by `make results` -->\n", "<!-- /results -->\n"
PAPERS = {
    "RecShard": "arXiv 2201.10095: which rows of which tables live in fast memory.",
    "FlexShard": "arXiv 2301.02959: which rows have copies, for sequence tables.",
    "SCA": "arXiv 2411.01611: what coalescing and caching save, in expectation.",
}
ROWS = {  # the results that belong to a paper, with the title of their rows
    "RecShard": {"recshard_trained": "Trained on this machine"},
    "FlexShard": {"flexshard": "Trained between network namespaces"},
    "SCA": {"sca": "Trained behind a link, and phones"},
}
DRAWN = ("rows", "split", "bytes")  # parts of SCA with a cell for every combination
CHARTS_OF = {
    "RecShard": ("recshard", "recshard_trained"),
    "FlexShard": ("flexshard", "flexshard_time", "traffic"),
    "SCA": ("sca",),
}
OWN_CHARTS = ("plans", "step", "disk")


def results_page(results: Results) -> str:
    """The whole page."""
    judged = judge_all(results)
    lines = [
        "# Results",
        "",
        "What the papers claim and what rowtier reaches, measured by `make results` and written",
        "from `benchmarks/results/*.json`; no figure on this page is typed. Every ratio names its",
        "baseline. A bar is the paper's own figure, and one percent short of it is missed.",
        "",
        *summary(judged, results),
        *machine(results),
        "",
        "## The papers' claims",
        "",
        *claims_table(judged),
        "",
        *_charts(results, ("claims",)),
        *missed(judged, results),
        "",
        "## Where claims do not hold",
        "",
        "Settings of the rows below whose own figure is short of the paper's.",
        "",
        *(f"- {_name(found)}: {found.where_not}." for found in judged),
    ]
    for paper in PAPERS:
        lines += ["", *paper_section(paper, results)]
    lines += ["", *own_section(results), "", *versions(results)]
    return "\n".join(lines) + "\n"


def readme_section(results: Results) -> str:
    """The claims in short, between two marks."""
    measured = [found for found in judge_all(results) if found.ours is not None]
    body = [
        [_name(found), found.claim.said, amount(found.ours, found.claim.form), found.claim.baseline]
        for found in measured
    ]
    count = sum(bool(found.reached) for found in measured)
    lines = [
        f"Of {len(judge_all(results))} claims of the three papers {len(measured)} are measured and "
        f"{count} reached.",
        "[docs/results.md](docs/results.md) has all, with the settings in which they do not hold.",
        "",
        *table(["", "the paper", "here", "baseline"], body),
    ]
    return BEGIN + "\n".join(lines) + "\n" + END


def summary(judged: list[Judged], results: Results) -> list[str]:
    """How many bars are reached, missed and not measured."""
    verdicts = [found.reached for found in judged]
    goals = [reached(own, results) for own in OWN]
    return [
        f"Of {len(verdicts)} claims of the papers {verdicts.count(True)} are reached, "
        f"{verdicts.count(False)} missed, {verdicts.count(None)} not measured; of our own goals "
        f"{goals.count(True)} are reached, {goals.count(False)} missed.",
        "",
    ]


def machine(results: Results) -> list[str]:
    """What the claims were measured on."""
    found = results.get("claims", {}).get("versions", {})
    if not found:
        return ["Machine of the claims: not recorded; versions are at the end of the page."]
    return [
        f"Machine of the claims: {found['cpus']} CPUs, {found['memory_gib']} GiB of memory, "
        f"{found['kernel']}."
    ]


def claims_table(judged: list[Judged]) -> list[str]:
    """One line per claim."""
    head = ["paper", "claim", "the paper", "ours", "", "baseline", "how"]
    return table(
        head,
        [
            [
                found.claim.paper,
                found.claim.claim,
                found.claim.said,
                amount(found.ours, found.claim.form),
                verdict(found.reached),
                found.claim.baseline,
                found.claim.how,
            ]
            for found in judged
        ],
    )


def missed(judged: list[Judged], results: Results) -> list[str]:
    """Which bars are missed, and which were not measured, in plain words."""
    lines = ["## Bars that are missed", ""]
    for found in judged:
        if found.reached is False:
            ours = amount(found.ours, found.claim.form)
            lines.append(f"- {_name(found)}: {ours} where the paper says {found.claim.said}.")
    for own in OWN:
        if reached(own, results) is False:
            ours, goal = amount(own.value(results), own.form), goal_text(own.goal(), own.form)
            against = f", against {own.against}" if own.against else ""
            lines.append(f"- {own.topic}, {own.what}{against}: {ours}, our own goal {goal}.")
    absent = [_name(found) for found in judged if found.ours is None]
    if absent:
        lines.append(f"- Not measured: {'; '.join(absent)}.")
    return lines if len(lines) > 2 else [*lines, "None."]


def paper_section(paper: str, results: Results) -> list[str]:
    """Charts and rows of one paper."""
    lines = [f"## {paper}", "", PAPERS[paper], "", *_charts(results, CHARTS_OF[paper])]
    if paper == "RecShard":
        lines += ["Speed-up over the best greedy placement by the cost model, median of seeds", ""]
        lines[-2] += " and range:"
        lines += model_table(results["recshard"]) if "recshard" in results else ["Not measured."]
        lines += [""]
    if paper == "FlexShard":
        lines += ["Bytes between nodes saved of plain row-wise, by the cost model, 2 nodes of 8"]
        lines += ["devices, no extra memory, median of seeds:", ""]
        lines += traffic_table(results["traffic"]) if "traffic" in results else ["Not measured."]
        lines += [""]
    if paper == "SCA" and "sca" in results:
        drawn = [row for row in results["sca"]["rows"] if row["part"] in DRAWN]
        lines += ["What is expected against what was drawn:", "", *expected_table(drawn), ""]
    for benchmark, title in ROWS[paper].items():
        rows = results[benchmark]["rows"] if benchmark in results else []
        rows = [row for row in rows if row.get("part") not in DRAWN]
        shown = folded(title, rows_table(rows), len(rows)) if rows else [f"{title}: not measured."]
        lines += [*shown, ""]
        lines += _figures(benchmark, results)
    return lines[:-1]


def own_section(results: Results) -> list[str]:
    """What rowtier claims of itself."""
    lines = ["## Our own claims", "", "Goals are those that the benchmarks state."]
    for topic in dict.fromkeys(own.topic for own in OWN):
        body = [
            [
                own.what,
                own.against or "–",
                amount(own.value(results), own.form),
                goal_text(own.goal(), own.form),
                verdict(reached(own, results)),
                f"`{own.benchmark}.py`",
            ]
            for own in OWN
            if own.topic == topic
        ]
        head = ["what", "against", "ours", "goal", "", "measured by"]
        lines += ["", f"### {topic}", "", *table(head, body)]
    lines += ["", *_charts(results, OWN_CHARTS)]
    return lines[:-1]


def versions(results: Results) -> list[str]:
    """What every result was measured with; those that agree share a line."""
    groups: dict[str, list[str]] = {}
    for name, data in results.items():
        text = ", ".join(f"{key} {value}" for key, value in data["versions"].items())
        groups.setdefault(text, []).append(name)
    lines = ["## Measured with", ""]
    return lines + [f"- {', '.join(used)}: {text}." for text, used in groups.items()]


def _figures(benchmark: str, results: Results) -> list[str]:
    """All figures of a result, parts included."""
    figures: Mapping[str, Any] = results[benchmark]["figures"] if benchmark in results else {}
    body = [[f"`{name}`", _plain(value)] for name, value in figures.items()]
    return [*folded("Figures", table(["figure", "value"], body), len(body)), ""] if body else []


def _charts(results: Results, wanted: tuple[str, ...]) -> list[str]:
    lines: list[str] = []
    for name in names(results):
        if name in wanted:
            lines += [f"![{caption(name)}](img/results/{name}.svg)", "", f"*{caption(name)}.*", ""]
    return lines


def _name(found: Judged) -> str:
    way = " (by the model)" if found.claim.how.startswith("by the cost model") else ""
    return f"{found.claim.paper}, {found.claim.claim}{way}"


def _plain(value: Any) -> str:
    return "not measured" if value is None else f"{value:.4g}"
