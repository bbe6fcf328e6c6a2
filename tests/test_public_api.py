import ast
import subprocess
import sys
from pathlib import Path

import rowtier

SOURCE = Path(rowtier.__file__).parent
# From left to right: a part may import what stands before it, never what stands after.
ORDER = [
    "foreign", "errors", "jit", "units", "fields", "sayings", "special", "reading", "renaming",
    "locks", "writing", "files", "manifest", "folders", "tables", "work", "cluster", "profile",
    "band", "cost", "plan", "synth", "evaluate", "report", "runtime", "backends", "torch",
    "torchrec", "calibrate", "kinds", "cli",
]  # fmt: skip
HEAVY = {"torch", "triton", "torchrec", "pyarrow", "numba", "scipy", "pydantic", "numpy"}


def test_all_public_names_exist_and_are_listed() -> None:
    assert set(rowtier.__all__) == {*rowtier._HOME, "__version__"}
    for name in rowtier.__all__:
        assert getattr(rowtier, name) is not None
    assert dir(rowtier) == sorted(rowtier.__all__)


def test_importing_rowtier_imports_nothing_heavy() -> None:
    code = f"import sys, rowtier; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['rowtier', '--help']\n"
        "from rowtier.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_imports_go_one_way() -> None:
    for path in SOURCE.rglob("*.py"):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if part in ("__init__", "__main__"):
            continue
        for module in _imported(path):
            target = module.split(".")[1]
            assert ORDER.index(target) <= ORDER.index(part), f"{path} imports {module}"


def _imported(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rowtier."):
            found.append(str(node.module))
    return found
