"""What `make package` looks for, on archives that are made up; the real ones take minutes."""

import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from installs import (  # noqa: E402
    data_files,
    extra_in,
    find_python,
    first_example,
    missing_in,
    names_in,
)

NEEDED = {"rowtier/__init__.py", "rowtier/presets/a.yaml"}
WHEEL = [*sorted(NEEDED), "rowtier-1.dist-info/METADATA", "rowtier-1.dist-info/licenses/LICENSE"]
SDIST = [f"src/{name}" for name in sorted(NEEDED)] + ["LICENSE", "pyproject.toml", "PKG-INFO"]


@pytest.mark.parametrize("names", [WHEEL, SDIST], ids=["wheel", "sdist"])
def test_archives_that_are_whole_have_nothing_missing_and_nothing_else(names: list[str]) -> None:
    assert missing_in(names, NEEDED) == []
    assert extra_in(names) == []


@pytest.mark.parametrize("names", [WHEEL, SDIST], ids=["wheel", "sdist"])
def test_what_is_missing_or_too_much_is_named(names: list[str]) -> None:
    kept = [name for name in names if "LICENSE" not in name and "presets" not in name]
    assert missing_in(kept, NEEDED) == ["rowtier/presets/a.yaml", "LICENSE"]
    more = ["tests/test_a.py", "rowtier/__pycache__/a.pyc", "benchmarks/a.py"]
    assert extra_in([*names, *more]) == sorted(more)


def test_names_in_both_kinds_of_archive(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as wheel:
        wheel.write(tmp_path / "a.py", "rowtier/a.py")
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as sdist:
        sdist.add(tmp_path / "a.py", "rowtier-1/src/rowtier/a.py")
    assert names_in(tmp_path / "x.whl") == ["rowtier/a.py"]
    assert names_in(tmp_path / "x.tar.gz") == ["src/rowtier/a.py"]


def test_every_file_of_the_package_is_needed() -> None:
    needed = data_files(ROOT / "src" / "rowtier")
    assert {"py.typed", "presets/recshard-16.yaml", "__init__.py"} <= set(needed)
    assert any(name.startswith("report/") and not name.endswith(".py") for name in needed)
    assert not any("__pycache__" in name for name in needed)


def test_the_first_example_of_the_readme_needs_no_torch() -> None:
    code = first_example((ROOT / "README.md").read_text())
    assert "rowtier.make_plan" in code
    assert "torch" not in code


def test_pythons_are_found_by_version() -> None:
    assert find_python(f"{sys.version_info[0]}.{sys.version_info[1]}") is not None
    assert find_python("3.99") is None
