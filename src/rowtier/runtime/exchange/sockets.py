"""Connections of our own between ranks: a message is sent and received by whoever needs it.

In gloo a message passes a thread on either side, and its length must be known beforehand, so
every exchange of ids needs another one that tells how many there are. Here a message may tell its
own length, and begins with a stamp, so that one of another call is not taken for what is waited
for. One connection per pair of ranks, made when they meet; if any of them cannot be made, all
ranks go on with gloo.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rowtier.runtime.exchange.neighbours import Neighbours, machine_of_this_process, told
from rowtier.runtime.exchange.stamps import STAMP, Stamps
from rowtier.runtime.exchange.troubles import OtherCallError, SilentRanksError

Bytes = NDArray[np.uint8]
_MEET_S = 20.0
_TOKEN_BYTES = 16
_LENGTH = struct.Struct("<q")
_HUNG_UP = getattr(select, "POLLRDHUP", 0)  # Linux
_MOST_PARTS = 512  # of one call; Linux takes 1024
_NOTHING = np.empty(0, dtype=np.uint8)
_DEFAULT_TIMEOUT = timedelta(minutes=30)


class Sockets:
    """The connections of one rank to all others of a group."""

    def __init__(
        self, links: dict[int, socket.socket], near: Neighbours, stamps: Stamps, timeout_s: float
    ):
        self._links, self._near, self._stamps = links, near, stamps
        self._timeout_s = timeout_s
        self.since: float | None = None  # when the wait began, or last got something
        self._busy: dict[int, _Link] = {}
        self._heads = {rank: _Head() for rank in links}
        self.sent_stamps = dict.fromkeys(links, 0)
        self.got_stamps = dict.fromkeys(links, 0)
        for link in links.values():
            link.setblocking(False)

    @classmethod
    def meet(
        cls,
        group: dist.ProcessGroup,
        near: Neighbours,
        stamps: Stamps | None = None,
        timeout_s: float | None = None,
    ) -> Sockets | None:
        """Connect all ranks of a group; None, on all of them, if some cannot be reached."""
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        everyone = told(group, size, machine_of_this_process())
        alone = len(set(everyone)) == 1
        try:
            listener = socket.create_server((_own_address(alone), 0), backlog=size)
            here = (*listener.getsockname(), secrets.token_bytes(_TOKEN_BYTES))
        except OSError:
            listener, here = None, None
        places = told(group, size, here)
        links: dict[int, socket.socket] | None = None
        if listener is not None and None not in places:
            with listener:
                links = _connected(rank, places, listener)
        if not all(told(group, size, links is not None)):
            return None
        assert links is not None
        return cls(links, near, stamps or Stamps(), timeout_s or timeout_of(group).total_seconds())

    def hang_up(self) -> None:
        """End all connections: who waits for this rank learns that nothing comes."""
        for link in self._links.values():
            with contextlib.suppress(OSError):  # the other side was faster
                link.shutdown(socket.SHUT_RDWR)

    def waited_for(self) -> list[int]:
        """The ranks of which something is missing."""
        return sorted(entry.rank for entry in list(self._busy.values()))

    def swap(self, sent: Sequence[Sequence[Bytes]], got: Sequence[Sequence[Bytes]]) -> None:
        """Send each rank some arrays, and fill those that are for what it sends."""
        self._run(
            _Link(link, self._near, self._stamps, self._heads[rank], rank, sent[rank], got[rank])
            for rank, link in self._links.items()
        )

    def swap_unknown(self, sent: Sequence[Sequence[Bytes]]) -> list[Bytes]:
        """Send each rank some arrays, one after the other; what each of the others sent, as one."""
        links = [
            _Link(link, self._near, self._stamps, self._heads[rank], rank, sent[rank], None)
            for rank, link in self._links.items()
        ]
        self._run(links)
        found = [_NOTHING] * len(sent)
        for entry in links:
            found[entry.rank] = entry.coming.whole
        return found

    def _run(self, links: Iterable[_Link]) -> None:
        busy = {}
        for entry in links:
            if entry.going.stamped:
                self.sent_stamps[entry.rank] += 1
            if entry.coming.stamped:
                self.got_stamps[entry.rank] += 1
            if not entry.move():
                busy[entry.number] = entry
        if not busy:
            return
        self._busy, self.since = busy, time.monotonic()
        poll = select.poll()
        for number, entry in busy.items():
            poll.register(number, entry.events)
        try:
            while busy:
                self._wait(poll, busy)
        finally:
            self.since = None

    def _wait(self, poll: select.poll, busy: dict[int, _Link]) -> None:
        ready = poll.poll(1000 * self._timeout_s)
        if not ready:
            raise SilentRanksError(self.waited_for(), self._timeout_s)
        self.since = time.monotonic()
        for number, events in ready:
            if busy[number].move():
                poll.unregister(number)
                del busy[number]
            elif events & _HUNG_UP and not busy[number].coming.left:
                raise RuntimeError(f"the connection to rank {busy[number].rank} was ended there")
            else:
                poll.modify(number, busy[number].events)


class _Head:
    """Where a message of one rank begins: its stamp, and its length if that is not known."""

    def __init__(self) -> None:
        self.bytes = bytearray(STAMP.size + _LENGTH.size)
        self.whole = memoryview(self.bytes)
        self.stamp, self.length = self.whole[: STAMP.size], self.whole[STAMP.size :]


class _Link:
    """One connection, and what goes and comes through it in one exchange."""

    def __init__(
        self, link: socket.socket, near: Neighbours, stamps: Stamps, head: _Head, rank: int,
        sent: Sequence[Bytes], into: Sequence[Bytes] | None,
    ):  # fmt: skip
        self.link, self.rank, self.number = link, rank, link.fileno()
        self.going = _Going(near, rank, stamps.bytes, sent, tell_length=into is None)
        self.coming = _Coming(near, rank, stamps, head, into, self.going.shown)

    @property
    def events(self) -> int:
        """What to wait for."""
        return self.going.events | self.coming.events | _HUNG_UP

    def move(self) -> bool:
        """Send and receive what can be at once; whether nothing is left."""
        going, coming = self.going, self.coming
        try:
            while going.left and going.send(self.link):
                pass
            while coming.left and coming.receive(self.link):
                pass
            if coming.has_read:  # what the other showed may change from now on
                coming.has_read = False
                going.left.append(b"\1")
                going.send(self.link)
        except OSError as error:
            raise RuntimeError(f"the connection to rank {self.rank} broke: {error}") from error
        return not going.left and not coming.left


class _Coming:
    """What comes from one rank: arrays whose lengths are known, or one that tells its own.

    First comes the sender's stamp, if anything does: of a message with another one nothing is
    used. If the other lets its memory be read, it sends where its arrays lie, and wants to know
    when that is done; if this rank did so (`shown`), a byte comes last that says so.
    """

    def __init__(
        self, near: Neighbours, rank: int, stamps: Stamps, head: _Head,
        into: Sequence[Bytes] | None, shown: bool,
    ):  # fmt: skip
        self._near, self._rank, self._stamps, self._shown = near, rank, stamps, shown
        self._head = head
        self.has_read = False  # the other's memory, and has yet to say so
        self._notes: Bytes | None = None
        stamped, self.left = bool(stamps.bytes), []
        if into is None:
            self.stamped, self._into = True, []
            self.left = [head.whole if stamped else head.length]
            self._stages = [self._begin_unknown, self._read_memory, self._await_reader]
        else:
            self._into = [part for part in into if len(part)]
            self.stamped = bool(self._into)
            self._stages = [self._begin, self._read_memory, self._await_reader]
            self._settle()
            if self.stamped and stamped:
                self.left.insert(0, head.stamp)
        self._head_left = STAMP.size if self.stamped and stamped else 0

    @property
    def events(self) -> int:
        return select.POLLIN if self.left else 0

    def receive(self, link: socket.socket) -> bool:
        """Take what is there; whether there may be more."""
        try:
            count = link.recvmsg_into(self.left[:_MOST_PARTS])[0]
        except BlockingIOError:
            return False
        if not count:
            raise ConnectionResetError("closed by the other side")
        _advance(self.left, count)
        if self._head_left > 0:
            self._head_left -= count
            if self._head_left <= 0 and not self._head.bytes.startswith(self._stamps.bytes):
                self._look_closer()
        self._settle()
        return True

    def _look_closer(self) -> None:
        stamp = STAMP.unpack_from(self._head.bytes)[0]
        if not self._stamps.fits(stamp):
            raise OtherCallError(self._stamps.value, {self._rank: stamp})

    def _settle(self) -> None:
        while not self.left and self._stages:
            self._stages.pop(0)()

    def _begin_unknown(self) -> None:
        (length,) = _LENGTH.unpack(self._head.length)
        self.whole = np.empty(length, dtype=np.uint8)
        self._into = [self.whole] if len(self.whole) else []
        self._begin()

    def _begin(self) -> None:
        if self._near.carries(self._rank, sum(map(len, self._into))):
            self._notes = np.empty(8 * len(self._into), dtype=np.uint8)
            self.left = [_view(self._notes)]
        else:
            self.left = [_view(part) for part in self._into]

    def _read_memory(self) -> None:
        if self._notes is not None:
            addresses = self._notes.view(np.int64).tolist()
            for part, address in zip(self._into, addresses, strict=True):
                self._near.read(self._rank, address, torch.from_numpy(part))
            self.has_read = True

    def _await_reader(self) -> None:
        if self._shown:
            self.left = [memoryview(bytearray(1))]


class _Going:
    """What goes to one rank: arrays, or where they lie if the other reads them there."""

    def __init__(
        self, near: Neighbours, rank: int, stamp: bytes, parts: Sequence[Bytes], tell_length: bool
    ):
        parts = [part for part in parts if len(part)]
        size = sum(map(len, parts))
        self.shown = near.carries(rank, size)
        self.stamped = tell_length or bool(parts)
        self.left: list[bytes | memoryview] = []
        if tell_length:
            self.left.append(stamp + _LENGTH.pack(size))
        elif parts and stamp:
            self.left.append(stamp)
        if self.shown:
            if tell_length:  # the other knows of one array
                parts = [np.concatenate(parts)]
            self._parts = parts  # they must not go before they are read
            self._notes = np.array([part.ctypes.data for part in parts], dtype=np.int64)
            self.left.append(_view(self._notes.view(np.uint8)))
        else:
            self.left += [_view(part) for part in parts]

    @property
    def events(self) -> int:
        return select.POLLOUT if self.left else 0

    def send(self, link: socket.socket) -> bool:
        """Give what is taken at once; whether more may be."""
        try:
            _advance(self.left, link.sendmsg(self.left[:_MOST_PARTS]))
        except BlockingIOError:
            return False
        return True


def _view(array: Bytes) -> memoryview:
    return array.data  # as `memoryview(array)`, which mypy does not know to be one


def _advance(left: list[Any], count: int) -> None:
    """Forget the first bytes."""
    done = 0
    while done < len(left) and count >= len(left[done]):
        count -= len(left[done])
        done += 1
    del left[:done]
    if count:
        left[0] = left[0][count:]


def _connected(
    rank: int, places: Sequence[Any], listener: socket.socket
) -> dict[int, socket.socket] | None:
    """A connection to every other rank: asked of those below, awaited from those above."""
    links: dict[int, socket.socket] = {}
    listener.settimeout(_MEET_S)
    try:
        for other, (host, port, token) in enumerate(places[:rank]):
            links[other] = socket.create_connection((host, port), _MEET_S)
            links[other].sendall(token + _LENGTH.pack(rank))
        while len(links) < len(places) - 1:
            link, _ = listener.accept()
            link.settimeout(_MEET_S)
            said = _received(link, _TOKEN_BYTES + _LENGTH.size)
            if secrets.compare_digest(said[:_TOKEN_BYTES], places[rank][2]):
                links[_LENGTH.unpack(said[_TOKEN_BYTES:])[0]] = link
        for link in links.values():
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        for link in links.values():
            link.close()
        return None
    return links


def _received(link: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = link.recv(count - len(found))
        if not more:
            raise ConnectionResetError("closed by the other side")
        found += more
    return found


def _own_address(alone: bool) -> str:
    """Where other ranks reach this one: the interface that gloo is told to take, if any."""
    if alone:
        return "127.0.0.1"
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    return _address_of(name) if name else socket.gethostbyname(socket.gethostname())


def _address_of(interface: str) -> str:
    import fcntl

    asked = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        found = fcntl.ioctl(probe.fileno(), 0x8915, asked)  # SIOCGIFADDR
    return socket.inet_ntoa(found[20:24])


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """How long ranks of a group wait for each other."""
    try:
        return timedelta(
            seconds=group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        )
    except (AttributeError, RuntimeError):
        return _DEFAULT_TIMEOUT
