"""What the usual path needs is compiled by several processes at once.

numba compiles one function at a time in a process. `ahead.json` lists the kernels that profiling,
planning and training usually call, in the order in which they do. When the first of them is
missing, helper processes start, which compile the others, the last ones first, and keep them; who
needs one that a helper is at waits for it. Helpers end with the list, or with who started them.
ROWTIER_HELPERS=0 in the environment does without.
"""

from __future__ import annotations

import functools
import json
import math
import os
import sys
from importlib import resources
from pathlib import Path
from typing import Any

from rowtier.jit import store

MOST = 6  # helpers: the longest of the kernels takes about as long as all others on seven cores
_RUN = "from rowtier.jit.helper import main; main()"


@functools.cache
def listed() -> dict[str, Any]:
    """The list: `kernels`, each with its types of arguments, and `cpu_s`, what all of them take."""
    text = (resources.files(__package__) / "ahead.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def helpers() -> int:
    """How many helpers there may be."""
    asked = os.environ.get("ROWTIER_HELPERS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return int(asked) if asked.isdecimal() else max(0, min((cores or 1) - 1, MOST))


def expected_s() -> float:
    """About how long compiling all that is listed takes."""
    return math.ceil(float(listed()["cpu_s"]) / (1 + helpers()))


@functools.cache
def _started() -> list[int]:
    """The helpers of this process, by process id."""
    return []


def start_helpers(kernel: str) -> None:
    """Start them if a listed kernel is missing, unless they run already."""
    if _started() or not _can_start() or kernel not in {name for name, _ in listed()["kernels"]}:
        return
    for slot in range(helpers()):
        if store.claim(f"helper {slot}"):
            store.release(f"helper {slot}")  # for the helper to claim
            _started().append(_spawn(slot))


def _can_start() -> bool:
    """Whether there is a Python to start, and what it keeps would be found."""
    is_python = Path(sys.executable or "").name.startswith("python")
    return hasattr(os, "posix_spawn") and is_python and store.is_shared()


def _spawn(slot: int) -> int:
    """Start a helper. Not by `subprocess`, which wants to be told of every end."""
    home = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH", ""))))
    nowhere = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", _RUN, str(slot), str(os.getpid())],
        {**os.environ, "PYTHONPATH": path, "ROWTIER_HELPERS": "0"},
        file_actions=nowhere,
    )
