"""Drawn cases through triton's interpreter, guarded, in a process of their own.

The interpreter has to be chosen before triton is imported, so `run_interpreter` starts

    TRITON_INTERPRET=1 python -m rowtier.runtime.device.interpreted COUNT SEED

which writes a line of JSON for every case, and a last one with what the launches were.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Variant = tuple[str, tuple[str, ...], tuple[tuple[str, Any], ...]]  # kernel, types, constants


@dataclass
class Interpreted:
    """What a run of the interpreter found."""

    cases: int = 0
    mismatches: list[str] = field(default_factory=list)
    races: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    launches: int = 0
    variants: list[Variant] = field(default_factory=list)

    @property
    def troubles(self) -> list[str]:
        """All that should not be."""
        return [*self.mismatches, *self.races, *self.outside]


def run_interpreter(
    count: int, seed: int = 0, progress: Callable[[float], None] = lambda _share: None
) -> Interpreted:
    """Run so many cases; a process that dies has a mismatch."""
    command = [sys.executable, "-m", __name__, str(count), str(seed)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    found = Interpreted()
    with (
        tempfile.TemporaryFile("w+") as errors,  # a pipe that nobody reads would fill up
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as child,
    ):
        try:
            _follow(child, found, count, progress)
        except BaseException:
            child.kill()
            raise
        child.wait()
        errors.seek(0)
        said = errors.read()
    if child.returncode or found.cases < count:
        last = (said.strip().splitlines() or ["no word"])[-1]
        found.mismatches.append(f"the interpreter ended after {found.cases} cases: {last}")
    return found


def _follow(
    child: subprocess.Popen[str], found: Interpreted, count: int, progress: Callable[[float], None]
) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("{"):
            _take(found, json.loads(line))
            progress(min(1.0, found.cases / count))


def _take(found: Interpreted, said: dict[str, Any]) -> None:
    if "case" in said:
        found.cases += 1
        found.mismatches += [said["differs"]] if said["differs"] else []
        return
    found.races, found.outside, found.launches = said["races"], said["outside"], said["launches"]
    found.variants = [
        (name, tuple(types), tuple((key, value) for key, value in constants))
        for name, types, constants in said["variants"]
    ]


def type_of(arg: Any) -> str:
    """An argument's type as triton's compiler calls it."""
    import torch

    names = {
        torch.float32: "fp32", torch.float16: "fp16", torch.int16: "i16", torch.int32: "i32",
        torch.int64: "i64",
    }  # fmt: skip
    if isinstance(arg, torch.Tensor):
        return f"*{names[arg.dtype]}"
    return "fp32" if isinstance(arg, float) else "i32" if abs(arg) < 2**31 else "i64"


def main() -> None:
    """Run the cases that the command line asks for."""
    from rowtier.runtime.device.checks import draw_cases
    from rowtier.runtime.device.guard import Guard
    from rowtier.runtime.device.triton_launch import TritonKernels

    warnings.simplefilter("ignore")  # fp16 overflows to infinity, and numpy says so
    guard, variants = Guard(), set[Variant]()

    def watch(
        kernel: Any, args: tuple[Any, ...], constants: dict[str, Any]
    ) -> contextlib.AbstractContextManager[None]:
        name = kernel.fn.__name__
        variants.add((name, tuple(map(type_of, args)), tuple(sorted(constants.items()))))
        return guard.launch(name, args)

    kernels = TritonKernels(watch)
    with guard.watching():
        for case in draw_cases(int(sys.argv[1]), int(sys.argv[2])):
            differs = case.differs(kernels)
            print(json.dumps({"case": case.operation, "differs": differs}), flush=True)
    last = {
        "races": guard.races, "outside": guard.outside, "launches": guard.launches,
        "variants": sorted(variants, key=str),
    }  # fmt: skip
    print(json.dumps(last), flush=True)


if __name__ == "__main__":
    main()
