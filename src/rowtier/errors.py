"""What can go wrong, as one tree. Every message names the value and the way out.

    RowtierError
    ├── UserError            something the caller can fix            (exit code 2)
    │   ├── UnitError        "24 parsecs" is not a size
    │   ├── InvalidError     a file or object holds mistakes: all of them are listed
    │   │   └── VersionError written in a format this rowtier does not read
    │   └── MismatchError    two things that were not made for each other
    └── InfeasibleError      no placement satisfies the constraints  (exit code 3)

`assert` is for what rowtier promised itself; these are for what a user did.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rowtier.foreign import shown, spelled

LONGEST_KEY = 200  # characters of a key in a message
LONGEST_HINT = 2000


class RowtierError(Exception):
    """Anything rowtier raises on purpose."""

    exit_code = 2

    def __reduce__(self) -> tuple[object, ...]:
        return _made_again, (type(self), self.args, self.__dict__)  # ranks tell each other


class UserError(RowtierError, ValueError):
    """A mistake in what the caller gave; the message says how to fix it."""


class UnitError(UserError):
    """A quantity that cannot be read, such as "24 parsecs" where a size belongs."""

    def __init__(self, value: object, why: str):
        self.why = why
        super().__init__(f"{spelled(value)}: {why}")


@dataclass(frozen=True)
class Mistake:
    """One thing wrong in a file: at which key, which value, and what is accepted instead."""

    key: str
    value: object
    accepted: str

    def below(self, key: str) -> Mistake:
        """The same mistake, seen from outside the part that `key` names."""
        dot = "." if self.key and not self.key.startswith("[") else ""
        return Mistake(key + dot + self.key, self.value, self.accepted)

    def __str__(self) -> str:
        value = "" if self.value is None else f" {spelled(self.value)}:"
        accepted = shown(self.accepted, LONGEST_HINT)
        return f"{shown(self.key, LONGEST_KEY)}:{value} {accepted}" if self.key else accepted


class InvalidError(UserError):
    """A file (or object) with one or more mistakes; `mistakes` lists every one."""

    def __init__(self, source: object, mistakes: Iterable[Mistake]):
        self.source = str(source)
        self.mistakes = tuple(mistakes)
        count = len(self.mistakes)
        head = f"{shown(self.source)}: {count} mistake{'s' if count != 1 else ''}"
        super().__init__("\n".join([head, *(f"  {m}" for m in self.mistakes)]))


class VersionError(InvalidError):
    """A file whose `format_version` this rowtier does not read."""


class MismatchError(UserError):
    """Two things that were not made for each other, such as a plan and another profile."""


class InfeasibleError(RowtierError):
    """No placement fits; the message says what is missing and by how much."""

    exit_code = 3


def _made_again(
    kind: type[RowtierError], args: tuple[object, ...], facts: dict[str, object]
) -> RowtierError:
    """An error of another process, whose message is complete."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error
