"""Write docs/results.md and its charts, the results in README.md and docs/statistics.md, or check.

Everything comes from benchmarks/results/*.json; nothing is measured here. `--check` compares the
text and looks whether the charts are there; it draws none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from harness.claims.charts import draw, names  # noqa: E402
from harness.claims.page import BEGIN, END, readme_section, results_page  # noqa: E402
from harness.claims.results import load_results  # noqa: E402

REAL, REAL_END = "<!-- real data -->\n", "<!-- end of real data -->\n"
HEAD = "<!-- Written by `make results`. Do not edit. -->\n\n"


def pages(root: Path = ROOT) -> dict[Path, str]:
    """What the results give: the page, and README.md with its part replaced."""
    results = load_results(root / "benchmarks" / "results")
    readme, statistics = root / "README.md", root / "docs" / "statistics.md"
    real = json.loads((root / "benchmarks" / "results" / "real_data.json").read_text())
    return {
        root / "docs" / "results.md": HEAD + results_page(results),
        readme: _replaced(readme, BEGIN, readme_section(results), END),
        statistics: _replaced(statistics, REAL, real_section(real["figures"]), REAL_END),
    }


def _replaced(path: Path, begin: str, section: str, end: str) -> str:
    """A page with what lies between two marks, marks included, written anew."""
    before, _, rest = path.read_text().partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        sys.exit(f"{path.name} has no part between {begin.strip()} and {end.strip()}")
    return before + section + after


def real_section(figures: dict[str, float]) -> str:
    """How well forecasts hold on real data."""
    said = {name: f"{value:.1%}" for name, value in figures.items()}
    ratio, caution = figures["interval_score_ratio"], figures["caution_mean"]
    rows = [
        f"| 90 % intervals that held, of {figures['figures']:.0f} (coverage of .1, 1, 5, 10 % of "
        "rows, unseen share, distinct rows) "
        f"| {said['interval_hit_rate']} | {said['hit_rate_before']} |",
        f"| width + 20 × miss, mean over that of before | {ratio:.2f} | 1 |",
        f"| the same, shares only | {figures['interval_score_ratio_shares']:.2f} | 1 |",
        "| distinct rows of the shuffled second half, error in the median "
        f"| {said['distinct_error_median']} | {said['distinct_error_median_before']} |",
        "| the same, nine in ten are below "
        f"| {said['distinct_error_p90']} | {said['distinct_error_p90_before']} |",
        "| step predicted over replayed (joint and row-wise), error in the median "
        f"| {said['step_error_median']} | |",
        f"| the same, worst | {said['step_error_max']} | |",
        f"| step under plans with `--confidence 90%` over plans without, mean | {caution:.3f} | |",
    ]
    lines = ["| figure | now | before |", "|---|---|---|", *rows]
    return REAL + "\n".join(lines) + "\n" + REAL_END


def stale(root: Path = ROOT) -> list[str]:
    """The pages that are not what the results give, and the charts that are not there."""
    found = [
        str(path.relative_to(root))
        for path, text in pages(root).items()
        if not path.exists() or path.read_text() != text
    ]
    charts = root / "docs" / "img" / "results"
    drawn = names(load_results(root / "benchmarks" / "results"))
    missing = [charts / f"{name}.svg" for name in drawn]
    return found + [str(path.relative_to(root)) for path in missing if not path.exists()]


def main(root: Path = ROOT) -> None:
    """Write the pages and draw the charts; with --check only compare."""
    if "--check" in sys.argv:
        found = stale(root)
        if found:
            written = "run `python docs/make_results.py`, which measures nothing"
            sys.exit(f"{', '.join(found)}: not what benchmarks/results/ gives: {written}")
        return
    draw(load_results(root / "benchmarks" / "results"), root / "docs" / "img" / "results")
    for path, text in pages(root).items():
        path.write_text(text)


if __name__ == "__main__":
    main()
