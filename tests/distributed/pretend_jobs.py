"""Training on the pretend accelerator, and how often the host waits for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jobs
import torch.distributed as dist

from rowtier import Plan
from rowtier.runtime.device.pretend import NAME, HostStop, PretendTensor, install
from rowtier.runtime.exchange.wire import Wire

HOP = "hop"
CALLS = ("swap_all", "swap_beside", "swap_unknown", "swap_fixed")


def train(
    rank: int, group: dist.ProcessGroup | None, plan: Plan, weights: dict[str, Any],
    steps: Any, grads: Any, follow: float, options: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """What `jobs.train` does, on the device, with the most stops of the host between two hops."""
    install()
    with hops_noted() as stops:
        args = (rank, group, plan, weights, steps, grads, follow, {**options, "device": NAME})
        found = jobs.train(*args)
        found["stops"] = most_stops_between_hops(stops)
    return found


@contextmanager
def hops_noted() -> Iterator[list[HostStop]]:
    """Note among the stops where ranks exchange something; gives all of them."""
    PretendTensor.stops.clear()
    before = {name: getattr(Wire, name) for name in CALLS}

    def noting(call: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            PretendTensor.stops.append(HostStop(HOP, ""))
            return call(*args, **kwargs)

        return noted

    try:
        for name, call in before.items():
            setattr(Wire, name, noting(call))
        yield PretendTensor.stops
    finally:
        for name, call in before.items():
            setattr(Wire, name, call)


def most_stops_between_hops(stops: Sequence[HostStop]) -> list[str]:
    """What made the host wait for the device between two hops, where it did so most often.

    `plain.py` is written to be read, and stops where triton's kernels do not; a test looks at
    outputs, and at rows in the end.
    """
    most: list[str] = []
    here: list[str] = []
    for stop in stops:
        if stop.operation == HOP:
            here = []
        elif not stop.where.startswith(("plain.py:", "cut.py:", "jobs.py:", "device_memory.py:")):
            here.append(f"{stop.operation} at {stop.where}")
            most = max(most, list(here), key=len)
    return most
