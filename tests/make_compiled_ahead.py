"""Write src/rowtier/jit/ahead.json: the kernels that the first script of docs/training.md calls.

Run it after a kernel of the usual path is added, renamed or given other arguments:
`python tests/make_compiled_ahead.py`. The script is run on one rank and on two. What only two
ranks need stands first: helpers begin at the end of the list.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIST = ROOT / "src" / "rowtier" / "jit" / "ahead.json"
# These import it: helpers do not.
NEEDS_TORCH = ("rowtier.runtime.store.storage", "rowtier.runtime.optim")

Called = list[list[Any]]  # kernels and their types of arguments


def first_script() -> str:
    """The first Python block of docs/training.md."""
    page = (ROOT / "docs" / "training.md").read_text()
    return re.findall(r"```python\n(.*?)```", page, re.S)[0]


def said_of(kind: Any) -> Any:
    """A type of numba's in the words of the list."""
    from numba import types

    if isinstance(kind, types.BaseNamedTuple):
        of = kind.instance_class
        return [f"{of.__module__}:{of.__qualname__}", *map(said_of, kind.types)]
    if isinstance(kind, types.Array):
        assert kind.aligned
        readonly = "" if kind.mutable else " readonly"
        return f"{said_of(kind.dtype)} {kind.ndim} {kind.layout}{readonly}"
    return str(kind)


def calls_of(script: str) -> tuple[Called, float]:
    """The kernels that a script calls, in order, and the CPU time of compiling, in this process."""
    from rowtier.jit import kernel

    found: Called = []
    depth, spent = [0], [0.0]
    plain = kernel.Kernel.compile

    def compile_and_note(self: Any, sig: Any) -> Any:
        if not depth[0]:
            found.append([kernel.name_of(self.py_func), [said_of(one) for one in sig]])
        depth[0] += 1
        began = time.process_time()
        try:
            return plain(self, sig)
        finally:
            depth[0] -= 1
            spent[0] += 0 if depth[0] else time.process_time() - began

    kernel.Kernel.compile = compile_and_note  # type: ignore[method-assign]
    try:
        exec(compile(script, "first script", "exec"), {"__name__": "__main__"})
    finally:
        kernel.Kernel.compile = plain  # type: ignore[method-assign]
    return found, spent[0]


def run(ranks: int, cache: str) -> tuple[Called, float]:
    """What so many ranks call and compile, if nothing is compiled yet."""
    output = Path(cache) / f"{ranks}.json"
    start = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    environment = {**os.environ, "NUMBA_CACHE_DIR": f"{cache}/{ranks}", "ROWTIER_HELPERS": "0"}
    command = [sys.executable, *start, __file__, str(output)]
    subprocess.run(command, check=True, env=environment)
    found, seconds = json.loads(output.read_text())
    return found, seconds


def listing() -> dict[str, Any]:
    """What belongs in the list."""
    with tempfile.TemporaryDirectory() as cache:
        (alone, seconds), (two, _) = run(1, cache), run(2, cache)
    calls = [one for one in two if one not in alone] + alone
    kernels = [one for one in calls if not one[0].startswith(NEEDS_TORCH)]
    return {"cpu_s": round(seconds), "kernels": kernels}


def main() -> None:
    if len(sys.argv) > 1:
        found = calls_of(first_script())
        if os.environ.get("RANK", "0") == "0":
            Path(sys.argv[1]).write_text(json.dumps(found))
        return
    data = listing()
    lines = ",\n".join(f"    {json.dumps(one)}" for one in data["kernels"])
    LIST.write_text(f'{{\n  "cpu_s": {data["cpu_s"]},\n  "kernels": [\n{lines}\n  ]\n}}\n')


if __name__ == "__main__":
    main()
