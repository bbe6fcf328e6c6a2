"""Names of weights as they were at some moment: what deltas go onto, and lead to."""

from __future__ import annotations

import secrets
from typing import NamedTuple


def new_name() -> str:
    """A name for the weights as they are now, which nobody else gives to others."""
    return secrets.token_hex(8)


class Position(NamedTuple):
    """Weights as they were at some moment, by name; `sequence`: how many deltas led there."""

    name: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.name} {self.sequence}"

    @classmethod
    def of(cls, text: str) -> Position:
        """What `str` made a text of."""
        name, sequence = text.split()
        return cls(name, int(sequence))
