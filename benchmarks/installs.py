"""Is what `pip install` gets whole, and does it run in every Python that rowtier promises?

    python benchmarks/installs.py                  # build, look inside, install, run, check types
    python benchmarks/installs.py --only 3.12      # one Python, without types

Builds the sdist and, from it, the wheel; installs that into a clean environment of every Python
found, from the registry that pip is set up with; runs the README's first Python example there.

    pythons_run          Pythons in which the example ran; the rows list those not found
    pythons_failed       and those in which it did not
    files_missing        files that the sdist or the wheel must have
    files_extra          files that they must not have
    type_errors          of mypy for 3.10 and for 3.13, together

The exit code is 1 if a count of failures is not 0.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.form import Goal, Measured, run

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
TYPED_FOR = ("3.10", "3.13")
FAILURES = ("pythons_failed", "files_missing", "files_extra", "type_errors")
GOALS: dict[str, Goal] = dict.fromkeys(FAILURES, ("<=", 0))
BESIDE_SOURCE = {
    "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", "pyproject.toml", "PKG-INFO",
    ".gitignore",
}  # fmt: skip


def main() -> None:
    """Measure, print, and fail if something does."""
    found: list[Measured] = []

    def measure(quick: bool, only: str) -> Measured:
        found.append(installs(tuple(filter(None, only.split(","))), types=not quick and not only))
        return found[0]

    run("installs", measure, goals=GOALS, options={"only": ("", "Pythons, as 3.10,3.12")})
    sys.exit(any(found[0].figures[name] for name in FAILURES))


def installs(only: tuple[str, ...], *, types: bool) -> Measured:
    """Build once, then try every Python."""
    with tempfile.TemporaryDirectory() as folder:
        made = build(Path(folder))
        contents = {path.name: names_in(path) for path in made}
        needed = {f"rowtier/{name}" for name in data_files(ROOT / "src" / "rowtier")}
        missing = [f"{a}: {n}" for a, names in contents.items() for n in missing_in(names, needed)]
        extra = [f"{a}: {name}" for a, names in contents.items() for name in extra_in(names)]
        (wheel,) = (path for path in made if path.suffix == ".whl")
        rows = [tried(version, wheel, Path(folder)) for version in only or PYTHONS]
    errors = [line for version in TYPED_FOR if types for line in type_errors(version)]
    figures = {
        "pythons_run": sum(row["outcome"] == "runs" for row in rows),
        "pythons_failed": sum(row["outcome"] not in ("runs", "not found") for row in rows),
        "files_missing": len(missing),
        "files_extra": len(extra),
        "type_errors": len(errors) if types else None,
    }
    said = [{"what": text, "outcome": "", "seconds": None} for text in (*missing, *extra, *errors)]
    return Measured([*rows, *said], figures)


def build(folder: Path) -> list[Path]:
    """The sdist and the wheel of this tree."""
    command = [sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(ROOT)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return sorted((folder / "dist").iterdir())


def names_in(archive: Path) -> list[str]:
    """Files in a wheel or an sdist, without the folder that an sdist puts around them."""
    if archive.suffix == ".whl":
        return zipfile.ZipFile(archive).namelist()
    with tarfile.open(archive) as tar:
        return [member.name.partition("/")[2] for member in tar.getmembers() if member.isfile()]


def data_files(package: Path) -> list[str]:
    """Everything of the package: code, presets, the report's page, py.typed."""
    return [
        str(path.relative_to(package))
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]


def missing_in(names: Iterable[str], needed: set[str]) -> list[str]:
    """What an archive must have and has not; LICENSE may lie beside a wheel's own facts."""
    there = {name.removeprefix("src/") for name in names}
    licensed = any(name.rpartition("/")[2] == "LICENSE" for name in there)
    return sorted(needed - there) + ([] if licensed else ["LICENSE"])


def extra_in(names: Iterable[str]) -> list[str]:
    """What an archive has besides the package, its facts, and what is named above."""
    allowed = re.compile(r"(src/)?rowtier/.*(?<!\.pyc)|rowtier-[^/]*\.dist-info/.*")
    return sorted(n for n in names if not allowed.fullmatch(n) and n not in BESIDE_SOURCE)


def tried(version: str, wheel: Path, folder: Path) -> Mapping[str, object]:
    """Install the wheel into a clean environment of one Python, and run the README's example."""
    start, python = time.perf_counter(), find_python(version)
    outcome = "not found" if python is None else first_failure(python, wheel, folder / version)
    seconds = round(time.perf_counter() - start, 1)
    return {"what": f"Python {version}", "outcome": outcome, "seconds": seconds}


def first_failure(python: str, wheel: Path, folder: Path) -> str:
    """The last line of what failed, or that it runs."""
    folder.mkdir()
    (folder / "example.py").write_text(first_example((ROOT / "README.md").read_text()))
    own = str(folder / "venv" / "bin" / "python")
    for command in (
        [python, "-m", "venv", "venv"],
        [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)],
        [own, "-I", "example.py"],
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        print(done.stdout, end="")
    shutil.rmtree(folder)
    return "runs"


def first_example(readme: str) -> str:
    """The first Python in the README."""
    example = re.search(r"```python\n(.*?)```", readme, re.S)
    assert example is not None, "README.md has no example in Python"
    return example[1]


def find_python(version: str) -> str | None:
    """The path of a Python of this version that starts: of PATH, or of pyenv."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for path in (shutil.which(f"python{version}"), *map(str, kept)):
        code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
        if path and version == subprocess.run(
            [path, "-c", code], capture_output=True, text=True
        ).stdout.strip():  # fmt: skip
            return path
    return None


def type_errors(version: str) -> list[str]:
    """What mypy says of this tree, read as that Python reads it."""
    command = [sys.executable, "-m", "mypy", "--python-version", version]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return [f"{version}: {line}" for line in done.stdout.splitlines() if ": error: " in line]


if __name__ == "__main__":
    main()
