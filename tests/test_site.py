"""The documentation site is built as `make site` builds it, and its links are followed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from check_site import broken_links  # noqa: E402


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: make install")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    assert broken_links(site) == []


def test_the_site_has_every_page_and_what_pages_link_to(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / page.stem / "index.html").is_file(), page.name
    assert "where every row of a recommendation model" in (site / "index.html").read_text()
    for linked in (
        "CHANGELOG",
        "src/rowtier/plan",
        "src/rowtier/plan/make.py",
        "src/rowtier/report",
    ):
        assert (site / linked / "index.html").is_file(), linked


def test_the_site_can_be_searched(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    assert '"location":"planning/"' in index


@pytest.mark.parametrize(
    ("link", "broken"),
    [
        ('<a href="other/">', False),
        ('<a href="other/#part">', False),
        ('<a href="#here">', False),
        ('<a href="https://example.org/x">', False),
        ('<img src="picture.svg">', False),
        ('<a href="nowhere/">', True),
        ('<a href="other/#nowhere">', True),
        ('<a href="#nowhere">', True),
        ('<img src="nowhere.svg">', True),
        ('<script src="https://example.org/x.js">', True),
    ],
)
def test_links_that_lead_nowhere_are_found(tmp_path: Path, link: str, broken: bool) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text('<h2 id="part">')
    (tmp_path / "picture.svg").write_text("")
    (tmp_path / "index.html").write_text(f'<h1 id="here">{link}')
    assert bool(broken_links(tmp_path)) == broken
