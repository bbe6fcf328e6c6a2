"""Time messages between the ranks: all-to-all, all-reduce and neighbour to neighbour.

All-to-all is the one that training uses (`runtime/wire.py`). All groups of a level measure at
once, since that is how training uses the links; between nodes all-to-all is that of all processes,
with nothing for those of their own node. One process of each node sends alone as well: if it is
much faster then, a node's processes share its link.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from statistics import median
from time import perf_counter
from typing import Any, Literal

from rowtier.calibrate.fit import Line, fit_line
from rowtier.calibrate.job import CLUSTER, Job, patience
from rowtier.calibrate.tiers import Tick, rounded
from rowtier.cluster import Level

MESSAGE_BYTES = tuple(2**power for power in range(10, 25, 2))  # 1 KiB … 16 MiB
SIZE_S = 0.25  # spent on one size of message
LONGEST_S = 1.0  # sizes that would take longer are left out
LEAST_REPEATS, MOST_REPEATS = 3, 40
NUMBER_BYTES = 4

_Send = Callable[[], None]


@dataclass(frozen=True)
class Times:
    """Seconds of one collective, by the bytes that every rank sends."""

    sent_bytes: tuple[float, ...]
    times_s: tuple[float, ...]

    def fit(self) -> Line:
        """Latency and bandwidth."""
        return fit_line(self.sent_bytes, self.times_s)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        line = self.fit()
        return {
            "sent_bytes": list(self.sent_bytes),
            "times_s": list(self.times_s),
            "latency_s": line.latency_s,
            "bandwidth_bytes_per_s": line.bandwidth_bytes_per_s,
        }


@dataclass(frozen=True)
class LinkTimes:
    """The collectives of one level; `sharers` are the processes in a group that it joins.

    `alone` is `neighbour` with one process of each such group, if there are more.
    """

    name: str
    size: int
    all_to_all: Times
    all_reduce: Times
    neighbour: Times
    sharers: int = 1
    alone: Times | None = None

    def level(self) -> Level:
        """The level as a cluster file has it: what all-to-all, the exchange of rows, reaches."""
        line = self.all_to_all.fit()
        share = self.sharers if self.per == "group" else 1
        return Level(
            name=self.name,
            size=self.size,
            bandwidth_bytes_per_s=rounded(share * line.bandwidth_bytes_per_s),
            latency_s=rounded(line.latency_s),
            per=self.per,
        )

    @property
    def per(self) -> Literal["device", "group"]:
        """Whose the link is.

        A shared link gives one process alone as much as all together, one of its own as much
        as each: what was measured belongs to the nearer of the two.
        """
        if self.alone is None:
            return "device"
        last = min(len(times.times_s) for times in (self.alone, self.neighbour)) - 1
        faster = self.neighbour.times_s[last] / self.alone.times_s[last]
        return "group" if faster >= sqrt(self.sharers) else "device"

    @property
    def exchange_share(self) -> float:
        """Bandwidth of all-to-all over that of neighbour to neighbour."""
        return _rate(self.all_to_all) / _rate(self.neighbour)

    @property
    def sync_share(self) -> float:
        """Bandwidth of all-reduce over that of all-to-all, the bandwidth in the cluster file."""
        return _rate(self.all_reduce) / _rate(self.all_to_all)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "size": self.size,
            "all_to_all": self.all_to_all.to_dict(),
            "all_reduce": self.all_reduce.to_dict(),
            "neighbour": self.neighbour.to_dict(),
            "exchange_share": self.exchange_share,
            "sync_share": self.sync_share,
            "per": self.per,
        } | ({} if self.alone is None else {"alone": self.alone.to_dict()})


def _rate(times: Times) -> float:
    return times.fit().bandwidth_bytes_per_s


def steps(job: Job) -> int:
    """How often `time_links` ticks."""
    shared = sum(_sharers(job, name) > 1 for name, _ in job.levels)
    return (len(job.levels) * len(_KINDS) + shared) * len(MESSAGE_BYTES)


def time_links(job: Job, tick: Tick) -> tuple[LinkTimes, ...]:
    """Time every level's links; all ranks return the same, the slowest rank's figures."""
    return tuple(_time_level(job, name, size, tick) for name, size in job.levels)


def _time_level(job: Job, name: str, size: int, tick: Tick) -> LinkTimes:
    import torch.distributed as dist

    from rowtier.runtime.neighbours import Neighbours

    mine: Any = None
    for ranks in job.groups(name):  # every rank takes part in making every group
        group = dist.new_group(ranks, timeout=patience())
        if job.rank in ranks:
            near = Neighbours.meet(group)
            here = ranks.index(job.rank)
            mine = _Group(group, ranks, here, frozenset({here}), neighbours=near)
    sharers, alone = _sharers(job, name), None
    every = mine if sharers == 1 else _everyone(job)
    exchange = _time_kind(every, _all_to_all, tick)
    reduce, neighbour = (_time_kind(mine, kind, tick) for kind in (_all_reduce, _neighbour))
    if sharers > 1:
        alone = _time_kind(replace(mine, active=0 in mine.ranks), _neighbour, tick)
    return LinkTimes(name, size, exchange, reduce, neighbour, sharers, alone)


def _sharers(job: Job, level: str) -> int:
    """Processes of a node, which may share its link to the others; a process shares none."""
    return job.local_world if level == CLUSTER else 1


def _everyone(job: Job) -> _Group:
    """All processes; those of the own node are sent nothing."""
    from rowtier.runtime.neighbours import Neighbours

    first = job.rank // job.local_world * job.local_world
    own_node, near = range(first, first + job.local_world), Neighbours.meet(None)
    return _Group(None, list(range(job.world)), job.rank, frozenset(own_node), neighbours=near)


@dataclass(frozen=True)
class _Group:
    handle: Any
    ranks: list[int]
    position: int
    left_out: frozenset[int] = frozenset()  # positions that all-to-all sends nothing
    active: bool = True  # False: only waits for those that measure
    neighbours: Any = None  # whose memory is read

    @property
    def size(self) -> int:
        return len(self.ranks)


def _time_kind(group: _Group, kind: _Kind, tick: Tick) -> Times:
    sent, times = [], []
    longest_s = 0.0
    for message_bytes in MESSAGE_BYTES:
        # The next size may take four times as long; all ranks know the same figures here.
        if 4 * longest_s <= LONGEST_S:
            send, sent_bytes = kind(group, message_bytes)
            longest_s = _time(group, send)
            sent.append(sent_bytes)
            times.append(longest_s)
        tick()
    return Times(tuple(sent), tuple(times))


def _time(group: _Group, send: _Send) -> float:
    """The median time over repeats of the slowest rank."""
    _samples(group, send, 1)  # connections are made and memory is touched
    first_s = _samples(group, send, 1)[0]
    repeats = max(LEAST_REPEATS, min(MOST_REPEATS, int(SIZE_S / first_s)))
    return median(_samples(group, send, repeats))


def _samples(group: _Group, send: _Send, repeats: int) -> list[float]:
    import torch
    import torch.distributed as dist

    samples = torch.zeros(repeats, dtype=torch.float64)
    for index in range(repeats if group.active else 0):
        dist.barrier(group=group.handle)
        start = perf_counter()
        send()
        samples[index] = perf_counter() - start
    dist.all_reduce(samples, op=dist.ReduceOp.MAX)  # over the whole job: groups stay in step
    return [float(sample) for sample in samples]


_Kind = Callable[[_Group, int], tuple[_Send, float]]


def _numbers(group: _Group, message_bytes: int) -> Any:
    import torch

    each = -(-message_bytes // NUMBER_BYTES // group.size)
    return torch.zeros(each * group.size, dtype=torch.float32)


def _all_to_all(group: _Group, message_bytes: int) -> tuple[_Send, float]:
    import torch

    from rowtier.runtime.wire import swap_bytes

    each = -(-message_bytes // group.size)
    sizes = [0 if position in group.left_out else each for position in range(group.size)]
    going = torch.zeros(sum(sizes), dtype=torch.uint8)
    arrived = torch.empty_like(going)

    def send() -> None:
        swap_bytes(group.handle, arrived, going, sizes, sizes, group.neighbours)

    return send, float(going.nbytes)


def _all_reduce(group: _Group, message_bytes: int) -> tuple[_Send, float]:
    import torch.distributed as dist

    numbers = _numbers(group, message_bytes)

    def send() -> None:
        dist.all_reduce(numbers, group=group.handle)

    # What the cost model counts: every part travels out to be summed, and back.
    return send, 2 * numbers.nbytes * (group.size - 1) / group.size


def _neighbour(group: _Group, message_bytes: int) -> tuple[_Send, float]:
    import torch
    import torch.distributed as dist

    numbers = _numbers(group, message_bytes)
    arrived = torch.empty_like(numbers)
    right = group.ranks[(group.position + 1) % group.size]
    left = group.ranks[group.position - 1]

    def send() -> None:
        # Receive first: else "ready to receive" queues behind what is sent, and gloo's two
        # directions take turns.
        coming = dist.irecv(arrived, left, group=group.handle)
        going = dist.isend(numbers, right, group=group.handle)
        for work in (coming, going):
            assert work is not None, "a rank talks to members of its own group"
            work.wait()

    return send, float(numbers.nbytes)


_KINDS: tuple[_Kind, ...] = (_all_to_all, _all_reduce, _neighbour)
