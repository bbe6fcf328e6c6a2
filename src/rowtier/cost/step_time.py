"""The time of a step, part by part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rowtier.profile.curve import Floats


@dataclass(frozen=True, eq=False)
class StepTime:
    """Where the time of a step goes. Arrays count holders (rows) and levels (columns)."""

    memory_s: Floats  # per holder
    work_s: Floats  # per holder, what it does besides moving bytes
    exchange_s: Floats  # ids, rows or sums, gradients: bytes over bandwidth
    sync_s: Floats  # the same for copies
    exchange_latency_s: Floats  # per level, messages counted
    sync_latency_s: Floats
    hidden_s: float = 0.0  # beside which copies can be kept equal
    side_by_side: tuple[tuple[int, ...], ...] = ()  # levels that run at the same time

    @property
    def slowest_memory_s(self) -> float:
        """Memory time of the slowest holder."""
        return float(self.memory_s.max())

    @property
    def slowest(self) -> int:
        """The holder that takes longest for memory and work."""
        return int((self.memory_s + self.work_s).argmax())

    @property
    def slowest_work_s(self) -> float:
        """What work adds to the step: beside its memory time, of the slowest holder."""
        return float((self.memory_s + self.work_s).max()) - self.slowest_memory_s

    @property
    def exchange_level_s(self) -> Floats:
        """Time of each level's links for ids, rows or sums, and gradients."""
        return np.asarray(self.exchange_s.max(axis=0) + self.exchange_latency_s)

    @property
    def sync_level_s(self) -> Floats:
        """Time of each level's links for keeping copies equal."""
        return np.asarray(self.sync_s.max(axis=0) + self.sync_latency_s)

    @property
    def sync_kept(self) -> float:
        """The share of keeping copies equal that the step waits for."""
        whole_s = float(self._in_turn(self.sync_level_s))
        return max(0.0, 1 - self.hidden_s / whole_s) if whole_s else 0.0

    @property
    def exchange_counts(self) -> Floats:
        """1 for each level whose exchange the step waits for; 0 where another takes longer."""
        return outlasting(self.exchange_level_s, self.side_by_side, axis=0)

    @property
    def sync_counts(self) -> Floats:
        """The share of each level's keeping copies equal that the step waits for."""
        return self.sync_kept * outlasting(self.sync_level_s, self.side_by_side, axis=0)

    @property
    def level_s(self) -> Floats:
        """What each level's links add to the step."""
        exchange_s = self.exchange_counts * self.exchange_level_s
        return np.asarray(exchange_s + self.sync_counts * self.sync_level_s)

    @property
    def waiting_s(self) -> float:
        """What latencies and messages add to the step."""
        exchange_s = self.exchange_counts @ self.exchange_latency_s
        return float(exchange_s + self.sync_counts @ self.sync_latency_s)

    @property
    def links_s(self) -> float:
        """Link time on the critical path, all levels together."""
        return float(self._links_s)

    @property
    def step_s(self) -> float:
        """Memory, work and links, one after the other."""
        return float(self.each_step_s)

    @property
    def each_step_s(self) -> Floats:
        """The step's time, where arrays have further axes: one for each placement."""
        return np.asarray((self.memory_s + self.work_s).max(axis=0) + self._links_s)

    @property
    def _links_s(self) -> Floats:
        sync_s = np.maximum(self._in_turn(self.sync_level_s) - self.hidden_s, 0.0)
        return np.asarray(self._in_turn(self.exchange_level_s) + sync_s)

    def _in_turn(self, level_s: Floats) -> Floats:
        return summed(level_s, self.side_by_side, axis=0)


def summed(seconds: Floats, side_by_side: tuple[tuple[int, ...], ...], axis: int) -> Floats:
    """The sum along an axis, where of what runs side by side only the longest counts."""
    total = np.asarray(seconds.sum(axis=axis))
    for together in side_by_side:
        here = seconds.take(together, axis=axis)
        total = total - here.sum(axis=axis) + here.max(axis=axis)
    return np.asarray(total)


def outlasting(seconds: Floats, side_by_side: tuple[tuple[int, ...], ...], axis: int) -> Floats:
    """1 along an axis, but 0 for what runs beside something that takes longer."""
    counts = np.ones_like(seconds)
    moved, counted = np.moveaxis(seconds, axis, 0), np.moveaxis(counts, axis, 0)
    for together in side_by_side:
        longest = moved[list(together)].argmax(axis=0)
        for index, column in enumerate(together):
            counted[column] = longest == index
    return counts
