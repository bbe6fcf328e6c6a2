"""The page in a real browser: drawn, sorted, searched, downloaded, and silent on the network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report.browser import Page, open_browser
from report.report_cases import EVIL, cluster, plan, profile

import rowtier
from rowtier.plan.make import make_plan
from rowtier.profile.curve import Curve
from rowtier.profile.profile import FeatureStats, Profile, TableStats
from rowtier.tables import Table

pytest.importorskip("vl_convert", reason="charts need rowtier[report]")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"
)

NAMES = ("user", "item", EVIL, *(f"feature_{i:02}" for i in range(40)))
FIRST = "document.querySelector('#grid tbody td').textContent"
COLUMN = "[...document.querySelectorAll('#grid tbody tr')].map(r => r.cells[{}].textContent)"
DRAWN = """[...document.querySelectorAll('.chart')].map(c => [
  c.querySelectorAll('svg .mark-rect path, svg .mark-rule line').length,
  c.querySelector('svg').getBoundingClientRect().width])"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("browser")
    rowtier.make_report(plan("joint", NAMES)).save(folder / "report.html")
    assert CHROMIUM is not None
    with open_browser(CHROMIUM, folder) as tab:
        tab.open(folder / "report.html")
        yield tab


@pytest.fixture(autouse=True)
def _all_is_quiet(page: Page) -> Iterator[None]:
    yield
    assert page.said == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def sort_by(page: Page, column: int) -> None:
    page.run(f"document.querySelectorAll('#grid th button')[{column}].click()")


def search(page: Page, words: str) -> None:
    typed = json.dumps(words)
    page.run(f"search.value = {typed}; search.dispatchEvent(new Event('input'))")


def test_every_chart_is_drawn(page: Page) -> None:
    drawn = page.run(DRAWN)
    assert len(drawn) == 7  # two tiers, two kinds of load, a curve, links, the comparison
    for marks, width in drawn:
        assert marks > 0
        assert width > 300


def test_names_stay_text(page: Page) -> None:
    assert page.run("document.title") == "joint on small – rowtier"
    assert page.run("document.querySelectorAll('img').length") == 0
    search(page, "onerror")
    assert page.run(FIRST) == EVIL
    page.run("document.querySelector('#grid tbody tr').click()")
    page.wait(f"document.getElementById('curve-name').textContent === {json.dumps(EVIL)}")
    search(page, "")
    assert page.run("document.querySelectorAll('img').length") == 0


def test_the_table_sorts_both_ways(page: Page) -> None:
    sort_by(page, 0)
    names = page.run(COLUMN.format(0))
    assert names[1:] == sorted(names[1:])
    assert page.run("document.querySelector('#grid th').getAttribute('aria-sort')") == "ascending"
    sort_by(page, 0)
    assert page.run(FIRST) == "user"
    sort_by(page, 1)
    assert page.run(FIRST) == NAMES[42]  # the most rows
    sort_by(page, 1)
    assert page.run(FIRST) == NAMES[6]  # the fewest


def test_the_table_is_searched_by_name_and_by_place(page: Page) -> None:
    search(page, "FEATURE_3")
    assert page.run("count.textContent") == "10 of 43 tables"
    search(page, "feature_3 hbm")
    assert set(page.run(COLUMN.format(0))) <= {f"feature_3{i}" for i in range(10)}
    search(page, "nothing like it")
    assert page.run("document.getElementById('page').textContent") == "no table matches"
    search(page, "")
    assert page.run("count.textContent") == "43 tables"


def test_the_table_is_shown_page_by_page(page: Page) -> None:
    assert len(page.run(COLUMN.format(0))) == 25
    page.run("document.getElementById('page-on').click()")
    assert page.run("document.getElementById('page').textContent") == "26–43 of 43"
    page.run("document.getElementById('page-back').click()")


def test_the_curve_follows_the_choice(page: Page) -> None:
    path = "document.querySelector('[data-chart=curve] .mark-line path').getAttribute('d')"
    page.run("pick.value = 'user'; pick.dispatchEvent(new Event('change'))")
    page.wait("document.getElementById('curve-name').textContent === 'user'")
    before = page.run(path)
    page.run("pick.value = 'ture_11'; pick.dispatchEvent(new Event('change'))")
    page.wait("document.getElementById('curve-name').textContent === 'feature_11'")
    page.wait(f"{path} !== {json.dumps(before)}")


def test_data_can_be_downloaded(page: Page) -> None:
    keep = """window.kept = []; const make = URL.createObjectURL;
      URL.createObjectURL = (blob) => { window.kept.push(blob); return make(blob); };
      HTMLAnchorElement.prototype.click = function () { window.kept.push(this.download); };"""
    page.run(f"{{ {keep} }}")
    page.run("document.querySelectorAll('[data-sheet]').forEach(button => button.click())")
    kept: list[Any] = page.run("Promise.all(kept.map(k => typeof k === 'string' ? k : k.text()))")
    files = dict(zip(kept[1::2], kept[::2], strict=True))
    assert set(files) == {
        f"{name}.{kind}"
        for name in ("memory", "load", "curves", "links", "comparison", "tables")
        for kind in ("csv", "json")
    }
    tables = json.loads(files["tables.json"])
    assert [table["table"] for table in tables] == list(NAMES)
    assert len(files["tables.csv"].splitlines()) == 1 + len(NAMES)
    assert files["curves.csv"].startswith("table,rank,share\n")


def test_dark_is_followed_and_can_be_switched(page: Page) -> None:
    theme = "document.documentElement.dataset.theme"
    assert page.run(theme) == "light"
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.ask("Emulation.setEmulatedMedia", features=dark)
    page.wait(f"{theme} === 'dark'")
    page.run("document.getElementById('theme').click()")
    page.wait(f"{theme} === 'light'")
    assert page.run(DRAWN)[0][0] > 0


@pytest.mark.parametrize("width", [1280, 1920])
def test_nothing_scrolls_sideways(page: Page, width: int) -> None:
    page.size(width, 900)
    assert page.run("document.documentElement.scrollWidth") <= width


def test_one_device_and_a_table_that_nobody_reads_open(page: Page, tmp_path: Path) -> None:
    alone = cluster().model_copy(update={"levels": ()})
    unread = Table(name="unread", num_embeddings=1, embedding_dim=4, features=("unread",))
    nothing = FeatureStats(name="unread", present=0, lookups=0)
    silent = TableStats(unread, 10, (nothing,), Curve(np.empty(0, dtype=np.int64), np.empty(0)))
    made = make_plan(Profile(8, (silent,)), alone, "row-wise")
    rowtier.make_report(made).save(tmp_path / "small.html")
    page.open(tmp_path / "small.html")
    assert page.run("document.querySelector('[data-chart=links]').textContent").startswith("One")
    assert page.run("trouble.hidden")


def test_two_thousand_tables_and_a_thousand_devices_open(page: Page, tmp_path: Path) -> None:
    names = [f"model.sparse.embedding_bag_collection.table_{i:04}" for i in range(2000)]
    made = make_plan(profile(*names, rows=7000), cluster(128, 8, capacity="1GiB"), "table-wise")
    report = rowtier.make_report(made, baselines=False)
    assert len(report.html.encode()) < 2_000_000
    report.save(tmp_path / "large.html")
    page.open(tmp_path / "large.html")
    assert page.run("count.textContent") == "2000 tables"
    search(page, "table_1234")
    assert page.run(FIRST) == names[1234]
    assert page.run("document.documentElement.scrollWidth") <= 1280
    assert all(marks > 0 for marks, _ in page.run(DRAWN))
