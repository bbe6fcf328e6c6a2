"""Hostile environments around the command line, and foreign names through all of its commands.

Each environment starts the real program in a process of its own: with output that is closed or
full, without a home, in a folder that is gone, with damaged machine code, under a signal. Wrong is
a traceback, another exit code than documented, a process that hangs, and output that is not safe
to show, not valid, or too wide.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fault_kinds import foreign_names
from fault_kinds.foreign_names import NAMES, Ran, accepted, faults_of

HANG_S = 120
SEVERAL = ("alpha", "beta[user]", "表" * 28, "toString")

# Each is put before the arguments: python -c CODE ARGUMENTS.
_MAIN = "import sys; from rowtier.cli.main import main; sys.argv[0] = 'rowtier'; "
_CLOSED = """import os
for number in ({}):
    os.close(number)
os.execv(sys.executable, [sys.executable, '-m', 'rowtier', *sys.argv[1:]])"""
_GONE = "import os, tempfile; f = tempfile.mkdtemp(); os.chdir(f); os.rmdir(f); main()"
# A signal that arrives while the folder of a result is being filled.
# Commands in the background of a script ignore SIGINT, and what they start does, too.
_SIGNAL = """import os, signal, rowtier.files
signal.signal(signal.SIGINT, signal.default_int_handler)
real = rowtier.files.dump_json
def dump_json(data):
    os.kill(os.getpid(), signal.{})
    return real(data)
rowtier.files.dump_json = dump_json
main()"""
_MEMORY = """import resource, rowtier.profile.make
used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
main()"""
_FILE_SIZE = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)); "
# A kernel that is compiled in a second or two, and what it must find.
_KERNEL = (
    "import numpy as np; from rowtier.profile.slices import thin; "
    "found = int(thin(np.arange(1000, dtype=np.uint32), 3).sum()); assert found == 121, found"
)


@dataclass(frozen=True)
class Case:
    """A command in an environment, and how it must end."""

    kind: str
    arguments: tuple[str, ...]
    codes: tuple[int, ...] = (0,)
    code: str = ""  # Python that runs in the place of `-m rowtier`
    settings: dict[str, str | None] = field(default_factory=dict)
    out: str | None = None  # a file for standard output
    err: str | None = None
    says: str = ""  # on standard error, or in the output
    leaves: Path | None = None  # a path that must not be there afterwards


def run(
    count: int, seed: int = 0, progress: Callable[[float], None] = lambda _share: None
) -> dict[str, Any]:
    """Try `count` environments, each kind as often as the others, and all names once."""
    failures: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        cases = make_cases(Path(name))
        random.Random(seed).shuffle(cases)
        tried = [cases[i % len(cases)] for i in range(count)]
        for index, case in enumerate(tried):
            if wrong := try_case(case):
                failures[case.kind] = wrong
            progress((index + 1) / (count + 1))
    printed, wrong_names = try_names(NAMES, seed)
    if wrong_names:
        failures["foreign names"] = wrong_names
    progress(1.0)
    return {
        "environments": count,
        "environment_failures": len(failures),
        "kinds": dict(Counter(case.kind for case in tried)),
        "foreign_names": len(accepted(NAMES)),
        "outputs_of_names": printed,
        "failures": failures,
    }


def try_names(names: Sequence[str], seed: int = 0) -> tuple[int, list[str]]:
    """Run every command that prints names; how many outputs were looked at, and what was wrong."""
    printed, wrong = 0, []
    with tempfile.TemporaryDirectory() as name:
        folder, known = Path(name), accepted(names)
        foreign_names.make_data(folder, known, seed)
        for arguments in foreign_names.commands(folder, known):
            ran = foreign_names.run(*arguments)
            faults = faults_of(ran)
            if "--full" in arguments and arguments[0] != "compare":
                faults += [f"not shown: {n!r}" for n in foreign_names.missing(ran.out, known)]
            if "--" not in arguments:
                ran = foreign_names.run(*arguments, "--json")
                faults += faults_of(ran, as_json=True)
            printed += 2
            wrong += [f"{arguments[0]}: {fault}" for fault in faults]
        for file in folder.glob("*.json"):
            json.loads(file.read_bytes().decode(), parse_constant=int)
    return printed, wrong


def try_case(case: Case) -> list[str]:
    """Run a case; what is wrong with how it ended."""
    start = [sys.executable, *(("-c", _MAIN + case.code) if case.code else ("-m", "rowtier"))]
    settings = {**os.environ, "ROWTIER_HELPERS": "0", **case.settings}
    given = {key: value for key, value in settings.items() if value is not None}
    with tempfile.TemporaryDirectory() as name:
        outputs = [Path(case.out or f"{name}/out"), Path(case.err or f"{name}/err")]
        with outputs[0].open("wb") as out, outputs[1].open("wb") as err:
            try:
                done = subprocess.run(
                    [*start, *case.arguments], stdout=out, stderr=err, env=given, timeout=HANG_S,
                    check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return ["hangs"]
        encoding = case.settings.get("PYTHONIOENCODING") or "utf-8"
        texts = [p.read_bytes().decode(encoding) if p.is_file() else "" for p in outputs]
    return _wrong(case, done.returncode, *texts)


def _wrong(case: Case, code: int, out: str, err: str) -> list[str]:
    ran = Ran(code, re.sub(r"\x1b\[[0-9;]*m", "", out), err)
    found = faults_of(ran, code, "--json" in case.arguments and case.out is None and bool(out))
    if code not in case.codes:
        found.append(f"exit code {code}, not {case.codes}: {err[-300:]}")
    if case.says not in out + err:
        found.append(f"does not say {case.says!r}: {err[-300:]}")
    if case.leaves is not None:
        left = [path.name for path in case.leaves.parent.glob(f"*{case.leaves.name}*")]
        # What --resume goes on from is there to stay.
        found += [f"leaves {name} behind" for name in left if not name.endswith(".partial")]
    return found


def make_cases(folder: Path) -> list[Case]:
    """All cases, with what they need in a folder."""
    foreign_names.make_data(folder, SEVERAL)
    made = list(foreign_names.commands(folder, SEVERAL))[:5]
    for arguments in (made[0], made[4]):
        assert foreign_names.run(*arguments).code == 0
    profile, tables, data = (str(folder / n) for n in ("profile", "tables.yaml", "data.npz"))
    show = ("profile", "show", profile)
    cluster = str(folder / "cluster.yaml")
    plan = ("plan", "--profile", profile, "--method", "row-wise", "--cluster", cluster)
    return [
        *_streams(show),
        *_terminals(show),
        *_paths(folder, tables),
        *_kernels(folder),
        *_stops(folder, plan, ("profile", data, "--tables", tables)),
        Case("no HOME", show, settings={"HOME": None, "XDG_CACHE_HOME": None}),
        Case("HOME is a file", show, settings={"HOME": tables}),
        Case("no TMPDIR", show, settings={"TMPDIR": "/nonexistent"}),
        Case("deleted folder", ("validate", "tables.yaml"), (2,), _GONE, says="error: "),
        Case("deleted folder, compare", ("compare", "."), (2,), _GONE, says="folder was deleted"),
        Case("deleted folder, whole path", ("validate", tables), code=_GONE),
        _too_little_memory(folder, data),
    ]


def _streams(show: tuple[str, ...]) -> list[Case]:
    full = {"codes": (2,), "out": "/dev/full", "says": "No space left on device"}
    nowhere = ("validate", "nowhere")
    return [
        Case("full output", show, **full),  # type: ignore[arg-type]
        Case("full output, JSON", (*show, "--json"), **full),  # type: ignore[arg-type]
        Case("full output, --help", ("--help",), **full),  # type: ignore[arg-type]
        Case("closed output", show, (2,), _CLOSED.format("1,"), says="output is closed"),
        Case("closed error", show, code=_CLOSED.format("2,")),
        Case("closed error, mistake", nowhere, (2,), _CLOSED.format("2,")),
        Case("closed input", show, code=_CLOSED.format("0,")),
        Case("all closed", show, (2,), _CLOSED.format("0, 1, 2")),
        Case("full error", nowhere, (2,), err="/dev/full"),
        Case("full error and output", show, (2,), out="/dev/full", err="/dev/full"),
    ]


def _terminals(show: tuple[str, ...]) -> list[Case]:
    c_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    return [
        Case("ASCII", show, settings={"PYTHONIOENCODING": "ascii"}, says="beta[user]"),
        Case("ASCII, JSON", (*show, "--json"), settings={"PYTHONIOENCODING": "ascii"}),
        Case("ASCII, --help", ("--help",), settings={"PYTHONIOENCODING": "ascii"}),
        Case("Latin-1", show, settings={"PYTHONIOENCODING": "latin-1"}, says="beta[user]"),
        Case("C locale", show, settings={**c_locale}, says="beta[user]"),
        Case("TERM=dumb", show, settings={"TERM": "dumb", "FORCE_COLOR": "1"}),
        Case("COLUMNS=0", show, settings={"COLUMNS": "0", "FORCE_COLOR": "1"}, says="beta"),
        Case("COLUMNS=20", show, settings={"COLUMNS": "20", "FORCE_COLOR": "1"}),
        Case("COLUMNS=0, --help", ("--help",), settings={"COLUMNS": "0"}, says="validate"),
        Case("COLUMNS=wide", show, settings={"COLUMNS": "wide"}, says="beta[user]"),
        Case("option with escapes", ("plan", "--x\x1b[2J[/b]"), (2,), says="[/b]"),
    ]


def _paths(folder: Path, tables: str) -> list[Case]:
    os.mkfifo(folder / "pipe.yaml")
    (folder / "loop.yaml").symlink_to("loop.yaml")
    odd = folder / "odd \x1b[2J\u202e[b]\n.yaml"
    shutil.copy(tables, odd)
    raw = os.fsdecode(os.fsencode(folder) + b"/\xff\xfe.yaml")
    shutil.copy(tables, raw)
    refused = {
        "pipe": ("validate", str(folder / "pipe.yaml")),
        "data is a pipe": ("profile", str(folder / "pipe.yaml"), "--tables", tables, "-o", "x"),
        "/dev/zero": ("validate", "/dev/zero"),
        "data is /dev/zero": ("profile", "/dev/zero", "--tables", tables, "-o", "x"),
        "loop of links": ("validate", str(folder / "loop.yaml")),
        "too long a path": ("validate", "x/" * 5000),
        "too long a name": ("validate", "x" * 5000),
        "a file that cannot be read": ("validate", "/proc/self/mem"),
        "path below a file": ("validate", f"{tables}/x"),
    }
    return [
        *(Case(kind, arguments, (2,), says="error: ") for kind, arguments in refused.items()),
        Case("path with escapes", ("validate", str(odd)), says="valid tables"),
        Case("path that is not UTF-8", ("validate", raw), says="valid tables"),
        Case("path that is not UTF-8, JSON", ("validate", raw, "--json")),
    ]


def _kernels(folder: Path) -> list[Case]:
    """Machine code that is damaged, of another user, or cannot be kept."""
    kept = folder / "kept"
    primed = Case("kept machine code", (), code=_KERNEL, settings={"NUMBA_CACHE_DIR": str(kept)})
    assert not try_case(primed)
    files = {path.name: path.read_bytes() for path in (kept / "rowtier").glob("*.nbc")}
    assert len(files) >= 2
    a_file = folder / "a file"
    a_file.touch()
    names = list(files)
    swapped = dict(zip(names, [files[n] for n in (*names[1:], names[0])], strict=True))
    changed = {
        "cut off": {name: data[: len(data) // 2] for name, data in files.items()},
        "empty": dict.fromkeys(files, b""),
        "flipped": {n: d[:900] + bytes([d[900] ^ 1]) + d[901:] for n, d in files.items()},
        "swapped": swapped,
    }
    found = [primed]
    for kind, contents in changed.items():
        found.append(_kernel_case(f"machine code, {kind}", _cache(folder / kind, contents)))
    foreign = _cache(folder / "foreign", files)
    for path in (foreign / "rowtier").iterdir():
        os.chown(path, 12345, -1) if os.geteuid() == 0 else path.chmod(0)
    found.append(_kernel_case("machine code of another user", foreign))
    found.append(_kernel_case("machine code, folder is a file", a_file))
    found.append(_kernel_case("machine code, read-only", Path("/proc/sys")))
    found.append(_kernel_case("machine code, too long a path", Path("x" * 5000)))
    found.append(_kernel_case("machine code, full disk", folder / "full", _FILE_SIZE))
    return found


def _cache(folder: Path, contents: dict[str, bytes]) -> Path:
    (folder / "rowtier").mkdir(parents=True)
    for name, data in contents.items():
        (folder / "rowtier" / name).write_bytes(data)
    return folder


def _kernel_case(kind: str, cache: Path, before: str = "") -> Case:
    return Case(kind, (), code=before + _KERNEL, settings={"NUMBA_CACHE_DIR": str(cache)})


def _stops(folder: Path, plan: tuple[str, ...], profile: tuple[str, ...]) -> list[Case]:
    found = []
    for name, says in (("SIGINT", "interrupted"), ("SIGTERM", "SIGTERM")):
        for command in (plan, profile):
            output = folder / f"{name}-{command[0]}"
            given = (*command, "-o", str(output))
            kind = f"{name} in {command[0]}"
            found.append(Case(kind, given, (130,), _SIGNAL.format(name), says=says, leaves=output))
    return found


def _too_little_memory(folder: Path, data: str) -> Case:
    text = (folder / "tables.yaml").read_text().replace("num_embeddings: 50", "num_embeddings: 2G")
    (folder / "large.yaml").write_text(text)
    output = folder / "large profile"
    given = ("--tables", str(folder / "large.yaml"), "--memory", "1TB", "-o", str(output))
    says = "not enough memory"
    return Case("out of memory", ("profile", data, *given), (2,), _MEMORY, says=says, leaves=output)
