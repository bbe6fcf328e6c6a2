"""Legs: the pieces a long profile is counted in, kept on disk until the whole is done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RowRange:
    """The rows of every table that one pass counts: shard `index` of `count` equal ones."""

    index: int = 0
    count: int = 1

    def of(self, num_embeddings: int) -> tuple[int, int]:
        """First row, and the row after the last."""
        first = num_embeddings * self.index // self.count
        return first, num_embeddings * (self.index + 1) // self.count


@dataclass(frozen=True)
class Leg:
    """Parts `start` to `stop` of the data, counted for the rows of one shard."""

    start: int
    stop: int
    rows: RowRange = RowRange()

    @property
    def name(self) -> str:
        """Names the leg's folder."""
        return f"parts-{self.start}-{self.stop}-shard-{self.rows.index}-of-{self.rows.count}"


def by_parts(legs: list[Leg]) -> list[list[Leg]]:
    """Legs that count other rows of the same parts, together."""
    groups: dict[tuple[int, int], list[Leg]] = {}
    for leg in legs:
        groups.setdefault((leg.start, leg.stop), []).append(leg)
    return list(groups.values())
