"""Names that fit: long ones are cut in the middle, and no two look alike."""

from __future__ import annotations

from collections.abc import Sequence

from rowtier.foreign import cut, shown


def shortened(names: Sequence[str], width: int) -> list[str]:
    """The names in at most `width` columns each, numbered where cutting made them equal."""
    told: list[str] = []
    for name in names:
        whole = shown(name)
        short, count = cut(whole, width), 1
        while short in told:
            count += 1
            mark = f" ({count})"
            short = cut(whole, width - len(mark)) + mark
        told.append(short)
    return told


def unique(names: Sequence[str]) -> list[str]:
    """The same names, with a number behind those that stand again."""
    told: list[str] = []
    for name in names:
        count, said = 1, name
        while said in told:
            count += 1
            said = f"{name} ({count})"
        told.append(said)
    return told
