"""Time messages between the ranks: all-to-all, keeping copies equal, and neighbour to neighbour.

All-to-all is the one that training uses (`runtime/exchange/wire.py`), with one peer and with all
of them; copies meet in two of them. All groups of a level measure at once, since that is how
training uses the links; between nodes all-to-all is that of all processes, with nothing for those
of their own node. One process of each node sends alone as well: if it is much faster then, a
node's processes share its link.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from statistics import median
from time import perf_counter
from typing import Any, Literal

from rowtier.calibrate.fit import Line, Round, fit_line, fit_round
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

    `one_peer` is all-to-all with a single peer, if there are more. `alone` is `neighbour` with one
    process of each such group, if there are more.
    """

    name: str
    size: int
    all_to_all: Times
    copies: Times
    neighbour: Times
    peers: int = 1
    one_peer: Times | None = None
    sharers: int = 1
    alone: Times | None = None

    def level(self) -> Level:
        """The level as a cluster file has it."""
        share = self.sharers if self.per == "group" else 1
        found = self.round
        return Level(
            name=self.name,
            size=self.size,
            bandwidth_bytes_per_s=rounded(share * self.line_rate),
            latency_s=rounded(found.latency_s),
            message_s=rounded(found.message_s),
            per=self.per,
            exchange_efficiency=rounded(self.exchange_efficiency),
            sync_efficiency=rounded(self.sync_efficiency),
        )

    @property
    def round(self) -> Round:
        """What a round of all-to-all costs, each peer and each byte."""
        times = [(self.peers, self.all_to_all)]
        if self.one_peer is not None:
            times.append((1, self.one_peer))
        points = [
            (peers, sent_bytes, time_s)
            for peers, found in times
            for sent_bytes, time_s in zip(found.sent_bytes, found.times_s, strict=True)
        ]
        return fit_round(points)

    @property
    def line_rate(self) -> float:
        """The most bytes per second that anything reached."""
        return max(self.exchange_rate, self.sync_rate, _rate(self.neighbour))

    @property
    def exchange_rate(self) -> float:
        """Bytes per second of all-to-all, beside its latency and messages."""
        return self.round.bandwidth_bytes_per_s

    @property
    def sync_rate(self) -> float:
        """The same of keeping copies equal, as the longest messages of both differ."""
        return self.exchange_rate * _rate(self.copies) / _rate(self.all_to_all)

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
    def exchange_efficiency(self) -> float:
        """What all-to-all reaches of the bandwidth in the cluster file."""
        return self.exchange_rate / self.line_rate

    @property
    def sync_efficiency(self) -> float:
        """What keeping copies equal reaches of it."""
        return self.sync_rate / self.line_rate

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "size": self.size,
            "all_to_all": self.all_to_all.to_dict(),
            "copies": self.copies.to_dict(),
            "neighbour": self.neighbour.to_dict(),
            "per": self.per,
            "peers": self.peers,
            **{
                name: times.to_dict()
                for name, times in (("one_peer", self.one_peer), ("alone", self.alone))
                if times is not None
            },
        }


def _rate(times: Times) -> float:
    """Bytes per second of the longest message, which noise touches least."""
    return times.sent_bytes[-1] / times.times_s[-1]


def steps(job: Job) -> int:
    """How often `time_links` ticks."""
    more = sum((_sharers(job, n) > 1) + (_peers(job, n, size) > 1) for n, size in job.levels)
    return (3 * len(job.levels) + more) * len(MESSAGE_BYTES)


def time_links(job: Job, tick: Tick) -> tuple[LinkTimes, ...]:
    """Time every level's links; all ranks return the same, the slowest rank's figures."""
    return tuple(_time_level(job, name, size, tick) for name, size in job.levels)


def _time_level(job: Job, name: str, size: int, tick: Tick) -> LinkTimes:
    import torch.distributed as dist

    mine: Any = None
    for ranks in job.groups(name):  # every rank takes part in making every group
        group = dist.new_group(ranks, timeout=patience())
        if job.rank in ranks:
            mine = _met(group, ranks, ranks.index(job.rank))
    sharers, peers, one_peer, alone = _sharers(job, name), _peers(job, name, size), None, None
    every = mine if sharers == 1 else _everyone(job)
    exchange = _time_kind(every, partial(_all_to_all, peers=peers), tick)
    if peers > 1:
        one_peer = _time_kind(every, partial(_all_to_all, peers=1), tick)
    copies, neighbour = (_time_kind(mine, kind, tick) for kind in (_copies, _neighbour))
    if sharers > 1:
        alone = _time_kind(replace(mine, active=0 in mine.ranks), _neighbour, tick)
    return LinkTimes(name, size, exchange, copies, neighbour, peers, one_peer, sharers, alone)


def _peers(job: Job, level: str, size: int) -> int:
    """Processes that all-to-all sends to at a level."""
    return (size - 1) * _sharers(job, level)


def _sharers(job: Job, level: str) -> int:
    """Processes of a node, which may share its link to the others; a process shares none."""
    return job.local_world if level == CLUSTER else 1


def _everyone(job: Job) -> _LinkGroup:
    """All processes; those of the own node are sent nothing."""
    import torch.distributed as dist

    return _met(dist.group.WORLD, list(range(job.world)), job.rank, job.local_world)


def _met(handle: Any, ranks: list[int], position: int, together: int = 1) -> _LinkGroup:
    """A group whose ranks have found each other as they do in training."""
    from rowtier.runtime.exchange.neighbours import Neighbours
    from rowtier.runtime.exchange.sockets import Sockets

    near = Neighbours.meet(handle)
    return _LinkGroup(handle, ranks, position, together, True, near, Sockets.meet(handle, near))


@dataclass(frozen=True)
class _LinkGroup:
    handle: Any
    ranks: list[int]
    position: int
    together: int = 1  # positions in a row that all-to-all sends nothing to each other
    active: bool = True  # False: only waits for those that measure
    neighbours: Any = None  # whose memory is read
    sockets: Any = None  # None: gloo carries everything

    @property
    def size(self) -> int:
        return len(self.ranks)

    def targets(self, position: int, peers: int) -> list[int]:
        """The next peers of a position, without those that it sends nothing."""
        node, place = divmod(position, self.together)
        nodes = self.size // self.together
        others = [
            (node + further) % nodes * self.together + (place + beside) % self.together
            for further in range(1, nodes)
            for beside in range(self.together)
        ]
        return others[:peers]


def _time_kind(group: _LinkGroup, kind: _Kind, tick: Tick) -> Times:
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


def _time(group: _LinkGroup, send: _Send) -> float:
    """The median time over repeats of the slowest rank."""
    _samples(group, send, 1)  # connections are made and memory is touched
    first_s = _samples(group, send, 1)[0]
    repeats = max(LEAST_REPEATS, min(MOST_REPEATS, int(SIZE_S / first_s)))
    return median(_samples(group, send, repeats))


def _samples(group: _LinkGroup, send: _Send, repeats: int) -> list[float]:
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


_Kind = Callable[[_LinkGroup, int], tuple[_Send, float]]


def _numbers(group: _LinkGroup, message_bytes: int) -> Any:
    import torch

    each = -(-message_bytes // NUMBER_BYTES // group.size)
    return torch.zeros(each * group.size, dtype=torch.float32)


def _all_to_all(group: _LinkGroup, message_bytes: int, peers: int) -> tuple[_Send, float]:
    import torch

    from rowtier.runtime.exchange.wire import swap_bytes

    each, here = -(-message_bytes // (peers + 1)), group.position
    sizes = [each * (p in group.targets(here, peers)) for p in range(group.size)]
    coming = [each * (here in group.targets(p, peers)) for p in range(group.size)]
    going = torch.zeros(sum(sizes), dtype=torch.uint8)
    arrived = torch.empty_like(going)
    sent, got = (
        [[part.numpy()] for part in whole.split(parts)]
        for whole, parts in ((going, sizes), (arrived, coming))
    )

    def send() -> None:
        if group.sockets is not None:
            group.sockets.swap(sent, got)
        else:
            swap_bytes(group.handle, arrived, going, coming, sizes, group.neighbours)

    return send, float(going.nbytes)


def _copies(group: _LinkGroup, message_bytes: int) -> tuple[_Send, float]:
    """Every part of some gradients travels out to be summed, and back."""
    send, sent_bytes = _all_to_all(group, message_bytes, group.size - 1)

    def both() -> None:
        send()
        send()

    return both, 2 * sent_bytes


def _neighbour(group: _LinkGroup, message_bytes: int) -> tuple[_Send, float]:
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
