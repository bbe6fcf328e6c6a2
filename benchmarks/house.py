"""How the code reads, counted: names, imports, lengths, and what no test reaches.

    repeated_class_names    names that more than one class of src/ has
    module_cycles           groups of modules of src/ that need each other to run; imports inside
                            functions and by name count, those for type checkers alone do not
    functions_over_60       functions of more than 60 lines in src/, benchmarks/ and examples/
    files_over_400          files of more than 400 lines, tests/ included
    underscore_benchmarks   modules of benchmarks/ whose name begins with an underscore
    longest_example_lines   lines of the longest file of examples/
    uncovered_share         lines of src/ that no test runs, from coverage.json (`make coverage`)

The rows name what is counted. `--root` looks at another tree.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from harness.form import Goal, Measured, run

ROOT = Path(__file__).parents[1]
FUNCTION_LINES, FILE_LINES, EXAMPLE_LINES = 60, 400, 150
GOALS: dict[str, Goal] = {
    "repeated_class_names": ("<=", 0),
    "module_cycles": ("<=", 0),
    "functions_over_60": ("<=", 3),
    "files_over_400": ("<=", 0),
    "underscore_benchmarks": ("<=", 0),
    "longest_example_lines": ("<=", EXAMPLE_LINES),
    "uncovered_share": ("<=", 0.08),
}
Graph = Mapping[str, set[str]]


def measure(quick: bool = False, root: str = str(ROOT)) -> Measured:
    """All figures of a tree; it takes seconds, so `quick` changes nothing."""
    del quick
    return house(Path(root))


def house(root: Path) -> Measured:
    """What is counted, item by item, and how much it is."""
    trees = {path: ast.parse(path.read_text()) for path in _python(root, "src")}
    others = {p: ast.parse(p.read_text()) for p in _python(root, "benchmarks", "examples")}
    examples = {path: _lines(path) for path in _python(root, "examples")}
    over = {
        "repeated_class_names": repeated_classes(trees, root),
        "module_cycles": [" ".join(cycle) for cycle in cycles(imports(trees, root / "src"))],
        "functions_over_60": long_functions({**trees, **others}, root),
        "files_over_400": long_files(root),
        "underscore_benchmarks": [
            str(path.relative_to(root)) for path in sorted((root / "benchmarks").rglob("_*.py"))
            if path.name not in ("__init__.py", "__main__.py")
        ],
    }  # fmt: skip
    rows = [{"figure": figure, "where": where} for figure, found in over.items() for where in found]
    rows += [
        {"figure": "longest_example_lines", "where": f"{path.relative_to(root)} {lines}"}
        for path, lines in examples.items()
        if lines > EXAMPLE_LINES
    ]
    rows += [{"figure": "uncovered_share", "where": text} for text in uncovered_files(root)]
    figures: dict[str, float | None] = {figure: len(found) for figure, found in over.items()}
    figures["longest_example_lines"] = max(examples.values(), default=0)
    return Measured(rows, figures | {"uncovered_share": uncovered_share(root)})


def repeated_classes(trees: Mapping[Path, ast.Module], root: Path) -> list[str]:
    """Class names with more than one class, and the files these are in."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path.relative_to(root)))
    return [f"{name}: {' '.join(at)}" for name, at in sorted(homes.items()) if len(at) > 1]


def long_functions(trees: Mapping[Path, ast.Module], root: Path) -> list[str]:
    """Functions that are too long, from `def` to their last line."""
    return [
        f"{path.relative_to(root)} {node.name} {lines}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    ]


def long_files(root: Path) -> list[str]:
    """Files that are too long, of every folder with code."""
    return [
        f"{path.relative_to(root)} {lines}"
        for path in _python(root, "src", "benchmarks", "examples", "tests", "docs")
        if (lines := _lines(path)) > FILE_LINES
    ]


def imports(trees: Mapping[Path, ast.Module], source: Path) -> Graph:
    """Module → modules of the same tree that it imports, wherever in the file it does."""
    modules = {_module(path, source): tree for path, tree in trees.items()}
    graph = {}
    for name, tree in modules.items():
        wanted = (_meant(target, modules) for target in _targets(tree))
        graph[name] = set(chain.from_iterable(wanted)) - {name}
    return graph


def _targets(node: ast.AST) -> Iterator[str]:
    """What a file imports; strings too, in quotes, since `import_module` and `-m` take those."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        children: Iterable[ast.AST] = node.orelse
    else:
        children = ast.iter_child_nodes(node)
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield f'"{node.value}"'
    yield from chain.from_iterable(_targets(child) for child in children)


def _meant(target: str, modules: Mapping[str, object]) -> set[str]:
    """The modules that are imported: `a.b` by `from a.b import name` if a.b.name is none."""
    text = target.strip('"')
    package, inside, rest = text.rpartition(".")
    # f"a.b.{name}" is any module in a.b. f"a.{name}" is how a hands out what users import.
    if target.startswith('"') and inside and not rest and "." in package:
        return {name for name in modules if name.rpartition(".")[0] == package}
    homes = [text] if target.startswith('"') else [text, package]
    return {next((home for home in homes if home in modules), "")} - {""}


def cycles(graph: Graph) -> list[list[str]]:
    """Groups of more than one module, each of which reaches every other."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other])) for name in graph
    }
    return sorted(list(group) for group in groups if len(group) > 1)


def _reached(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        todo += (new := graph[todo.pop()] - found)
        found |= new
    return found


def uncovered_share(root: Path) -> float | None:
    """Lines that no test runs over all that could be; None before `make coverage`."""
    path = root / "coverage.json"
    if not path.exists():
        return None
    totals = json.loads(path.read_text())["totals"]
    return float(totals["missing_lines"]) / float(totals["num_statements"] or 1)


def uncovered_files(root: Path, *, most: int = 20) -> list[str]:
    """The files with the most lines that no test runs."""
    path = root / "coverage.json"
    files = json.loads(path.read_text())["files"] if path.exists() else {}
    missing = {name: int(found["summary"]["missing_lines"]) for name, found in files.items()}
    ordered = sorted(missing, key=lambda name: (-missing[name], name))
    return [f"{name} {missing[name]}" for name in ordered[:most] if missing[name]]


def _python(root: Path, *folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py"))


def _module(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


if __name__ == "__main__":
    run("house", measure, goals=GOALS, options={"root": (str(ROOT), "the tree to look at")})
