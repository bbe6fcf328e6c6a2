import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import rowtier

SOURCE = Path(rowtier.__file__).parent
# From left to right: a part may import what stands before it, never what stands after.
ORDER = [
    "foreign", "errors", "progress_bar", "jit", "splitmix", "units", "fields", "sayings", "special",
    "reading", "renaming", "locks", "writing", "files", "manifest", "folders", "tables", "work",
    "cluster", "profile", "band", "cost", "plan", "synth", "evaluate", "report", "runtime",
    "backends", "torch", "torchrec", "calibrate", "kinds", "cli",
]  # fmt: skip
# The same inside `runtime`: its folders, and between them the files that are in none.
RUNTIME_ORDER = [
    {"batches"},
    {"kernels"},
    {"device"},
    {"store"},
    {"exchange"},
    {
        "agreement", "asked", "dense_time", "engine", "first_rows", "groups", "growing",
        "growing_memory", "growing_names", "heat", "on_devices", "optim", "options",
        "row_updates", "shared_remap", "torch_optimizers",
    },
    {
        "autopilot", "blocks", "copies", "deltas", "dict_batches", "keyed", "logical",
        "lookup", "migrate", "module", "modules", "move_rounds", "pipeline",
        "planning_process", "read_only", "row_gradient", "row_module", "row_moves",
        "row_optimizer", "rows_on_the_move", "together", "traced", "unsharded",
    },
    {"checkpoint"},
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


def test_imports_inside_the_runtime_go_one_way() -> None:
    stages = {part: at for at, parts in enumerate(RUNTIME_ORDER) for part in parts}
    runtime = SOURCE / "runtime"
    paths = [path for path in runtime.rglob("*.py") if path != runtime / "__init__.py"]
    parts = {path: path.relative_to(runtime).parts[0].removesuffix(".py") for path in paths}
    assert set(parts.values()) == set(stages)
    for path, part in parts.items():
        for target in _imported_of_runtime(path):
            assert stages[target] <= stages[part], f"{path} imports runtime/{target}"
            assert target != "batches" or part == "batches", f"{path} imports runtime/batches"


def test_a_class_name_exists_once() -> None:
    trees = (ast.parse(path.read_text()) for path in SOURCE.rglob("*.py"))
    names = Counter(n.name for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef))
    assert [name for name, classes in names.items() if classes > 1] == []


def test_folders_of_the_runtime_import_nothing_by_themselves() -> None:
    for path in (SOURCE / "runtime").rglob("__init__.py"):
        (docstring,) = ast.parse(path.read_text()).body
        assert isinstance(docstring, ast.Expr), path


def _imported_of_runtime(path: Path) -> set[str]:
    """The files and folders of `runtime` that a file names in its imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name.name}" for name in node.names]
            found |= {name.split(".")[2] for name in names if name.startswith("rowtier.runtime.")}
    return found


def _imported(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rowtier."):
            found.append(str(node.module))
    return found
