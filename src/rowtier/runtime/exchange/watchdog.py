"""Says who is waited for, and where that rank is, before a job is given up.

One thread for all modules of a process looks at them now and then. A rank that is in one place
for half of `watchdog_s`, waiting, computing, or outside of the embeddings, says so on the board;
one that waits for `watchdog_s` warns, once, and reads there where the others are. Errors are
raised by who waits, after `watchdog_abort_s`. Calls are counted and look at no clock: the thread
notes when it first saw the count that it sees.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from rowtier.errors import UserError
from rowtier.runtime.exchange.board import Board, in_time
from rowtier.runtime.exchange.neighbours import Neighbours

_PLACES = "places"
_LOOKS = 8  # in `watchdog_s`
_SHORTEST_S, _LONGEST_S = 0.02, 5.0  # between two looks


class Patience(NamedTuple):
    """How long a rank waits for others."""

    warn_s: float = 60.0
    abort_s: float = 600.0

    def check(self) -> None:
        """Refuse times that make no sense."""
        if not 0 < self.warn_s <= self.abort_s:
            raise UserError(
                f"watchdog_s {self.warn_s:g} and watchdog_abort_s {self.abort_s:g}: give seconds, "
                "above 0, and the second not below the first"
            )


class Waits(Protocol):
    """Something that may wait for other ranks."""

    @property
    def waiting_since(self) -> float | None:
        """When the wait began, or last got something; None: it does not wait."""
        ...

    def waited_for(self) -> list[int]:
        """The ranks that it waits for."""
        ...


class RankWatch:
    """Where a rank is: in which call of the embeddings, or since when outside of them."""

    def __init__(self, board: Board, rank: int, patience: Patience):
        self.board, self.rank, self.patience = board, rank, patience
        self.near = Neighbours()
        self.steps = 0
        self.call, self.last = "", ""  # no call: outside; and the one that ended last
        self.moves = 0  # calls that began, and that ended
        self._failed = (0, "")  # the call that ended with an error, and how many moves that were
        self._seen = (0, time.monotonic())  # moves, and when they were seen first
        self.waits: list[Waits] = []
        self._said = self._warned = 0.0  # since when was said, or warned of
        _look_after(self)

    def enter(self, call: str) -> str:
        """Begin a call; what to give `leave`."""
        before = self.call
        self.call, self.moves = call, self.moves + 1
        return before

    def leave(self, before: str, error: BaseException | None) -> None:
        """End a call."""
        self.last, self.call, self.moves = self.call, before, self.moves + 1
        if error is not None:
            first = str(error).strip().split("\n")[0][:300]
            self._failed = (self.moves, f"{self.last} with {type(error).__name__}: {first}")

    def look(self) -> None:
        """Say where this rank is, or warn that it waits, if that is so for long."""
        now = time.monotonic()
        if self._seen[0] != self.moves:
            self._seen = (self.moves, now)
        since = self._seen[1]
        waiting = [(at, some) for some in self.waits if (at := some.waiting_since) is not None]
        if now - since > self.patience.warn_s / 2 and since != self._said:
            self._said = since
            said = self._place([rank for _, some in waiting for rank in some.waited_for()])
            in_time(lambda: self.board.say(_PLACES, self.rank, said), False)
        for at, some in waiting:
            if now - at > self.patience.warn_s and at > self._warned:
                self._warned = now
                warnings.warn(self._waiting_text(some.waited_for()), stacklevel=2)

    def _place(self, waited_for: Sequence[int]) -> dict[str, Any]:
        failed_at, failed = self._failed
        here_s = time.monotonic() - self._seen[1]
        return {
            "call": self.call, "failed": failed * (failed_at == self.moves), "steps": self.steps,
            "last": f"{self.last} ended" if self.last else "they were made",
            "since": time.time() - here_s, "waits_for": list(waited_for),
        }  # fmt: skip

    def _waiting_text(self, ranks: Sequence[int]) -> str:
        patience = self.patience
        return (
            f"rank {self.rank} waits for more than {patience.warn_s:g} s {self.here()} for "
            f"{self.where(ranks)}; after {patience.abort_s:g} s (watchdog_abort_s) this is an error"
        )

    def here(self) -> str:
        """The call that this rank is in."""
        return f"in {self.call or 'a call of its own'} after {self.steps} steps"

    def where(self, ranks: Sequence[int]) -> str:
        """Some ranks, and where each is as far as is known."""
        nothing: dict[int, Any] = {}
        said = in_time(lambda: self.board.heard(_PLACES, ranks), nothing)
        return ", and ".join(f"rank {rank}, {self._said_of(rank, said)}" for rank in ranks)

    def _said_of(self, rank: int, said: Mapping[int, Any]) -> str:
        if self.near.is_stopped(rank):
            return "whose process is stopped (SIGSTOP, or a debugger): let it go on, or end it"
        if self.near.is_alive(rank) is False:
            return "whose process is gone: look at its output"
        if rank not in said:
            return "which has said nothing: look at what it does, it may hang or be cut off"
        return _place_text(said[rank])


def _place_text(place: Mapping[str, Any]) -> str:
    for_s = max(0.0, time.time() - place["since"])
    after = f"after {place['steps']} steps"
    if place["waits_for"]:
        named = ", ".join(map(str, place["waits_for"]))
        return f"which for {for_s:.0f} s waits in {place['call']} {after}, for rank {named}"
    if place["call"]:
        return f"which for {for_s:.0f} s is in {place['call']} {after}"
    if place["failed"]:
        return f"which left {place['failed']}"
    return (
        f"which for {for_s:.0f} s, {after}, has been outside of the embeddings, since "
        f"{place['last']}: does it load data, or make fewer calls?"
    )


_watches: weakref.WeakSet[RankWatch] = weakref.WeakSet()
_lock = threading.Lock()
_more = threading.Event()
_thread: threading.Thread | None = None


def _look_after(watch: RankWatch) -> None:
    global _thread
    with _lock:
        _watches.add(watch)
        if _thread is None or not _thread.is_alive():  # a forked process has none
            _thread = threading.Thread(target=_run, name="rowtier watchdog", daemon=True)
            _thread.start()
    _more.set()


def _run() -> None:
    while True:
        with _lock:
            watches = list(_watches)
        each_s: list[float] = []
        while watches:
            watch = watches.pop()
            each_s.append(watch.patience.warn_s / _LOOKS)
            try:
                watch.look()
            except Exception as error:  # of a filter that makes errors of warnings
                print(f"rowtier watchdog: {error}", file=sys.stderr, flush=True)
            del watch  # nobody is kept from being forgotten
        _more.clear()
        _more.wait(min(max(min(each_s, default=_LONGEST_S), _SHORTEST_S), _LONGEST_S))
