"""What `rowtier doctor` looks at: versions, devices, kernels against the host's bits, memory."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from rowtier.runtime.device.checks import draw_cases
from rowtier.runtime.kernels.plain import PlainKernels
from rowtier.runtime.kernels.protocol import OPERATIONS, Kernels

PACKAGES = ("rowtier", "torch", "triton", "numba", "numpy")
PER_OPERATION = {"host": 10, "device": 20, "interpreter": 2}
TARGETS = ("sm_90", "gfx942")  # compiled for where there is no GPU: one of each maker
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Check:
    """Something that was tried so many times, and what was wrong."""

    what: str
    where: str
    cases: int
    troubles: Sequence[str]


@dataclass
class Health:
    """All that was found."""

    versions: dict[str, str | None]
    devices: list[dict[str, Any]]
    checks: list[Check] = field(default_factory=list)
    bandwidths: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def troubles(self) -> list[str]:
        """What is wrong, with where."""
        return [f"{check.where}: {said}" for check in self.checks for said in check.troubles]

    @property
    def verdict(self) -> str:
        """The answer in one line."""
        wrong = [check for check in self.checks if check.troubles]
        if wrong:
            return f"{len(wrong)} of {len(self.checks)} checks do not hold on this machine"
        count = len(self.devices)
        where = f"on {count} GPU{'s' if count > 1 else ''}" if count else "but nothing ran on a GPU"
        return f"all {len(self.checks)} checks of {len(OPERATIONS)} operations hold, {where}"

    def to_dict(self) -> dict[str, Any]:
        """The facts, to be sent."""
        return {"verdict": self.verdict, "holds": not self.troubles, **asdict(self)}


def examine(progress: Progress = lambda _share: None) -> Health:
    """Look at this machine; takes up to two minutes."""
    health = Health(versions(), devices())
    health.checks.append(_against_host(PlainKernels(), "cpu", PER_OPERATION["host"]))
    progress(0.1)
    if importlib.util.find_spec("triton") is None:
        health.notes.append(
            "triton is not installed, so its kernels were not checked: pip install 'rowtier[cuda]'"
        )
    elif not health.devices:
        _without_gpu(health, progress)
    for number, device in enumerate(health.devices):
        _on_gpu(health, device["device"])
        progress(0.1 + 0.9 * (number + 1) / len(health.devices))
    return health


def versions() -> dict[str, str | None]:
    """Of Python and of what kernels depend on; None: not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found | {"cuda": torch.version.cuda, "hip": torch.version.hip}


def devices() -> list[dict[str, Any]]:
    """The GPUs of this machine."""
    if not torch.cuda.is_available():
        return []
    found = []
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        arch = getattr(facts, "gcnArchName", f"sm_{facts.major}{facts.minor}")
        found.append(
            {
                "device": f"cuda:{number}",
                "name": facts.name,
                "arch": arch,
                "memory_bytes": facts.total_memory,
            }
        )
    return found


def _without_gpu(health: Health, progress: Progress) -> None:
    from rowtier.runtime.device.compiling import compile_all
    from rowtier.runtime.device.interpreted import run_interpreter

    health.notes.append(
        "there is no GPU here, so triton's kernels were interpreted and compiled instead"
    )
    count = PER_OPERATION["interpreter"] * len(OPERATIONS)
    ran = run_interpreter(count, progress=lambda share: progress(0.1 + 0.3 * share))
    health.checks.append(
        Check("kernels, interpreted: bits, races, bounds", "interpreter", ran.cases, ran.troubles)
    )
    made = compile_all(ran.variants, TARGETS, [False], lambda share: progress(0.4 + 0.6 * share))
    tried = made.compiled + len(made.failures)
    for target in TARGETS:
        found = [said for said in made.troubles if said.startswith(f"{target} ")]
        health.checks.append(Check("kernels compile", target, tried // len(TARGETS), found))


def _on_gpu(health: Health, device: str) -> None:
    health.checks.append(_against_host(PlainKernels(), device, PER_OPERATION["device"]))
    if importlib.util.find_spec("triton") is None:
        return
    from rowtier.runtime.device.bandwidth import bandwidths
    from rowtier.runtime.device.triton_launch import TritonKernels

    with torch.cuda.device(device):
        health.checks.append(_against_host(TritonKernels(), device, PER_OPERATION["device"]))
    try:
        for what, rate in bandwidths(device):
            health.bandwidths.append({"device": device, "what": what, "bytes_per_s": rate})
    except Exception as error:  # too little memory, or no pinned memory: what was measured stays
        health.notes.append(f"{device}: bandwidths were not all measured ({error})")


def _against_host(kernels: Kernels, device: str, each: int) -> Check:
    """An implementation on a device against the host's loops."""
    cases = list(draw_cases(each * len(OPERATIONS), seed=2))
    troubles = [said for case in cases if (said := case.differs(kernels, device))]
    return Check(f"{kernels.name} against the host's bits", device, len(cases), troubles)
