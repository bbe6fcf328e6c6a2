"""Write docs/results.md, its charts and the results in README.md, or check that they are current.

Everything comes from benchmarks/results/*.json; nothing is measured here. `--check` compares the
text and looks whether the charts are there; it draws none.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from _claims_charts import draw, names  # noqa: E402
from _claims_page import BEGIN, END, readme_section, results_page  # noqa: E402
from _claims_run import load_results  # noqa: E402

HEAD = "<!-- Written by `make results`. Do not edit. -->\n\n"


def pages(root: Path = ROOT) -> dict[Path, str]:
    """What the results give: the page, and README.md with its part replaced."""
    results = load_results(root / "benchmarks" / "results")
    readme = root / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        sys.exit(f"README.md has no part between {BEGIN.strip()} and {END.strip()}")
    return {
        root / "docs" / "results.md": HEAD + results_page(results),
        readme: before + readme_section(results) + after,
    }


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
