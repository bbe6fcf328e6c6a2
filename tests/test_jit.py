"""Machine code that is kept: by what it was made from, for all processes, and ahead of its use."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import make_compiled_ahead
import numpy as np
import pytest
from numba.core import event

from rowtier.jit import ahead, notice, store
from rowtier.jit.code import digest_of
from rowtier.jit.helper import type_of
from rowtier.jit.kernel import Kernel

ADDED = """
from typing import NamedTuple
from numpy.typing import NDArray
from rowtier.jit import compiled, inner

STEP = 1


class Pair(NamedTuple):
    first: NDArray
    second: NDArray


@inner
def added(pair: Pair, i: int) -> float:
    return pair.first[i] + 2 * pair.second[i] + STEP
"""
CALLS = """
from numpy.typing import NDArray
from rowtier.jit import compiled
from {package}.added import Pair, added


@compiled
def total(pair: Pair) -> float:
    found = 0.0
    for i in range(len(pair.first)):
        found += added(pair, i)
    return found
"""


class Package:
    """A package of two files with kernels, in which one calls the other's."""

    def __init__(self, folder: Path, name: str):
        self.folder, self.name = folder / name, name
        self.folder.mkdir()
        (self.folder / "__init__.py").touch()
        self.write(ADDED)
        (self.folder / "calls.py").write_text(CALLS.format(package=name))

    def write(self, text: str) -> None:
        """Other text for the file whose kernel is called, as old as the one before."""
        path = self.folder / "added.py"
        path.write_text(text)
        os.utime(path, (1e9, 1e9))

    def loaded(self) -> ModuleType:
        """The file that calls, as a new process would load it."""
        for name in [name for name in sys.modules if name.split(".")[0] == self.name]:
            del sys.modules[name]
        importlib.invalidate_caches()
        return importlib.import_module(f"{self.name}.calls")

    def total(self) -> float:
        """What its kernel finds."""
        calls = self.loaded()
        return calls.total(calls.Pair(np.array([1.0, 2.0]), np.array([10.0, 20.0])))


@pytest.fixture
def package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Package:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    return Package(tmp_path, f"kernels_{abs(hash(request.node.name))}")


def kept(folder: Path) -> set[str]:
    return {path.name for path in (folder / "kept" / "rowtier").glob("*.nbc")}


class Compiled(event.Listener):  # type: ignore[misc]
    """Counts what is compiled."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_start(self, happened: Any) -> None:
        function = happened.data["dispatcher"].py_func
        if not function.__module__.startswith("numba"):
            self.names.append(function.__name__)

    def on_end(self, happened: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("change", "total"),
    [
        (("STEP = 1", "STEP = 5"), 73.0),
        (("+ 2 *", "+ 3 *"), 95.0),
        (("first: NDArray\n    second: NDArray", "second: NDArray\n    first: NDArray"), 38.0),
    ],
)  # fmt: skip
def test_code_that_was_made_from_other_sources_is_never_used(
    package: Package, tmp_path: Path, change: tuple[str, str], total: float
) -> None:
    assert package.total() == 65.0
    before = kept(tmp_path)
    package.write(ADDED.replace(*change))
    assert package.total() == total
    assert len(before) == 2
    assert before < kept(tmp_path), "nothing is deleted"
    package.write(ADDED)
    with event.install_listener("numba:compile", Compiled()) as compiled:
        assert package.total() == 65.0
    assert not compiled.names, "what was kept first is found again"


def test_where_a_function_stands_and_when_it_was_written_make_no_difference(
    package: Package, tmp_path: Path
) -> None:
    package.total()
    before = kept(tmp_path)
    package.write("# moved\n\n" + ADDED)
    os.utime(package.folder / "added.py")
    package.total()
    assert kept(tmp_path) == before


def test_without_a_folder_to_write_to_everything_works(package: Package, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("not a folder")
    assert package.total() == 65.0
    assert package.total() == 65.0
    assert not store.is_shared()


def test_a_folder_that_nobody_may_write_is_still_read(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise OSError(30, "Read-only file system")

    package.total()
    before = kept(tmp_path)
    monkeypatch.setattr(store.tempfile, "mkstemp", refuse)
    with event.install_listener("numba:compile", Compiled()) as compiled:
        assert package.total() == 65.0
        package.write(ADDED.replace("STEP = 1", "STEP = 2"))
        assert package.total() == 67.0
    assert compiled.names == ["total", "added"]
    assert kept(tmp_path) == before


def test_what_was_cut_off_is_compiled_anew(package: Package, tmp_path: Path) -> None:
    package.total()
    for path in (tmp_path / "kept" / "rowtier").glob("*.nbc"):
        path.write_bytes(path.read_bytes()[:-100])
    assert package.total() == 65.0


def flip(raw: bytes) -> bytes:
    return raw[:900] + bytes([raw[900] ^ 1]) + raw[901:]


@pytest.mark.parametrize("change", [flip, lambda _: b"", lambda raw: raw[:32]])
def test_what_is_damaged_is_compiled_anew_and_replaced(
    package: Package, tmp_path: Path, change: Any
) -> None:
    package.total()
    whole = {path: path.read_bytes() for path in (tmp_path / "kept" / "rowtier").glob("*.nbc")}
    for path, raw in whole.items():
        path.write_bytes(change(raw))
    with event.install_listener("numba:compile", Compiled()) as compiled:
        assert package.total() == 65.0
    assert sorted(compiled.names) == ["added", "total"]
    with event.install_listener("numba:compile", Compiled()) as compiled:
        assert package.total() == 65.0
    assert not compiled.names


def test_machine_code_under_the_name_of_another_is_not_run(
    package: Package, tmp_path: Path
) -> None:
    package.total()
    before = kept(tmp_path)
    package.write(ADDED.replace("STEP = 1", "STEP = 5"))
    package.total()
    folder = tmp_path / "kept" / "rowtier"
    old = {name.split("-")[0]: (folder / name).read_bytes() for name in before}
    for name in kept(tmp_path) - before:
        (folder / name).write_bytes(old[name.split("-")[0]])
    assert package.total() == 73.0


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may chown")
def test_machine_code_of_another_user_is_not_run(package: Package, tmp_path: Path) -> None:
    package.total()
    for path in (tmp_path / "kept" / "rowtier").glob("*.nbc"):
        os.chown(path, 12345, -1)
    with event.install_listener("numba:compile", Compiled()) as compiled:
        assert package.total() == 65.0
    assert sorted(compiled.names) == ["added", "total"]


def test_a_folder_that_may_not_even_be_looked_at_is_done_without(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "x" * 5000)
    assert not store.has("something")
    assert package.total() == 65.0


def test_a_pipe_in_the_place_of_machine_code_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    (tmp_path / "rowtier").mkdir()
    os.mkfifo(tmp_path / "rowtier" / "pipe")
    assert store.read("pipe") is None


def test_python_cannot_call_what_only_kernels_call(package: Package) -> None:
    with pytest.raises(TypeError, match="added is for compiled functions only"):
        package.loaded().added(None, 0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that says that it compiles after no time at all."""
    monkeypatch.setattr(notice, "PATIENCE_S", 0.0)
    monkeypatch.setattr(notice, "_WATCH", notice._Watch())
    monkeypatch.delenv("RANK", raising=False)


@pytest.mark.usefixtures("impatient")
def test_who_waits_is_told_once_and_not_when_nothing_is_compiled(
    package: Package, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    package.total()
    package.write(ADDED.replace("STEP = 1", "STEP = 3"))
    package.total()
    out, errors = capfd.readouterr()
    assert not out
    assert errors == f"rowtier: compiling for this machine, once; ~{ahead.expected_s():.0f} s\n"
    monkeypatch.setattr(notice, "_WATCH", notice._Watch())
    package.total()
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("impatient")
def test_of_ranks_only_the_first_says_so(
    package: Package, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    package.total()
    assert capfd.readouterr() == ("", "")


TWO = """
import sys, numpy as np
from numba.core import event
sys.path[:0] = [{tests!r}, {folder!r}]
from test_jit import Compiled
from rowtier.jit import notice
notice.PATIENCE_S = 0.0
calls = __import__("{name}.calls").calls
print("ready", flush=True)
input()
with event.install_listener("numba:compile", Compiled()) as compiled:
    calls.total(calls.Pair(np.array([1.0]), np.array([10.0])))
print(*compiled.names, flush=True)
input()
"""


def test_of_processes_that_need_a_kernel_at_once_one_compiles_and_one_says_so(
    package: Package, tmp_path: Path
) -> None:
    script = TWO.format(tests=str(Path(__file__).parent), folder=str(tmp_path), name=package.name)
    pipes = {"stdin": -1, "stdout": -1, "stderr": -1, "text": True}
    both = [subprocess.Popen([sys.executable, "-c", script], **pipes) for _ in range(2)]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    names = [process.stdout.readline().split() for process in both]
    said = [process.communicate("\n")[1] for process in both]
    assert sorted(names[0] + names[1]) == ["added", "total"]
    assert "".join(said).count("rowtier: compiling") == 1
    assert [process.returncode for process in both] == [0, 0]


def test_all_that_is_listed_is_there() -> None:
    for name, types in ahead.listed()["kernels"]:
        module, function = name.split(":")
        kernel = getattr(importlib.import_module(module), function)
        assert isinstance(kernel, Kernel), name
        assert len(digest_of(kernel.py_func)) == 64
        said = [make_compiled_ahead.said_of(type_of(one)) for one in types]
        assert said == types, name


def test_all_that_the_first_script_calls_is_listed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = tmp_path / "found.json"
    script = make_compiled_ahead.__file__
    subprocess.run([sys.executable, script, str(found)], check=True, capture_output=True)
    listed = ahead.listed()["kernels"]
    calls = json.loads(found.read_text())[0]
    needed = [one for one in calls if not one[0].startswith(make_compiled_ahead.NEEDS_TORCH)]
    assert len(needed) > 20
    assert [one for one in needed if one not in listed] == [], f"run {script}"


HELPED = """
import sys, numpy as np
from rowtier.runtime.kernels.indices import take_spots
take_spots(np.arange(3), np.arange(3))
print("called", flush=True)
input()
"""


def test_helpers_compile_what_is_listed_and_end_with_who_started_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kept"), "ROWTIER_HELPERS": "1"}
    pipes: dict[str, Any] = {"stdin": -1, "stdout": -1, "text": True}
    command = [sys.executable, "-c", HELPED]
    with subprocess.Popen(command, env=environment, **pipes) as process:
        assert process.stdout.readline() == "called\n"
        while not any("pool_back" in name for name in kept(tmp_path)):
            time.sleep(0.05)
        process.communicate("\n")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    while not store.claim("helper 0"):
        time.sleep(0.05)
