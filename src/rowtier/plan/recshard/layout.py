"""What a solver returns: who holds which ranks of which item, in which memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from rowtier.plan.recshard.bound import Bound
from rowtier.plan.recshard.heat import Ints
from rowtier.plan.recshard.pieces import ItemPieces


class Slice(NamedTuple):
    """Ranks `start` to `stop` of a piece that another device holds in its owner's place."""

    piece: int
    start: int
    stop: int
    device: int


@dataclass
class PieceLayout:
    """Every piece on a device; ranks before `cuts[t, j]` of item j are in memory t or faster."""

    pieces: ItemPieces
    cuts: Ints
    owner: Ints  # per piece
    slices: list[Slice] = field(default_factory=list)


class Solution(NamedTuple):
    """A layout, the seconds per step of its slowest device, and what no other can beat."""

    layout: PieceLayout
    seconds: float
    bound: Bound
