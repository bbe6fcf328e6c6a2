"""Names that fit: long ones are cut in the middle, and no two look alike."""

from __future__ import annotations

from collections.abc import Sequence

ELLIPSIS = "…"


def shortened(names: Sequence[str], width: int) -> list[str]:
    """The names in at most `width` characters each, numbered where cutting made them equal."""
    told: list[str] = []
    for name in names:
        short, count = _cut(name, width), 1
        while short in told:
            count += 1
            mark = f" ({count})"
            short = _cut(name, width - len(mark)) + mark
        told.append(short)
    return told


def _cut(name: str, width: int) -> str:
    """Both ends of a name tell it apart from others more often than its beginning alone."""
    name = " ".join(name.split())
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return name[: width - 1 - tail] + ELLIPSIS + name[len(name) - tail :]


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
