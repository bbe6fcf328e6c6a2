"""Who measures: one process alone, or the processes that torchrun started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from rowtier.errors import RowtierError, UserError

R = TypeVar("R")

TIMEOUT_S = 60.0
NODE, CLUSTER = "node", "cluster"


@dataclass(frozen=True)
class Job:
    """The processes that measure together, and which of them this one is."""

    rank: int = 0
    world: int = 1
    local_world: int = 1

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Job:
        """The job that torchrun describes in the environment; alone if there is none."""
        if environment.get("WORLD_SIZE", "1") == "1":
            return cls()
        job = cls(*(_number(environment, k) for k in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")))
        if job.local_world < 1 or job.world % job.local_world or not 0 <= job.rank < job.world:
            raise UserError(
                f"RANK {job.rank}, WORLD_SIZE {job.world} and LOCAL_WORLD_SIZE {job.local_world} "
                "do not fit together: start as many processes on every node, with torchrun"
            )
        return job

    @property
    def levels(self) -> tuple[tuple[str, int], ...]:
        """Names and sizes of the levels, from the device outwards; groups of one are none."""
        levels = ((NODE, self.local_world), (CLUSTER, self.world // self.local_world))
        return tuple((name, size) for name, size in levels if size > 1)

    def groups(self, level: str) -> list[list[int]]:
        """The ranks that talk to each other through a level's links, in every group at once."""
        inside = self.local_world
        if level == NODE:
            return [list(range(at, at + inside)) for at in range(0, self.world, inside)]
        return [list(range(at, self.world, inside)) for at in range(inside)]


def _number(environment: Mapping[str, str], key: str) -> int:
    text = environment.get(key, "")
    if not text.isdecimal():
        raise UserError(
            f"{key} is {text!r} in the environment beside WORLD_SIZE "
            f"{environment['WORLD_SIZE']!r}: start with torchrun, which sets all of them, or "
            "unset WORLD_SIZE to measure this process alone"
        )
    return int(text)


@contextlib.contextmanager
def joined(job: Job) -> Iterator[None]:
    """Join the job's processes with gloo, and part again; what fails on the way is explained."""
    if job.world == 1:
        yield
        return
    try:
        import torch.distributed as dist
    except ImportError:
        raise UserError(
            f"links between {job.world} processes are measured with torch, which is not "
            'installed: pip install "rowtier[torch]", or measure one process alone, '
            "without torchrun"
        ) from None
    try:
        dist.init_process_group("gloo", rank=job.rank, world_size=job.world, timeout=patience())
        yield
    except (RuntimeError, ValueError) as error:
        if isinstance(error, RowtierError):
            raise
        raise UserError(
            f"rank {job.rank} of {job.world} lost the others ({_first_line(error)}); check that "
            "all are running, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME"
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def patience() -> timedelta:
    """How long a rank waits for the others; every group must be told, or it waits half an hour."""
    return timedelta(seconds=TIMEOUT_S)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def together(job: Job, work: Callable[[], R]) -> list[R]:
    """What `work` gives on every rank; if it fails on one, all fail with that rank's reason."""
    result, trouble = _tried(work)
    if job.world == 1:
        if trouble is not None:
            raise trouble
        assert result is not None
        return [result]
    import torch.distributed as dist

    results: list[tuple[R | None, str | None]] = [(None, None)] * job.world
    dist.all_gather_object(results, (result, None if trouble is None else str(trouble)))
    for rank, (_, said) in enumerate(results):
        if said is not None:
            raise UserError(f"rank {rank}: {said}")
    return [result for result, _ in results if result is not None]


def from_first(job: Job, make: Callable[[], R]) -> R:
    """What the first rank makes, on all ranks."""
    if job.world == 1:
        return make()
    import torch.distributed as dist

    held: list[Any] = [make() if job.rank == 0 else None]
    dist.broadcast_object_list(held)
    made: R = held[0]
    return made


def _tried(work: Callable[[], R]) -> tuple[R | None, UserError | None]:
    try:
        return work(), None
    except UserError as error:
        return None, error
