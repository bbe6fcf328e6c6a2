"""Kernels compiled for GPUs that are not there, and what is wrong with the code.

Variants are those that launches had (`interpreted.py`): types and constants, with and without the
alignment that torch's allocations have. The compiler runs in a process of its own, as it may abort:

    python -m rowtier.runtime.device.compiling

takes a list of jobs on standard input and writes a line of JSON for each.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rowtier.runtime.device.interpreted import Variant

TARGETS: dict[str, tuple[str, Any, int]] = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
APPROXIMATE = r"\b(?:div|sqrt|rsqrt|rcp)\.(?:approx|full)[\w.]*|\b\w+[\w.]*\.ftz[\w.]*"
FUSED = r"\bfma\.[\w.]*f32\b|\bv_(?:pk_)?(?:fma|fmac|mad|mac)\w*_f32\w*"
PRODUCT_32 = r"arith\.muli .*: (?:i32|tensor<[^>]*xi32>)"
FOUND = ("failures", "spills", "approximate", "fused", "overflows")
MOST_PER_PROCESS = 40  # memory that the compiler does not give back


@dataclass
class Compiled:
    """What compiling found; every list is empty if all is well."""

    kernels: set[str] = field(default_factory=set)
    targets: tuple[str, ...] = ()
    compiled: int = 0
    failures: list[str] = field(default_factory=list)
    spills: list[str] = field(default_factory=list)
    approximate: list[str] = field(default_factory=list)
    fused: list[str] = field(default_factory=list)
    overflows: list[str] = field(default_factory=list)

    @property
    def troubles(self) -> list[str]:
        """All that should not be."""
        return [*self.failures, *self.spills, *self.approximate, *self.fused, *self.overflows]


def compile_all(
    variants: Sequence[Variant],
    targets: Sequence[str] = tuple(TARGETS),
    alignments: Sequence[bool] = (False, True),
    progress: Callable[[float], None] = lambda _share: None,
) -> Compiled:
    """Compile variants for every target."""
    found = Compiled({name for name, *_ in variants}, tuple(targets))
    jobs = [(t, a, *v) for t in targets for a in alignments for v in variants]
    done = 0
    while done < len(jobs):
        done += _compile_some(jobs[done : done + MOST_PER_PROCESS], found)
        progress(done / len(jobs))
    return found


def _compile_some(jobs: Sequence[Any], found: Compiled) -> int:
    """Compile in one process; how many jobs are done, one that ended it included."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    child = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(jobs), env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    done = 0
    for line in child.stdout.splitlines():
        if line.startswith("{"):
            said = json.loads(line)
            done += 1
            found.compiled += not said["failures"]
            for name in FOUND:
                getattr(found, name).extend(f"{said['what']}: {entry}" for entry in said[name])
    if done < len(jobs):
        last = (child.stderr.strip().splitlines() or ["no word"])[-1]
        found.failures.append(f"{_name(*jobs[done])}: the compiler ended: {last}")
        done += 1
    return done


def _name(target: str, aligned: bool, kernel: str, _types: Any, constants: Any) -> str:
    said = ", ".join(f"{name}={value}" for name, value in constants)
    return f"{target} {kernel}({said}){' aligned' if aligned else ''}"


def main() -> None:
    """Compile what standard input lists."""
    for job in json.load(sys.stdin):
        print(json.dumps({"what": _name(*job), **_compile(*job)}), flush=True)


def _compile(
    target: str, aligned: bool, kernel: str, types: list[str], constants: list[Any]
) -> dict[str, list[str]]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from rowtier.runtime.device import triton_kernels
    from rowtier.runtime.device.triton_launch import OPTIONS_OF

    loop = getattr(triton_kernels, kernel)
    values = dict(constants)
    signature = dict(zip(loop.arg_names, types, strict=False)) | dict.fromkeys(values, "constexpr")
    attrs: Any = {}
    if aligned:
        whole = [i for i, kind in enumerate(types) if kind.startswith(("*", "i"))]
        attrs = {(i,): [["tt.divisibility", 16]] for i in whole}
    source = ASTSource(loop, signature, values, attrs)
    try:
        of = GPUTarget(*TARGETS[target])
        made = triton.compile(source, target=of, options=dict(OPTIONS_OF[of.backend]))
    except Exception as error:  # whatever the compiler raises is a finding
        said = f"{type(error).__name__}: {error}"[:300]
        return {key: [said] if key == "failures" else [] for key in FOUND}
    ptx = made.asm.get("ptx", "")
    return {
        "failures": [],
        "spills": _spills(made),
        "approximate": sorted(set(re.findall(APPROXIMATE, ptx))),
        "fused": sorted(set(re.findall(FUSED, ptx or _without_division(made.asm["amdgcn"])))),
        "overflows": sorted(set(re.findall(PRODUCT_32, made.asm["ttir"]))),
    }


def _without_division(code: str) -> str:
    """AMD's code, if it neither divides nor takes roots: those are made of fused operations."""
    return "" if re.search(r"\bv_(?:rcp|rsq|sqrt)", code) else code


def _spills(made: Any) -> list[str]:
    """What a kernel keeps in memory because it has too few registers."""
    if "cubin" not in made.asm:
        names = (".vgpr_spill_count", ".sgpr_spill_count", ".private_segment_fixed_size")
        counts = {name: re.search(rf"{name}:\s+(\d+)", made.asm["amdgcn"]) for name in names}
        said = {name: count[1] if count else "unknown" for name, count in counts.items()}
        return [f"{name} {count}" for name, count in said.items() if count != "0"]
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        told = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=False
        ).stdout
    usage = re.search(r"STACK:(\d+).* LOCAL:(\d+)", told)
    if usage is None:
        return ["no usage of registers was found"]
    return [] if usage[1] == usage[2] == "0" else [usage[0]]


if __name__ == "__main__":
    main()
