"""TorchRec, fbgemm and torch are built for each other: look before anything breaks."""

from __future__ import annotations

import importlib
import warnings
from importlib.metadata import PackageNotFoundError, version

from rowtier.errors import UserError

WANTED = {"torch": "2.13.0", "fbgemm-gpu-cpu": "1.8.0", "torchrec": "1.8.0"}
FBGEMM = ("fbgemm-gpu-cpu", "fbgemm-gpu")  # the build for CPUs, the build for CUDA
TORCH_AHEAD = 5  # TorchRec 1.n is built for torch 2.(n + 5)


def require() -> None:
    """Import TorchRec, or say which three versions are there and which fit together."""
    found = installed()
    problem = mismatch(found)
    if problem is None:
        problem = _import_problem()
    if problem is not None:
        raise UserError(f"{problem}; there are {_listed(found)}: {fix()}")


def installed() -> dict[str, str | None]:
    """The versions that are installed, None where a package is not."""
    fbgemm = [found for name in FBGEMM if (found := _version(name)) is not None]
    return {
        "torch": _version("torch"),
        "fbgemm": fbgemm[0] if fbgemm else None,
        "torchrec": _version("torchrec"),
    }


def mismatch(found: dict[str, str | None]) -> str | None:
    """What is wrong with three versions, in words; None if they fit together."""
    missing = [name for name, number in found.items() if number is None]
    if missing:
        return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
    torch, fbgemm, torchrec = (_release(str(number)) for number in found.values())
    if fbgemm != torchrec:
        return "fbgemm and torchrec are of different releases"
    if torchrec[0] == 1 and torch != (2, torchrec[1] + TORCH_AHEAD):
        return f"this torchrec is built for torch 2.{torchrec[1] + TORCH_AHEAD}"
    return None


def fix() -> str:
    """How to get three that fit together."""
    torch, fbgemm, torchrec = (f"{name}=={number}" for name, number in WANTED.items())
    return (
        f"install {torch}, {fbgemm} (fbgemm-gpu=={WANTED['fbgemm-gpu-cpu']} on CUDA) and "
        f"{torchrec}, the last with --no-deps on a CPU"
    )


def _import_problem() -> str | None:
    try:
        with warnings.catch_warnings():
            # fbgemm warns of every kernel that its CPU build leaves out.
            warnings.simplefilter("ignore")
            importlib.import_module("torchrec.distributed.planner.estimator")
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return f"TorchRec does not import ({type(error).__name__}: {str(error)[:200]})"
    return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _release(number: str) -> tuple[int, int]:
    """Major and minor version; -1 for what is no number."""
    parts = [int(part) if part.isdigit() else -1 for part in number.split(".")[:2]]
    return (parts[0], parts[1]) if len(parts) == 2 else (parts[0], -1)


def _listed(found: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {number or 'none'}" for name, number in found.items())
