"""Eight bytes in every message that say which call it is of, and with which numbers.

Ranks that train together make the same calls in the same order, with the same learning rates,
and so on. Every message begins with a digest of that (48 bits), and with the factor that
gradients were last multiplied by (16 bits, the first ones of its fp32: two ranks may compute it
with other rounding, so neighbours of it fit). A message whose stamp does not fit is of another
call, and nothing of it is used; `troubles.py` finds out what differs.

Between two calls a step empties the processor's caches, so what counts here is how little is
touched: Python's own hash of numbers, which is the same in all processes of one version of
Python (ranks compare that when they meet), and no other library.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import xxhash

STAMP = struct.Struct("<Q")
_DIGEST_BITS, _ALL_BITS = 0xFFFF_FFFF_FFFF_0000, 0xFFFF_FFFF_FFFF_FFFF
_FLOAT, _UPPER_HALF = struct.Struct("<f"), struct.Struct("<xxH")
_LARGEST = 3.4e38
_KEPT = 16  # calls of which a rank can say later what they were
NO_CLIP = -1.0


class CallKind(str):
    """A kind of calls, by the name that users know, with the digest of that name."""

    __slots__ = ("digest",)
    digest: int

    def __new__(cls, name: str) -> CallKind:
        """Of the name that users know."""
        found = super().__new__(cls, name)
        found.digest = xxhash.xxh3_64_intdigest(name.encode()) & _DIGEST_BITS
        return found


class Settings(NamedTuple):
    """What of a rank changes now and then, and must be the same on all."""

    clip: float = NO_CLIP  # largest number of the gradients that wait
    last_clip: float = NO_CLIP  # and of those that were applied last
    trains: bool = True  # rows are not frozen
    records: bool = True  # whether the last lookup was made to be followed by a backward
    weighted: bool = False
    numbers: tuple[float, ...] = ()  # of all parameter groups
    factor: float = 1.0  # of gradients, in the last step; last, as digests leave it out


# Steps that were made, backward passes whose gradients wait, and all else.
CallFacts: TypeAlias = tuple[int, int, Settings]


class Call(NamedTuple):
    """One call, as a rank makes it."""

    stamp: int
    kind: str
    number: int
    facts: CallFacts

    def named(self, numbers: Sequence[str]) -> dict[str, Any]:
        """What ranks compare, by the names that people know; what tells most first."""
        steps, passes, facts = self.facts
        clip, last_clip = ("none" if c == NO_CLIP else c for c in (facts.clip, facts.last_clip))
        return {
            "call": self.kind,
            **dict(zip(numbers, facts.numbers, strict=True)),
            "rows frozen (requires_grad)": not facts.trains,
            "gradient mode": "enabled" if facts.records else "no_grad",
            "weights of lookups used": facts.weighted,
            "backward passes that wait for a step": passes,
            "clip_grad_value_ of this step": clip,
            "clip_grad_value_ of the last step": last_clip,
            "steps made": steps,
            "factor of the gradients of the last step (scaler, clip_grad_norm_)": facts.factor,
            "calls made": self.number,
        }


class Stamps:
    """The calls of one rank on one wire, and the stamp of the one that it is in."""

    __slots__ = ("_digest", "_half", "_recent", "_settings", "bytes", "number", "value")

    def __init__(self) -> None:
        self.number, self.value, self.bytes = 0, 0, STAMP.pack(0)
        # The last calls, each at its number modulo how many are kept.
        none = (0, "", 0, (0, 0, Settings()))
        self._recent: list[tuple[int, str, int, CallFacts]] = [none] * _KEPT
        self._settings: Settings | None = None  # whose digest this is, and the factor's half
        self._digest = self._half = 0

    def begin(self, kind: CallKind, facts: CallFacts) -> None:
        """From now on messages are of this call."""
        steps, passes, settings = facts
        if settings is not self._settings:
            self._take(settings)
        self.number = number = self.number + 1
        digest = hash((kind.digest, number, steps, passes, self._digest))
        self.value = value = digest & _DIGEST_BITS | self._half
        self.bytes = value.to_bytes(8, "little")
        self._recent[number % _KEPT] = (value, kind, number, facts)

    def go_on(self, kind: CallKind, settings: Settings) -> None:
        """From now on messages are of a call that follows the last, with its facts.

        Only settings may have changed, and if more than the factor has, this is a call like any
        other: ranks may compute the factor with other rounding, and must come here alike.
        """
        number = self.number
        steps, passes, before = facts = self._recent[number % _KEPT][3]
        if settings is not before:
            facts = (steps, passes, settings)
            if settings[:-1] != before[:-1]:
                self.begin(kind, facts)
                return
            self._take(settings)
            self.value = self.value & _DIGEST_BITS | self._half
        self.number = number = number + 1
        self.value = value = self.value + kind.digest & _ALL_BITS
        self.bytes = value.to_bytes(8, "little")
        self._recent[number % _KEPT] = (value, kind, number, facts)

    def _take(self, settings: Settings) -> None:
        self._settings = settings
        self._digest, self._half = hash(settings[:-1]), _upper_half(settings.factor)

    @property
    def calls(self) -> list[Call]:
        """The last ones, in their order."""
        made = [Call(*call) for call in self._recent if call[1]]
        return sorted(made, key=lambda call: call.number)

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

    __slots__ = ("are_dropped", "number_names", "passes", "read_numbers", "settings")

    def __init__(self) -> None:
        self.settings = Settings()
        self.passes = 0  # that were added up since the last step, unless somebody dropped them
        self.are_dropped: Callable[[], bool] = bool
        self.number_names: tuple[str, ...] = ()  # such as "lr of table 'a'"
        self.read_numbers: Callable[[], object] = int  # has them taken if they have changed

    def takes(self, numbers: tuple[float, ...]) -> None:
        """The optimizer's numbers are these from now on."""
        self.settings = self.settings._replace(numbers=numbers)

    def looks_up(self, *, trains: bool, records: bool, weighted: bool) -> None:
        """How the next lookup is made."""
        now = self.settings
        if (now.trains, now.records, now.weighted) != (trains, records, weighted):
            self.settings = now._replace(trains=trains, records=records, weighted=weighted)

    def clips(self, largest: float) -> None:
        """Gradients that wait are clipped to this."""
        self.settings = self.settings._replace(clip=largest)

    def step(self, factor: float) -> None:
        """Gradients are applied, times a factor."""
        now = self.settings
        if (now.factor, now.last_clip, now.clip) != (factor, now.clip, NO_CLIP):
            self.settings = now._replace(factor=factor, last_clip=now.clip, clip=NO_CLIP)

    @property
    def waiting(self) -> int:
        """Backward passes whose gradients wait."""
        return 0 if self.are_dropped() else self.passes

    def facts(self, steps: int) -> CallFacts:
        """All of it, as of now; the same object of settings says that none has changed."""
        return steps, self.passes and self.waiting, self.settings


def _upper_half(value: float) -> int:
    near = value if abs(value) < _LARGEST else _LARGEST
    return int(_UPPER_HALF.unpack(_FLOAT.pack(near))[0])
