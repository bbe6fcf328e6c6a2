"""Coverage that a profile reports against what its hot set really serves.

The stream: 100 M independent ids of a Zipf 1.05 distribution over 40 M rows, rows scattered
by a seeded bijection, drawn anew for every seed. A sample of x % is the first x % of the
stream: its ids are independent, so any x % of it are alike. It has twelve time slices, which know
as many of the rows as those of a profile. The hot set is the K rows with the highest counts,
ties by row id.

The truth is Σ p over that very hot set: what infinitely many fresh ids would measure. Once
per run it is checked against fresh ids that are really drawn (`fresh_difference`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from harness.form import Measured, run
from numpy.typing import NDArray

from rowtier.profile.coverage import coverage_curve
from rowtier.profile.drift import Drift
from rowtier.profile.slices import Slices, thin
from rowtier.synth.kernels import ZipfShape, fill_zipf, scatter, zipf_shape
from rowtier.synth.seed import key_of

Ints = NDArray[np.int64]
Counts = NDArray[np.int32]
Floats = NDArray[np.float64]

EXPONENT = 1.05
SAMPLES = (0.001, 0.01, 0.1, 1.0)
HOT_SETS = (0.001, 0.01, 0.05, 0.1)
CHUNK = 2_000_000
SLICES = 12
FEW, LARGE = 4, 2_000_000  # of samples of more ids, one row in sixteen is looked at
ONE = np.int32(1)  # of the counters' own type: otherwise np.add.at is ten times slower
GOALS: dict[str, Any] = {
    "max_coverage_error": ("<=", 0.02),
    "interval_hit_rate": (">=", 0.85),
    "fresh_difference": ("<=", 0.001),
}


@dataclass(frozen=True)
class Stream:
    """A distribution over the rows of a table, and how much of it is read."""

    rows: int
    ids: int
    shape: ZipfShape
    row_of: Counts  # rank → row
    heat: Floats  # row → p

    @classmethod
    def of(cls, rows: int, ids: int) -> Stream:
        row_of = np.arange(rows)
        scatter(row_of, rows, key_of(0, "profile_sampling", "rows"))
        heat = np.empty(rows)
        heat[row_of] = np.arange(1, rows + 1, dtype=np.float64) ** -EXPONENT
        heat /= heat.sum()
        return cls(rows, ids, zipf_shape(rows, EXPONENT), row_of.astype(np.int32), heat)

    def draw(self, ids: int, seed: int, part: str) -> Iterator[Counts]:
        """Rows of so many lookups, in chunks."""
        key = key_of(seed, "profile_sampling", part)
        for chunk, start in enumerate(range(0, ids, CHUNK)):
            ranks = np.empty(min(CHUNK, ids - start), dtype=np.int64)
            fill_zipf(ranks, np.array([0, len(ranks)]), chunk, key, self.shape)
            yield self.row_of[ranks]


def measure(quick: bool) -> Measured:
    """Error and hit rate of every sample size and hot set."""
    stream = Stream.of(4_000_000, 20_000_000) if quick else Stream.of(40_000_000, 100_000_000)
    seen: dict[tuple[float, float], list[tuple[float, ...]]] = {}
    fresh = 0.0
    for seed in range(4 if quick else 20):
        for sample, counts, drift in samples(stream, seed):
            touched = np.flatnonzero(counts)
            curve = coverage_curve(counts[touched], drift, stream.rows)
            for share, truth, claim in truths(stream, counts):
                cell = (truth, claim, *curve.at(round(share * stream.rows)))
                seen.setdefault((sample, share), []).append(cell)
        if seed == 0:
            fresh = fresh_difference(stream, counts, stream.ids // 10)
    rows = [_row(stream, *cell, np.array(found)) for cell, found in seen.items()]
    figures = {
        "max_coverage_error": max(float(row["max_error"]) for row in rows),
        "interval_hit_rate": float(np.mean([row["hit_rate"] for row in rows])),
        "lowest_cell_hit_rate": min(float(row["hit_rate"]) for row in rows),
        "claim_error": max(float(row["claim_error"]) for row in rows),
        "fresh_difference": fresh,
    }
    return Measured(rows, figures)


def samples(stream: Stream, seed: int) -> Iterator[tuple[float, Counts, Drift]]:
    """Every sample of one stream: its counts, and what its slices say about change."""
    counts = np.zeros(stream.rows, dtype=np.int32)
    stops = {round(stream.ids * sample): sample for sample in SAMPLES}
    edges = {stop: [stop * part // SLICES for part in range(1, SLICES + 1)] for stop in stops}
    every = {edge for found in edges.values() for edge in found}
    few = np.flatnonzero(thin(np.arange(stream.rows), FEW))  # what large samples keep at most
    read, seen = 0, dict[tuple[int, int], tuple[Ints, Counts]]()
    for ids in _cut_at(stream.draw(stream.ids, seed, "stream"), every):
        np.add.at(counts, ids, ONE)
        read += len(ids)
        for stop in (stop for stop in stops if read in edges[stop]):
            rows = few[counts[few] > 0] if stop > LARGE else np.flatnonzero(counts)
            seen[stop, read] = rows, counts[rows]
        if read in stops:
            parts = [seen.pop((read, edge)) for edge in edges[read]]
            yield stops[read], counts, _drift(parts, FEW if read > LARGE else 0, read, stream.rows)


def _drift(parts: list[tuple[Ints, Counts]], thinning: int, ids: int, rows: int) -> Drift:
    """From the touched rows and their counts so far, at the end of every slice."""
    touched = parts[-1][0]
    running = np.zeros((len(touched), SLICES + 1), dtype=np.int64)
    for at, (found, counts) in enumerate(parts):
        running[np.searchsorted(touched, found), at + 1] = counts
    each, by_slice = np.full(SLICES, ids // SLICES), np.diff(running, axis=1)
    return Drift(Slices(0, thinning, 0, each, touched, by_slice).thinned(), rows)


def _cut_at(chunks: Iterator[Counts], stops: set[int]) -> Iterator[Counts]:
    """The same ids in pieces that end at every stop."""
    read = 0
    for chunk in chunks:
        inside = sorted(stop - read for stop in stops if read < stop < read + len(chunk))
        yield from np.split(chunk, inside)
        read += len(chunk)


def truths(stream: Stream, counts: Counts) -> Iterator[tuple[float, float, float]]:
    """Per hot set: its size, its share of lookups to come, and what the sample itself claims."""
    rows = np.bincount(counts)[::-1]
    mass = np.bincount(counts, stream.heat)[::-1]
    own = rows * np.arange(len(rows))[::-1]
    tied, tied_count = np.empty(0, dtype=np.int64), -1
    for share in HOT_SETS:
        size = round(share * stream.rows)
        group = int(np.searchsorted(np.cumsum(rows), size))  # holds the coldest row that is in
        inside = size - int(rows[:group].sum())
        count = len(rows) - 1 - group
        if count != tied_count:
            tied, tied_count = np.flatnonzero(counts == count), count
        truth = mass[:group].sum() + stream.heat[tied[:inside]].sum()
        claim = (own[:group].sum() + inside * count) / own.sum()
        yield share, float(truth), float(claim)


def fresh_difference(stream: Stream, counts: Counts, ids: int) -> float:
    """How far the coverage of fresh ids is from Σ p, at most over the hot sets."""
    fresh = np.zeros(stream.rows, dtype=np.int32)
    for rows in stream.draw(ids, 0, "fresh"):
        np.add.at(fresh, rows, ONE)
    order = np.argsort(-counts, kind="stable")  # ties by row id
    found = 0.0
    for share, truth, _ in truths(stream, counts):
        hot = order[: round(share * stream.rows)]
        found = max(found, abs(float(fresh[hot].sum()) / ids - truth))
    return found


def _row(stream: Stream, sample: float, hot: float, found: Floats) -> dict[str, Any]:
    truth, claim, share, low, high = found.T
    return {
        "sample": f"{sample:.1%}",
        "hot_rows": round(hot * stream.rows),
        "seeds": len(found),
        "truth": float(truth.mean()),
        "reported": float(share.mean()),
        "half_width": float((high - low).mean() / 2),
        "max_error": float(np.abs(share - truth).max()),
        "hit_rate": float(((low <= truth) & (truth <= high)).mean()),
        "claimed_by_itself": float(claim.mean()),
        "claim_error": float(np.abs(claim - truth).max()),
    }


if __name__ == "__main__":
    run("profile_sampling", measure, goals=GOALS)
