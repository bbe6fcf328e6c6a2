"""The one way bytes travel between ranks: everyone sends everyone some, at once.

Every message says which call it is of (`stamps.py`); if an exchange fails, `troubles.py` finds
out which ranks are the reason. Over gloo, which is used where ranks cannot connect otherwise, a
stamp cannot be part of a message, so each call begins with an exchange of stamps.
"""

from __future__ import annotations

import atexit
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.runtime.exchange.board import Board
from rowtier.runtime.exchange.neighbours import Neighbours
from rowtier.runtime.exchange.sockets import Bytes, Sockets, timeout_of
from rowtier.runtime.exchange.stamps import STAMP, Stamps
from rowtier.runtime.exchange.troubles import (
    LostRankError,
    OtherCallError,
    SilentRanksError,
    Troubles,
)
from rowtier.runtime.exchange.watchdog import Patience, RankWatch
from rowtier.runtime.store.world import World

Ints = NDArray[np.int64]
_LOOK_S = 0.01  # between two looks at who has come
_LONG = timedelta(minutes=30)  # what gloo takes if it is told nothing
_LEAVE_S = 0.2  # that threads have at exit to let go of what they worked on
_DATA, _PLACE, _READ = range(3)  # what a message is: bytes, where they lie, that they were read


class Swap(NamedTuple):
    """Arrays to send and to fill: so many entries for, and from, each rank."""

    sent: NDArray[Any]
    counts: Ints
    got: NDArray[Any]
    got_counts: Ints


class Wire:
    """Collectives of a world, on host memory."""

    watch: RankWatch  # of several ranks, as is the next
    troubles: Troubles

    def __init__(self, world: World):
        self.world, self._near, self.stamps = world, Neighbours(), Stamps()
        self.of_rows: dist.ProcessGroup | None = None  # carries what lies on a device
        self._sockets: Sockets | None = None
        self._since: float | None = None
        self._missing: list[int] = []
        self._stamped = self._gloo_stamps = 0  # the last call over gloo, and how many there were

    def meet(self, watch: RankWatch | None = None) -> None:
        """Find out whose memory can be read, and connect; all ranks must call this."""
        group = self.world.group
        if group is not None:
            _leave_in_order()
            self.watch = watch or RankWatch(Board.of(group), self.world.rank, Patience())
            self.troubles = Troubles(self.watch, self.world.size)
            self._near = self.watch.near = Neighbours.meet(group)
            self._connect(Sockets.meet(group, self._near, self.stamps, self._patience_s))

    def _connect(self, sockets: Sockets | None) -> None:
        self._sockets, stamps = sockets, self.stamps
        self.watch.waits.append(self)
        self.troubles.calls.append(lambda: stamps.calls)
        if sockets is not None:
            self.troubles.hang_up.append(sockets.hang_up)

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
        found = Wire(World(world.rank, world.tree, group))
        found.watch, found.troubles, found._near = self.watch, self.troubles, self._near
        sockets = None
        if self._sockets is not None:
            sockets = Sockets.meet(group, self._near, found.stamps, self._patience_s)
        found._connect(sockets)
        return found

    def swap(self, sent: NDArray[Any], counts: Ints, got: NDArray[Any], got_counts: Ints) -> None:
        """Send `counts[p]` entries of `sent` to each rank p, receive theirs into `got`."""
        self.swap_all([Swap(sent, counts, got, got_counts)])

    def swap_all(self, swaps: Sequence[Swap]) -> None:
        """Several of these at once."""
        if self.world.group is None:
            for swap in swaps:
                swap.got[:] = swap.sent
            return
        with self.guarded:
            if self._sockets is not None:
                self._swap_by_sockets(self._sockets, swaps)
                return
            for swap in swaps:
                self._swap_by_gloo(swap)

    def swap_beside(
        self, sent: torch.Tensor, sizes: Ints, got: torch.Tensor, got_sizes: Ints
    ) -> None:
        """Send so many bytes of a device's memory to each rank, and receive theirs there.

        The group's backend for the device carries them, and the host does not wait for it.
        """
        if self.of_rows is None:
            return
        with self.guarded:
            dist.all_to_all_single(
                got.view(-1).view(torch.uint8),
                sent.contiguous().view(-1).view(torch.uint8),
                got_sizes.tolist(),
                sizes.tolist(),
                group=self.of_rows,
            )

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
            timedelta(seconds=self._patience_s),
        )

    def _stamp_by_gloo(self) -> None:
        """Tell everyone which call this is, and look whether it is theirs; once a call."""
        size, me = self.world.size, self.world.rank
        self._stamped = self.stamps.number
        self._gloo_stamps += 1
        sent = np.full(size, self.stamps.value, dtype=np.uint64)
        got = self._all_to_all(sent).tolist()
        odd = {rank: got[rank] for rank in range(size) if not self.stamps.fits(got[rank])}
        if odd:
            raise OtherCallError(self.stamps.value, {r: s for r, s in odd.items() if r != me})

    def _all_to_all(self, sent: NDArray[Any]) -> NDArray[Any]:
        got = np.empty_like(sent)
        work = dist.all_to_all_single(
            *(torch.from_numpy(a.reshape(-1).view(np.uint8)) for a in (got, sent)),
            group=self.world.group,
            async_op=True,
        )
        _under_way(work).wait(timedelta(seconds=self._patience_s))
        return got

    def swap_unknown(self, sent: Sequence[Sequence[Bytes]]) -> list[Bytes]:
        """Send every other rank some arrays, one after the other; what each sent, as one."""
        with self.guarded:
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
        if self._sockets is not None:
            got = np.empty_like(sent)
            counts = np.full(len(sent), sent[0].size, dtype=np.int64)
            self.swap(sent.reshape(-1), counts, got.reshape(-1), counts)
            return got
        with self.guarded:
            return self._all_to_all(sent)

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
        place, me = f"{call} {self._calls[call]}", self.world.rank
        board, missing = self.watch.board, list(range(self.world.size))
        board.say(place, me, 1)
        patience_s = self._patience_s
        before, self._since = self.watch.enter(call), time.monotonic()
        until = self._since + patience_s
        try:
            while missing := board.silent(place, missing):
                self._missing = missing
                if time.monotonic() > until:
                    board.take_down(place, me)
                    raise LostRankError(
                        f"{call} was called on rank {me}, and for {patience_s:g} s not on rank "
                        f"{', '.join(map(str, missing))}: all ranks must call it together; missing "
                        f"is {self.watch.where(missing)}"
                    )
                time.sleep(_LOOK_S)
        finally:
            self._since, self._missing = None, []
            self.watch.leave(before, None)
        self._calls[call] += 1

    @cached_property
    def _calls(self) -> Counter[str]:
        """How often ranks made each call together."""
        return Counter()

    @property
    def _patience_s(self) -> float:
        """How long to wait for others: as long as the watchdog says, and the group allows."""
        assert self.world.group is not None
        return min(self.watch.patience.abort_s, timeout_of(self.world.group).total_seconds())

    @property
    def waiting_since(self) -> float | None:
        """When this rank began to wait for others, or last got something; None: it does not."""
        return self._since if self._sockets is None else self._sockets.since or self._since

    def waited_for(self) -> list[int]:
        """The ranks that are waited for; all others if that is not known."""
        found = self._missing or ([] if self._sockets is None else self._sockets.waited_for())
        return found or [rank for rank in range(self.world.size) if rank != self.world.rank]

    @property
    def stamp_bytes(self) -> Ints:
        """Bytes of stamps so far: sent, received × ranks."""
        found = np.full((2, self.world.size), self._gloo_stamps, dtype=np.int64)
        if self._sockets is not None:
            for way, counts in enumerate((self._sockets.sent_stamps, self._sockets.got_stamps)):
                for rank, count in counts.items():
                    found[way, rank] += count
        return STAMP.size * found

    @cached_property
    def guarded(self) -> _Guarded:
        """A context for exchanges of the same ranks: a failure names those that are the reason."""
        return _Guarded(self)


class _Guarded:
    """A context for exchanges: a failure names ranks; made once, entered often."""

    def __init__(self, wire: Wire):
        self._wire = wire

    def __enter__(self) -> None:
        wire = self._wire
        if wire._sockets is None:
            wire._since = time.monotonic()
            if wire._stamped != wire.stamps.number:
                try:
                    wire._stamp_by_gloo()
                except RuntimeError as error:
                    self.__exit__(None, error, None)
                    raise

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        wire = self._wire
        since, wire._since = wire._since, None
        if isinstance(error, RuntimeError):
            if since is not None and time.monotonic() - since >= wire._patience_s:  # gloo's
                error = SilentRanksError(wire.waited_for(), wire._patience_s)
            wire.troubles.explain(error)


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
    timeout: timedelta = _LONG,
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
        note.wait(timeout)
        near.read(p, int(places[p]), coming[p])
        works.append(send(places[p], p, _READ))
    for work in works:
        work.wait(timeout)


def _under_way(work: dist.Work | None) -> dist.Work:
    assert work is not None, "ranks of a group talk to members of it"
    return work


@cache
def _leave_in_order() -> None:
    """Give gloo's threads a moment when the process ends; once per process.

    They drop the tensors of a collective after the rank that waited for it went on, and need the
    interpreter for that. If it is ending by then, the process is aborted (torch 2.13).
    """
    atexit.register(time.sleep, _LEAVE_S)
