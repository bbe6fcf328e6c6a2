"""The one way bytes travel between ranks: everyone sends everyone some, at once.

If a rank dies, the others' collective fails with an address nobody knows; so whoever fails
says in the job's store that it is alive, waits a moment for the others to say so too, and
names those who did not.
"""

from __future__ import annotations

import atexit
import time
from collections import Counter
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rowtier.errors import RowtierError, UserError
from rowtier.runtime.neighbours import Neighbours
from rowtier.runtime.sockets import Bytes, Sockets, timeout_of
from rowtier.runtime.world import World

Ints = NDArray[np.int64]
_GRACE_S = 5.0
_LOOK_S = 0.01  # between two looks at who has come
_LEAVE_S = 0.2  # that threads have at exit to let go of what they worked on
_DATA, _PLACE, _READ = range(3)  # what a message is: bytes, where they lie, that they were read


class LostRankError(RowtierError):
    """A collective failed because ranks are gone or do not answer."""


class Swap(NamedTuple):
    """Arrays to send and to fill: so many entries for, and from, each rank."""

    sent: NDArray[Any]
    counts: Ints
    got: NDArray[Any]
    got_counts: Ints


class Wire:
    """Collectives of a world, on host memory."""

    def __init__(
        self, world: World, near: Neighbours | None = None, sockets: Sockets | None = None
    ):
        self.world, self._near, self._sockets = world, near or Neighbours(), sockets
        if world.group is not None and dist.get_backend(world.group) == "nccl":
            raise RowtierError(
                "rows are exchanged in host memory, which nccl cannot carry: start the job with "
                'init_process_group("cpu:gloo,cuda:nccl")'
            )

    def meet(self) -> None:
        """Find out whose memory can be read, and connect; all ranks must call this."""
        if self.world.group is not None:
            _leave_in_order()
            self._near = Neighbours.meet(self.world.group)
            self._sockets = Sockets.meet(self.world.group, self._near)

    def beside(self) -> Wire:
        """A wire between the same ranks, for another thread; all ranks must call this."""
        world = self.world
        if world.group is None:
            return self
        ranks = dist.get_process_group_ranks(world.group)
        if len(ranks) < dist.get_world_size():
            raise UserError(
                f"the pipeline needs a second process group, which all {dist.get_world_size()} "
                f"ranks of the job must make, and these embeddings run on {len(ranks)} of them: "
                "use the plain loop"
            )
        group = dist.new_group(ranks, backend="gloo")
        sockets = None if self._sockets is None else Sockets.meet(group, self._near)
        return Wire(World(world.rank, world.tree, group), self._near, sockets)

    def swap(self, sent: NDArray[Any], counts: Ints, got: NDArray[Any], got_counts: Ints) -> None:
        """Send `counts[p]` entries of `sent` to each rank p, receive theirs into `got`."""
        self.swap_all([Swap(sent, counts, got, got_counts)])

    def swap_all(self, swaps: Sequence[Swap]) -> None:
        """Several of these at once."""
        if self.world.group is None:
            for swap in swaps:
                swap.got[:] = swap.sent
            return
        with self._naming_the_lost:
            if self._sockets is not None:
                self._swap_by_sockets(self._sockets, swaps)
                return
            for swap in swaps:
                self._swap_by_gloo(swap)

    def _swap_by_sockets(self, sockets: Sockets, swaps: Sequence[Swap]) -> None:
        sent = [_parts(swap.sent, swap.counts) for swap in swaps]
        got = [_parts(swap.got, swap.got_counts) for swap in swaps]
        me = self.world.rank
        for going, coming in zip(sent, got, strict=True):
            coming[me][:] = going[me]
        sockets.swap(list(zip(*sent, strict=True)), list(zip(*got, strict=True)))

    def _swap_by_gloo(self, swap: Swap) -> None:
        swap_bytes(
            self.world.group,
            torch.from_numpy(swap.got.view(np.uint8)),
            torch.from_numpy(swap.sent.view(np.uint8)),
            (swap.got_counts * swap.got.itemsize).tolist(),
            (swap.counts * swap.sent.itemsize).tolist(),
            self._near,
        )

    def swap_unknown(self, sent: Sequence[Sequence[Bytes]]) -> list[Bytes]:
        """Send every other rank some arrays, one after the other; what each sent, as one."""
        with self._naming_the_lost:
            if self._sockets is not None:
                return self._sockets.swap_unknown(sent)
        counts = np.array([sum(map(len, parts)) for parts in sent], dtype=np.int64)
        got_counts = self.swap_fixed(counts[:, None])[:, 0]
        got = np.empty(int(got_counts.sum()), dtype=np.uint8)
        parts = [part for parts in sent for part in parts]
        whole = np.concatenate([*parts, np.empty(0, dtype=np.uint8)])
        self.swap(whole, counts, got, got_counts)
        return _parts(got, got_counts)

    def swap_fixed(self, sent: NDArray[Any]) -> NDArray[Any]:
        """Every rank p gets row p, a short one; the rows that all ranks sent to this one."""
        if self.world.group is None:
            return sent.copy()
        got = np.empty_like(sent)
        if self._sockets is not None:
            counts = np.full(len(sent), sent[0].size, dtype=np.int64)
            self.swap(sent.reshape(-1), counts, got.reshape(-1), counts)
            return got
        with self._naming_the_lost:
            dist.all_to_all_single(
                *(torch.from_numpy(a.reshape(-1).view(np.uint8)) for a in (got, sent)),
                group=self.world.group,
            )
        return got

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum over all ranks, added up in their order, so that it is the same everywhere."""
        everywhere = np.tile(values, (self.world.size, 1))
        return np.asarray(np.add.reduce(self.swap_fixed(everywhere), axis=0))

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.sum(np.zeros(1))

    def agree(self, call: str) -> None:
        """Wait for all ranks to make the same call; an error names those that do not.

        Without it a rank that is alone would take whatever the others send next for an answer.
        """
        if self.world.group is None:
            return
        store = dist.PrefixStore("rowtier-calls", dist.distributed_c10d._get_default_store())
        ranks = dist.get_process_group_ranks(self.world.group)
        place = f"{'-'.join(map(str, ranks))}/{call}/{self._calls[call]}"
        keys = {rank: f"{place}/{rank}" for rank in range(self.world.size)}
        store.set(keys[self.world.rank], b"1")
        patience_s = timeout_of(self.world.group).total_seconds()
        until = time.monotonic() + patience_s
        while keys := {rank: key for rank, key in keys.items() if not store.check([key])}:
            if time.monotonic() > until:
                store.delete_key(f"{place}/{self.world.rank}")
                raise LostRankError(
                    f"{call} was called on rank {self.world.rank}, and for {patience_s:g} s not on "
                    f"rank {', '.join(map(str, keys))}: all ranks must call it together"
                )
            time.sleep(_LOOK_S)
        self._calls[call] += 1

    @cached_property
    def _calls(self) -> Counter[str]:
        """How often ranks made each call together."""
        return Counter()

    @cached_property
    def _naming_the_lost(self) -> _NamingTheLost:
        return _NamingTheLost(self)

    def name_lost(self, error: RuntimeError) -> None:
        """Raise an error that says which ranks do not answer, if there are any."""
        lost = self._lost()
        if lost is None:
            raise LostRankError(
                "ranks cannot reach each other, and the job's store does not answer either: "
                f"rank 0, or whoever keeps the store, is gone ({_first_line(error)})"
            ) from error
        if not lost:
            return
        many = len(lost) > 1
        names = ", ".join(map(str, lost))
        raise LostRankError(
            f"rank{'s' if many else ''} {names} of {self.world.size} {'are' if many else 'is'} "
            f"gone, or did not answer for {_GRACE_S:g} s after rank {self.world.rank} lost "
            "touch: look at the output of that rank, then start the job again from the last "
            f"checkpoint ({_first_line(error)})"
        ) from error

    def _lost(self) -> list[int] | None:
        """Ranks that do not say they are alive; None if the store is gone too.

        A rank of this machine may be alive and say nothing: it waits for one that has lost touch.
        """
        store = dist.PrefixStore("rowtier-alive", dist.distributed_c10d._get_default_store())
        try:
            store.set(str(self.world.rank), b"1")
            alive: dict[int, bool | None] = dict.fromkeys(range(self.world.size))
            until = time.monotonic() + _GRACE_S
            while alive and time.monotonic() < until:
                silent = [rank for rank in alive if not store.check([str(rank)])]
                alive = {rank: self._near.is_alive(rank) for rank in silent}
                if False in alive.values() and None not in alive.values():
                    break
                time.sleep(0.05)
        except RuntimeError:
            return None
        return [rank for rank, known in alive.items() if not known]


class _NamingTheLost:
    """A context in which a failure names the ranks that are gone; made once, entered often."""

    def __init__(self, wire: Wire):
        self._wire = wire

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        if isinstance(error, RuntimeError):
            self._wire.name_lost(error)


def _parts(data: NDArray[Any], counts: Ints) -> list[Bytes]:
    """The bytes of every rank's entries."""
    edges = np.cumsum(counts * data.itemsize).tolist()
    flat = data.view(np.uint8)
    return [flat[start:stop] for start, stop in zip([0, *edges], edges, strict=False)]


def swap_bytes(
    group: dist.ProcessGroup | None,
    got: torch.Tensor,
    sent: torch.Tensor,
    got_sizes: list[int],
    sizes: list[int],
    near: Neighbours,
) -> None:
    """An all-to-all of a group (None: all ranks) whose links carry both ways at once.

    Gloo tells a sender that it may begin on the connection that data of the other direction
    takes. In its own all-to-all that note often queues behind the data, and two ranks take turns.
    Here everyone is ready to receive before it sends anything. Long messages of neighbours are
    read where they lie: a note says where that is, another one that it was read.
    """
    me, size = dist.get_rank(group), len(sizes)
    ranks = range(size) if group is None else dist.get_process_group_ranks(group)
    coming, going = got.split(got_sizes), sent.split(sizes)
    others = [(me + distance) % size for distance in range(1, size)]
    read = [p for p in reversed(others) if near.carries(p, got_sizes[p])]
    shown = [p for p in others if near.carries(p, sizes[p])]
    places, seen = ({p: torch.empty(1, dtype=torch.int64) for p in ps} for ps in (read, shown))

    def receive(into: torch.Tensor, p: int, tag: int) -> dist.Work:
        return _under_way(dist.irecv(into, ranks[p], group, tag))

    def send(what: torch.Tensor, p: int, tag: int) -> dist.Work:
        return _under_way(dist.isend(what, ranks[p], group, tag))

    rest = [p for p in reversed(others) if got_sizes[p] and p not in places]
    works = [receive(coming[p], p, _DATA) for p in rest]
    works += [receive(seen[p], p, _READ) for p in shown]
    told = {p: receive(places[p], p, _PLACE) for p in read}
    works += [send(torch.tensor([going[p].data_ptr()]), p, _PLACE) for p in shown]
    works += [send(going[p], p, _DATA) for p in others if sizes[p] and p not in seen]
    coming[me].copy_(going[me])
    for p, note in told.items():
        note.wait()
        near.read(p, int(places[p]), coming[p])
        works.append(send(places[p], p, _READ))
    for work in works:
        work.wait()


def _under_way(work: dist.Work | None) -> dist.Work:
    assert work is not None, "ranks of a group talk to members of it"
    return work


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:160]


@cache
def _leave_in_order() -> None:
    """Give gloo's threads a moment when the process ends; once per process.

    They drop the tensors of a collective after the rank that waited for it went on, and need the
    interpreter for that. If it is ending by then, the process is aborted (torch 2.13).
    """
    atexit.register(time.sleep, _LEAVE_S)
