"""What `make site` does besides mkdocs: pages of the repository that are not in docs/.

README.md is the first page. What pages link to outside docs/ becomes a page too: READMEs of
folders as they are, source files as code, folders without a README as a list of what is in them.
Links are written anew, since the site has docs/planning.md at planning/.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel
from pygments.formatters import HtmlFormatter

ROOT = Path(__file__).parents[1]
MENU = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")  # the rest is only linked to
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)[^)#\s]+")  # target of [text](target#anchor), a file
FENCE = "`" * 8  # longer than any in the files that are shown


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pages that are not in docs/."""
    docs = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    for path in reached([*MENU, *docs]):
        if not path.startswith("docs/"):
            shown = InclusionLevel.UNDEFINED if path in MENU else InclusionLevel.NOT_IN_NAV
            text = with_links_of_the_site(text_of(path), path)
            files.append(File.generated(config, place(path), content=text, inclusion=shown))
    files.append(File.generated(config, "code.css", content=code_style()))
    return files


def code_style() -> str:
    """Colours of code by day and by night."""
    day, night = (
        HtmlFormatter(style=style).get_style_defs(f'[data-bs-theme="{mode}"] .codehilite')
        for style, mode in (("friendly", "light"), ("github-dark", "dark"))
    )
    return f"{day}\n{night}\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point the links of docs/ to where the site has what they mean."""
    if page.file.generated_by:
        return markdown
    return with_links_of_the_site(markdown, f"docs/{page.file.src_uri}")


def reached(start: list[str]) -> list[str]:
    """These files, and all that they link to by way of other pages, as paths in the repository."""
    found, todo = list(start), list(start)
    while todo:
        path = todo.pop()
        new = {target_of(path, link) for link in LINK.findall(text_of(path))} - set(found)
        # A link to nowhere is left as it is, and mkdocs names it.
        existing = [name for name in sorted(new) if name.endswith(".md") or not _is_asset(name)]
        found += (known := [name for name in existing if (ROOT / name).exists()])
        todo += known
    return found


def target_of(page: str, link: str) -> str:
    """The path in the repository that a link on a page means; a folder's README if it has one."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    readme = f"{path}/README.md"
    return readme if (ROOT / readme).is_file() else path


def place(path: str) -> str:
    """Where the site has a file of the repository, as mkdocs names sources."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if path.endswith(".md") or _is_asset(path) else f"{path}.md"


def text_of(path: str) -> str:
    """A file of the repository as a page in Markdown."""
    file = ROOT / path
    if path.endswith(".md"):
        return file.read_text()
    if file.is_dir():
        lines = [f"- `{inner.name}`: {_first_line(inner)}" for inner in sorted(file.glob("*.py"))]
        return f"# {path}/\n\n" + "\n".join(lines) + "\n"
    return f"# {path}\n\n{FENCE}{file.suffix[1:]}\n{file.read_text()}{FENCE}\n"


def with_links_of_the_site(markdown: str, path: str) -> str:
    """The text of a file of the repository, with links that hold on the site."""
    here = posixpath.dirname(place(path)) or "."

    def moved(match: re.Match[str]) -> str:
        target = target_of(path, match[0])
        if not (ROOT / target).exists():
            return match[0]
        return posixpath.relpath(place(target), here)

    return markdown if FENCE in markdown else LINK.sub(moved, markdown)


def _is_asset(path: str) -> bool:
    return path.endswith((".png", ".svg"))


def _first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
