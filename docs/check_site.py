"""Check that every link of a built site leads to a page and an anchor that are there.

    python docs/check_site.py site/

mkdocs checks links between pages; this reads what it made, menus, pictures and styles included,
and refuses what a reader without network would miss.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script", "link", "img", "source", "iframe"}  # fetched by the browser by itself


class Links(HTMLParser):
    """What a page links to and loads, and its anchors."""

    def __init__(self, text: str):
        super().__init__()
        self.targets: list[tuple[str, str]] = []  # tag, target
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take down the links and anchors of a tag."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append((tag, value))
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken_links(site: Path) -> list[str]:
    """Page and target of every link that leads nowhere."""
    pages = {path.resolve(): Links(path.read_text()) for path in sorted(site.rglob("*.html"))}
    broken = []
    for page, links in pages.items():
        # The page for addresses that are not there is shown at any depth: its links are absolute.
        if page.name == "404.html":
            continue
        for tag, target in links.targets:
            if not _leads_somewhere(page, tag, target, pages):
                broken.append(f"{page.relative_to(site.resolve())}: {target}")
    return broken


def _leads_somewhere(page: Path, tag: str, target: str, pages: dict[Path, Links]) -> bool:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return tag not in LOADED or parts.scheme == "data"
    path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    path = path / "index.html" if path.is_dir() else path
    if not path.is_file():
        return False
    anchor = unquote(parts.fragment)
    return not anchor or path not in pages or anchor in pages[path].anchors


def main() -> None:
    """Name what is broken; the exit code says whether anything is."""
    site = Path(sys.argv[1])
    broken = broken_links(site)
    print("\n".join([*broken, f"{len(broken)} links of {site} lead nowhere"]))
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
