"""A pretend accelerator: a torch device in Python that is as strict as a real one.

Its tensors compute on the host, but they refuse to meet host tensors, to become numpy arrays and
to tell their address; every operation that would make the host wait for a GPU is noted with the
line that asked for it; and sums that a GPU makes with atomics are added in a random order. So code
that is right here has no hidden copies, no hidden stops and no sums that depend on luck.

torch takes one such device a process, for good, so cases run in a process of their own:

    python -m rowtier.runtime.device.pretend COUNT SEED
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

NAME = "pretend"
aten: Any = torch.ops.aten
# What a GPU cannot answer before it has worked: sizes that depend on values, and values.
_STOPS = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten._unique2.default,
    aten.unique_consecutive.default, aten.unique_dim.default, aten.masked_select.default,
    aten.is_nonzero.default, aten.equal.default, aten.bincount.default,
    aten.repeat_interleave.Tensor, aten.repeat_interleave.self_Tensor,
}  # fmt: skip
_ADDS_AT = {
    aten.index_add_.default, aten.index_add.default, aten.scatter_add_.default,
    aten.scatter_add.default,
}  # fmt: skip
_FACTORIES = (
    "empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step",
    "randperm",
)  # fmt: skip


class HostStop(NamedTuple):
    """An operation that made the host wait, and the line that asked for it."""

    operation: str
    where: str


class PretendTensor(Tensor):  # type: ignore[misc]
    """A tensor of the pretend accelerator; its numbers lie in `held`."""

    held: Tensor
    stops: ClassVar[list[HostStop]] = []

    @staticmethod
    def __new__(cls: Any, held: Tensor) -> Any:
        """Put a host tensor, which nobody else may hold, on the device."""
        made = Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(),
            dtype=held.dtype, device=torch.device(NAME, 0),
        )  # fmt: skip
        made.held = held
        return made

    def __repr__(self) -> str:
        return f"<PretendTensor {tuple(self.shape)} {self.dtype}>"

    def numpy(self, *_args: Any, **_kw: Any) -> Any:
        """Refuse, as a GPU's tensor does."""
        raise TypeError(f"a tensor of {NAME} is no numpy array: copy it to the host first")

    def data_ptr(self) -> int:
        """Refuse: the host has no business there."""
        raise RuntimeError(f"the host must not touch the memory of {NAME}")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is aten._to_copy.default:
            return _moved(func, args, kwargs)
        if func is aten.copy_.default:
            return _copied_over(*args[:2])
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and not isinstance(leaf, cls) and leaf.dim():
                raise RuntimeError(
                    f"{func} at {_where()} mixes tensors of {NAME} with tensors of the host"
                )
        if func in _STOPS or _picks_by_flags(func, args):
            _note(func)
        if func in _ADDS_AT:
            args = _in_any_order(args)
        elif func is aten.index_put_.default and len(args) > 3 and args[3]:
            raise RuntimeError(f"{func} at {_where()}: floats are added by atomics")
        if "device" in kwargs:
            kwargs["device"] = "cpu"
        found = func(*_held(args), **_held(kwargs))
        if func is aten._local_scalar_dense.default:
            return found
        if func._schema.name.endswith("_") and isinstance(args[0], cls):
            return args[0]
        return tree_map_only(Tensor, lambda one: one if isinstance(one, cls) else cls(one), found)


def _held(value: Any) -> Any:
    return tree_map_only(PretendTensor, lambda one: one.held, value)


def _moved(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A copy: of another type, or to the other side."""
    target = torch.device(kwargs.get("device") or NAME)
    found = func(*_held(args), **{**kwargs, "device": "cpu"})
    if target.type != "cpu":
        return PretendTensor(found)
    if not kwargs.get("non_blocking"):
        _note(func)
    return found


def _copied_over(to: Tensor, come: Tensor) -> Tensor:
    if isinstance(come, PretendTensor) and not isinstance(to, PretendTensor):
        _note(aten.copy_.default)
    _held(to).copy_(_held(come))
    return to


def _picks_by_flags(func: Any, args: Any) -> bool:
    """Whether an index is made of flags: how many are set, only the device knows."""
    if func not in (aten.index.Tensor, aten.index_put_.default):
        return False
    kinds = (torch.bool, torch.uint8)
    return any(index is not None and index.dtype in kinds for index in args[1])


def _in_any_order(args: Any) -> Any:
    """The arguments of a sum by atomics, its terms in a random order."""
    to, dim, index, source, *rest = args
    if not source.held.numel():
        return args
    order = torch.randperm(source.held.shape[dim])
    at = dim if index.held.dim() > 1 else 0
    shuffled = (PretendTensor(index.held.index_select(at, order)),)
    return (to, dim, *shuffled, PretendTensor(source.held.index_select(dim, order)), *rest)


def _note(func: Any) -> None:
    PretendTensor.stops.append(HostStop(str(func), _where()))


def _where() -> str:
    """The line outside of torch, of this file and of what copies for others that is being run."""
    frame = inspect.currentframe()
    while frame is not None:
        name = frame.f_code.co_filename
        through = name == __file__ or name.endswith("/device/side.py")
        if not through and "/torch/" not in name and not name.startswith("<"):
            return f"{name.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown"


class PretendStream:
    """The only stream there is, in which everything is done at once."""

    def synchronize(self) -> None:
        """Everything is done."""


@cache
def install() -> torch.device:
    """Have torch know the device; once a process, and for good."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _setup_privateuseone_for_python_backend(NAME)
        library = torch.library.Library("aten", "IMPL")
        for name in _FACTORIES:
            base, _, overload = name.partition(".")
            made = _factory(getattr(getattr(aten, base), overload or "default"))
            library.impl(name, made, "PrivateUse1")
    module, stream = getattr(torch, NAME), PretendStream()
    module.current_stream, module.stream = lambda *_: stream, nullcontext
    install.library = library  # type: ignore[attr-defined]  # what is dropped is taken back
    return torch.device(NAME, 0)


def _factory(operation: Any) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        return PretendTensor(operation(*args, **{**kwargs, "device": "cpu"}))

    return make


@dataclass
class Pretended:
    """What cases on the pretend accelerator came to."""

    cases: int = 0
    mismatches: list[str] = field(default_factory=list)
    stops: dict[str, int] = field(default_factory=dict)  # most host stops in a call, by operation


def run_pretend(count: int, seed: int = 0) -> Pretended:
    """Run so many cases of all operations, torch's own, in a process of their own."""
    command = [sys.executable, "-m", __name__, str(count), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return Pretended(0, [f"the pretend accelerator ended: {last}"])
    return Pretended(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Run the cases that the command line asks for."""
    from rowtier.runtime.device.checks import draw_cases
    from rowtier.runtime.kernels.plain import PlainKernels

    device, found, most = install(), Pretended(), Counter[str]()
    for case in draw_cases(int(sys.argv[1]), int(sys.argv[2])):
        PretendTensor.stops.clear()
        differs = case.differs(PlainKernels(), str(device))
        stops = [stop for stop in PretendTensor.stops if not stop.where.startswith("checks.py")]
        most[case.operation] = max(most[case.operation], len(stops))
        found.cases += 1
        found.mismatches += [differs] if differs else []
    found.stops = dict(most)
    print(json.dumps(vars(found)))


if __name__ == "__main__":
    main()
