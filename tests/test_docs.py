"""What the documentation shows is run: Python, commands and files."""

import re
import shlex
from pathlib import Path

import pytest
from cli.run import run

import rowtier

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (f"{page.name}-{index}", text)
        for page in PAGES
        for index, text in enumerate(
            re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)
        )
    ]


@pytest.mark.parametrize(("name", "code"), blocks("python"))
def test_python_in_the_docs_runs(
    name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, name, "exec"), {})


@pytest.mark.parametrize(("name", "lines"), blocks("sh"))
def test_commands_in_the_docs_run(
    name: str, lines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in filter(None, lines.splitlines()):
        command, *arguments = shlex.split(line, comments=True)
        assert command == "rowtier"
        code, _, errors = run(*arguments)
        assert (code, errors) == (0, ""), f"{name}: {line}"


@pytest.mark.parametrize(("name", "text"), blocks("yaml"))
def test_files_in_the_docs_load(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.yaml").write_text(text)
    rowtier.load(tmp_path / f"{name}.yaml")


def test_links_between_the_docs_hold() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_preset_and_method_is_documented() -> None:
    text = "".join(page.read_text() for page in PAGES)
    for name in (*rowtier.cluster.PRESETS, *rowtier.METHODS, *rowtier.WORKLOADS):
        assert name in text
