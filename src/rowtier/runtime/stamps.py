"""Eight bytes in every message that say which call it is of, and with which numbers.

Ranks that train together make the same calls in the same order, with the same learning rates,
and so on. Every message begins with a digest of that (48 bits), and with the factor that
gradients were last multiplied by (16 bits, the first ones of its fp32: two ranks may compute it
with other rounding, so neighbours of it fit). A message whose stamp does not fit is of another
call, and nothing of it is used; `troubles.py` finds out what differs.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import xxhash

STAMP = struct.Struct("<Q")
_DIGESTED = struct.Struct("<QqqqddQ???")
_FLOAT, _UPPER_HALF = struct.Struct("<f"), struct.Struct("<xxH")
_LARGEST = 3.4e38
_KEPT = 16  # calls of which a rank can say later what they were
NO_CLIP = -1.0


class CallFacts(NamedTuple):
    """What of a rank changes from step to step, and must be the same on all."""

    steps: int = 0  # that were made
    passes: int = 0  # backward passes whose gradients wait
    clip: float = NO_CLIP  # largest number of the gradients that wait
    last_clip: float = NO_CLIP  # and of those that were applied last
    trains: bool = True  # rows are not frozen
    records: bool = True  # whether the last lookup was made to be followed by a backward
    weighted: bool = False
    factor: float = 1.0  # of gradients, in the last step
    numbers: tuple[float, ...] = ()  # of all parameter groups


class Call(NamedTuple):
    """One call, as a rank makes it."""

    stamp: int
    kind: str
    number: int
    facts: CallFacts

    def named(self, numbers: Sequence[str]) -> dict[str, Any]:
        """What ranks compare, by the names that people know; what tells most first."""
        facts = self.facts
        clip, last_clip = ("none" if c == NO_CLIP else c for c in (facts.clip, facts.last_clip))
        return {
            "call": self.kind,
            **dict(zip(numbers, facts.numbers, strict=True)),
            "rows frozen (requires_grad)": not facts.trains,
            "gradient mode": "enabled" if facts.records else "no_grad",
            "weights of lookups used": facts.weighted,
            "backward passes that wait for a step": facts.passes,
            "clip_grad_value_ of this step": clip,
            "clip_grad_value_ of the last step": last_clip,
            "steps made": facts.steps,
            "factor of the gradients of the last step (scaler, clip_grad_norm_)": facts.factor,
            "calls made": self.number,
        }


class Stamps:
    """The calls of one rank on one wire, and the stamp of the one that it is in."""

    def __init__(self) -> None:
        self.number, self.value, self.bytes = 0, 0, STAMP.pack(0)
        self.kind = "the meeting of ranks"
        self.calls: deque[Call] = deque(maxlen=_KEPT)
        self._numbers: tuple[float, ...] = ()
        self._numbers_digest = 0

    def begin(self, kind: str, facts: CallFacts) -> None:
        """From now on messages are of this call."""
        self.number += 1
        if facts.numbers != self._numbers:
            self._numbers = facts.numbers
            packed = struct.pack(f"<{len(facts.numbers)}d", *facts.numbers)
            self._numbers_digest = xxhash.xxh3_64_intdigest(packed)
        digest = xxhash.xxh3_64_intdigest(
            _DIGESTED.pack(
                _digest_of(kind), self.number, facts.steps, facts.passes, facts.clip,
                facts.last_clip, self._numbers_digest, facts.trains, facts.records, facts.weighted,
            )
        )  # fmt: skip
        self.value = digest & ~0xFFFF | _upper_half(facts.factor)
        self.bytes, self.kind = STAMP.pack(self.value), kind
        self.calls.append(Call(self.value, kind, self.number, facts))

    def leave_out(self) -> None:
        """Send no stamps, and look at none, to measure what they cost; on all ranks or none."""
        self.bytes = b""

    def fits(self, other: int) -> bool:
        """Whether a stamp is of the same call, with the same numbers."""
        mine = self.value
        if other == mine:
            return True
        return (other ^ mine) >> 16 == 0 and abs((other & 0xFFFF) - (mine & 0xFFFF)) <= 1


class Standing:
    """Where this rank stands: what becomes the facts of its next call."""

    def __init__(self) -> None:
        self.clip = self.last_clip = NO_CLIP
        self.trains = self.records = True
        self.weighted = False
        self.factor = 1.0
        self.passes: Callable[[], int] = int
        self.numbers: Callable[[], tuple[float, ...]] = tuple
        self.number_names: tuple[str, ...] = ()  # such as "lr of table 'a'"

    def facts(self, steps: int) -> CallFacts:
        """All of it, as of now."""
        return CallFacts(
            steps, self.passes(), self.clip, self.last_clip, self.trains, self.records,
            self.weighted, self.factor, self.numbers(),
        )  # fmt: skip

    def step(self, factor: float) -> None:
        """Gradients are applied, times a factor."""
        self.factor, self.last_clip, self.clip = factor, self.clip, NO_CLIP


@cache
def _digest_of(kind: str) -> int:
    return xxhash.xxh3_64_intdigest(kind.encode())


def _upper_half(value: float) -> int:
    if value == 1.0:
        return 0x3F80
    near = value if abs(value) < _LARGEST else _LARGEST
    return int(_UPPER_HALF.unpack(_FLOAT.pack(near))[0])
