"""A growing vocabulary in one process, as a dict: what the real one must be equal to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

# A sample: per feature the ids that it looks up.
Sample = Sequence[Sequence[Hashable]]


class NaiveGrowth:
    """Rows of ids, batch by batch; counts of ids without a row are exact."""

    def __init__(
        self,
        num_own: int,
        *,
        admit_after: int = 1,
        evict: str = "never",
        start: Sequence[Hashable] = (),
        start_counts: Sequence[int] = (),
        shared: Callable[[Hashable], int] = lambda _: -1,
    ):
        self.num_own, self.admit_after, self.evict, self.shared = (
            num_own,
            admit_after,
            evict,
            shared,
        )
        self.rows: dict[Hashable, int] = {key: row for row, key in enumerate(start)}
        self.last = dict.fromkeys(self.rows, 0)
        self.counts = dict(zip(start, start_counts, strict=True)) if start_counts else {}
        self.seen: Counter[Hashable] = Counter()
        self.clock = 0
        self.evicted: list[tuple[Hashable, int]] = []

    def batch(self, samples: Sequence[Sample], oldest: int | None = None) -> list[list[list[int]]]:
        """The rows of a global batch; rows that were used from batch `oldest` on stay."""
        self.clock += 1
        ids = [key for sample in samples for feature in sample for key in feature]
        for key in ids:
            if key in self.rows:
                self._use(key)
        new = Counter(key for key in ids if key not in self.rows)  # in the order of the batch
        for key, often in new.items():
            self.seen[key] += often
        for key, often in new.items():
            if self.seen[key] >= self.admit_after and self._room(oldest or self.clock):
                self.rows[key] = self._free
                self.last[key], self.counts[key] = self.clock, often
        return [[[self._row(key) for key in feature] for feature in sample] for sample in samples]

    def _use(self, key: Hashable) -> None:
        self.last[key] = self.clock
        self.counts[key] = self.counts.get(key, 0) + 1

    def _room(self, oldest: int) -> bool:
        """Find a row for an id: a free one, or that of another."""
        if len(self.rows) < self.num_own:
            self._free = len(self.rows)
            return True
        may_go = [key for key in self.rows if self.last[key] < oldest]
        if self.evict == "never" or not may_go:
            return False
        used = self.last if self.evict == "lru" else self.counts
        gone = min(may_go, key=lambda key: (used.get(key, 0), -self.rows[key]))
        self._free = self.rows.pop(gone)
        self.evicted.append((gone, self._free))
        return True

    def _row(self, key: Hashable) -> int:
        return self.rows[key] if key in self.rows else self.shared(key)
