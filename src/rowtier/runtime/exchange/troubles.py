"""What went wrong between ranks, named: who is gone, who does not answer, who does other things.

If an exchange fails, a rank sees a broken connection, or a message that is of another call. So
whoever fails says on the job's board what it saw and which calls it made last, hangs up, so that
all others fail too, and reads what they say. All ranks raise, and name the same rank and field.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from rowtier.errors import MismatchError, RowtierError
from rowtier.runtime.exchange.board import in_time
from rowtier.runtime.exchange.stamps import Call, Standing
from rowtier.runtime.exchange.watchdog import RankWatch

_REPORTS = "reports"
_GRACE_S = 5.0
_LOOK_S = 0.05


class LostRankError(RowtierError):
    """A collective failed because ranks are gone or do not answer."""


class SilentRanksError(RuntimeError):
    """Ranks that sent nothing for as long as one waits."""

    def __init__(self, ranks: list[int], waited_s: float):
        self.ranks, self.waited_s = ranks, waited_s
        super().__init__(f"no answer from rank {', '.join(map(str, ranks))}")


class OtherCallError(RuntimeError):
    """Messages that are of another call than this rank's: their stamps by rank."""

    def __init__(self, own: int, stamps: Mapping[int, int]):
        self.odd = {rank: (own, stamp) for rank, stamp in stamps.items()}
        super().__init__(f"rank {', '.join(map(str, stamps))} sent messages of another call")


class Troubles:
    """Of the ranks of one module: finds out why an exchange failed, once."""

    def __init__(self, watch: RankWatch, size: int):
        self._watch, self._rank, self._size = watch, watch.rank, size
        self.hang_up: list[Callable[[], None]] = []
        self.calls: list[Callable[[], list[Call]]] = []
        self.standing = Standing()
        self._lock = threading.Lock()  # two threads may exchange
        self._found: RowtierError | None = None

    def explain(self, error: RuntimeError) -> None:
        """Raise an error that names the ranks, if they can be named."""
        with self._lock:
            if self._found is None:
                self._found = self._explained(error)
                self._hang_up()
        if self._found is not None:
            raise self._found from error

    def _hang_up(self) -> None:
        for hang_up in self.hang_up:
            hang_up()

    def _explained(self, error: RuntimeError) -> RowtierError | None:
        report = self._report(error)
        board, others = self._watch.board, [r for r in range(self._size) if r != self._rank]
        if not in_time(lambda: board.say(_REPORTS, self._rank, report), False):
            return self._without_store(error)
        self._hang_up()  # after the report: whoever fails now can read it
        if isinstance(error, SilentRanksError):
            return self._silent(error)
        reports = {self._rank: report} | self._heard(others, report)
        odd = _odd_pairs(reports)
        if odd:
            return MismatchError(_odd_text(odd, reports))
        for rank, said in reports.items():
            if said["silent"]:
                return LostRankError(f"rank {rank} gave up: {said['silent']}")
        lost = [rank for rank in others if rank not in reports and not self._is_alive(rank)]
        return LostRankError(self._lost_text(lost, error)) if lost else None

    def _report(self, error: RuntimeError) -> dict[str, Any]:
        names = self.standing.number_names
        return {
            "odd": error.odd if isinstance(error, OtherCallError) else {},
            "silent": str(self._silent(error)) if isinstance(error, SilentRanksError) else "",
            "calls": [
                {"stamp": call.stamp, "facts": call.named(names)}
                for calls in self.calls
                for call in calls()
            ],
            "now": self._watch.call,
            "steps": self._watch.steps,
        }

    def _heard(self, others: list[int], own: Mapping[str, Any]) -> dict[int, Any]:
        """What others report; of ranks that are gone nothing is waited for."""
        found: dict[int, Any] = {}
        until = time.monotonic() + _GRACE_S
        while time.monotonic() < until:
            found = in_time(lambda: self._watch.board.heard(_REPORTS, others), {})
            odd = _odd_pairs({self._rank: own, **found})
            needed = {rank for pair in odd for rank in pair[:2]} if odd else set(others)
            missing = needed - {self._rank} - set(found)
            alive = [self._watch.near.is_alive(rank) for rank in missing]
            given_up = any(report["silent"] for report in found.values())
            if not missing or given_up or (False in alive and None not in alive):
                break
            time.sleep(_LOOK_S)
        return found

    def _is_alive(self, rank: int) -> bool:
        """Whether a rank surely runs: one of this machine that waits for another says nothing."""
        return bool(self._watch.near.is_alive(rank))

    def _silent(self, error: SilentRanksError) -> LostRankError:
        return LostRankError(
            f"no answer for {error.waited_s:g} s (watchdog_abort_s, or the timeout of the process "
            f"group), while rank {self._rank} was {self._watch.here()}, from "
            f"{self._watch.where(error.ranks)}"
        )

    def _without_store(self, error: RuntimeError) -> RowtierError:
        if isinstance(error, OtherCallError):
            return MismatchError(f"{error}; {_OUT}")
        if isinstance(error, SilentRanksError):
            return self._silent(error)
        return LostRankError(
            "ranks cannot reach each other, and the job's store does not answer either: "
            f"rank 0, or whoever keeps the store, is gone ({first_line(error)})"
        )

    def _lost_text(self, lost: list[int], error: RuntimeError) -> str:
        many = len(lost) > 1
        names = ", ".join(map(str, lost))
        return (
            f"rank{'s' if many else ''} {names} of {self._size} {'are' if many else 'is'} "
            f"gone, or did not answer for {_GRACE_S:g} s after rank {self._rank} lost "
            "touch: look at the output of that rank, then start the job again from the last "
            f"checkpoint ({first_line(error)})"
        )


_OUT = "all ranks must make the same calls in the same order, with the same numbers"


def _odd_pairs(reports: Mapping[int, Any]) -> list[tuple[int, int, int, int]]:
    """Who got of whom a message that did not fit, with both stamps; the lowest ranks first."""
    return sorted(
        (rank, int(other), own, stamp)
        for rank, said in reports.items()
        for other, (own, stamp) in said["odd"].items()
    )


def _odd_text(odd: list[tuple[int, int, int, int]], reports: Mapping[int, Any]) -> str:
    for rank, other, own, stamp in odd:
        mine, theirs = _facts(reports.get(rank), own), _facts(reports.get(other), stamp)
        found = difference({rank: mine, other: theirs}) if mine and theirs else None
        if found is not None:
            return found
    rank, other, *_ = odd[0]
    known = f", which is in {reports[other]['now'] or 'none'}" if other in reports else ""
    mine = reports[rank]["now"]
    return f"rank {rank} is in {mine} and rank {other} sent something else{known}: {_OUT}"


def _facts(report: Any, stamp: int) -> Any:
    """What a rank says of the call with a stamp; None if it does not know it."""
    found = [call["facts"] for call in report["calls"] if call["stamp"] == stamp] if report else []
    return found[-1] if found else None


def difference(said: Mapping[int, Mapping[str, Any]]) -> str | None:
    """The first thing that ranks say differently, and who says what; None if there is none."""
    fields = dict.fromkeys(field for rank in sorted(said) for field in said[rank])
    for field in fields:
        value = said[min(said)].get(field)
        by_value: dict[str, list[int]] = {}
        for rank in sorted(said):
            by_value.setdefault(_shown(said[rank].get(field)), []).append(rank)
        if len(by_value) > 1:
            mine = by_value.pop(_shown(value))[:1]
            told = [_told(field, ranks, shown) for shown, ranks in by_value.items()]
            told.append(_told(field, mine, _shown(value)))
            return f"{' and '.join(told)}: {_OUTS.get(field, 'give all ranks the same')}"
    return None


_OUTS = {"call": "all ranks must make the same calls in the same order"}


def _told(field: str, ranks: list[int], value: str) -> str:
    many = len(ranks) > 1
    who = f"rank{'s' if many else ''} {', '.join(map(str, ranks))}"
    if field == "call":
        return f"{who} {'are' if many else 'is'} in {value}"
    return f"{who} {'have' if many else 'has'} {field} {value}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def first_line(error: BaseException) -> str:
    """What an error says, short."""
    return str(error).strip().split("\n")[0][:160]
