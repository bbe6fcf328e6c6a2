"""How well a profile of the first half of real data speaks of the second.

Data sets of `../shared/data` beside this repository (or ROWTIER_DATA): every Parquet file, with
the tables of `NAME.tables.yaml` where there is one and else one table per column of whole numbers
(ratings and labels left out), and `criteo_sample.tsv`. Files are taken in their order. Of every
table, from the profile of the first half:

* coverage of the hottest .1, 1, 5 and 10 % of its rows (equal sets counted once), the share of
  lookups on rows never seen, and distinct rows of shuffled batches of 512, 2,048 and 8,192 samples
  (those of at most half of the second half), each with its 90 % interval, held against the
  second half;
* the step that is predicted for joint and row-wise on 2 × 4 devices whose fast memory holds a
  quarter of the model, held against a replay of the shuffled second half.

    interval_hit_rate       share of the intervals that hold the truth
    interval_abstained      share of figures without one, because the data cannot tell
    interval_score_ratio    mean of width + 20 × the distance by which it misses (absolute for
                            shares, relative for rows), over the same of the intervals that
                            profiles had before (`harness/real_data/intervals_of_halves.py`)
    distinct_error_*        |predicted / true − 1|, per table and batch size
    step_error_median       |predicted / replayed − 1|, per data set and method
    caution_*               mean step of the second half under plans that were made with
                            --confidence 90 %, over that under plans made without
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness.folders import DATA
from harness.form import Measured, run
from harness.real_data.intervals_of_halves import coverage_curve, distinct_interval
from numpy.typing import NDArray

from rowtier import (
    Cluster,
    Device,
    Level,
    PlanOptions,
    Profile,
    ProfileOptions,
    Table,
    Tables,
    Tier,
    make_plan,
    make_profile,
    replay,
)
from rowtier.profile.count import together
from rowtier.profile.counters import SampleLookups
from rowtier.profile.ids import Where, checked_rows
from rowtier.profile.order import rows_by_position
from rowtier.profile.readers import Source, TimeWindow, open_source

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
LEFT_OUT = ("rating", "label", "timestamp", "time")
HOT = (0.001, 0.01, 0.05, 0.1)
BATCHES = (512, 2048, 8192)
DEVICES = 8
LEVELS = (
    Level(name="node", size=4, bandwidth_bytes_per_s=1e10, latency_s=1e-6),
    Level(name="cluster", size=2, bandwidth_bytes_per_s=1.25e9, latency_s=2e-6),
)
METHODS = ("joint", "row-wise")
GOALS: dict[str, Any] = {
    "interval_hit_rate": (">=", 0.85),
    "interval_abstained": ("<=", 0.10),
    "interval_score_ratio": ("<=", 0.8),
    "distinct_error_median": ("<=", 0.10),
    "distinct_error_p90": ("<=", 0.25),
    "step_error_median": ("<=", 0.10),
}


@dataclass(frozen=True)
class Claim:
    """One figure: what is true, what the profile says, and what it would have said before."""

    table: str
    figure: str
    truth: float
    value: float
    low: float | None
    high: float | None
    before: tuple[float, float]
    relative: bool
    value_before: float = math.nan

    @property
    def hit(self) -> bool:
        assert self.low is not None
        assert self.high is not None
        return self.low <= self.truth <= self.high

    @property
    def score(self) -> float:
        assert self.low is not None
        assert self.high is not None
        return self._score(self.low, self.high)

    @property
    def score_before(self) -> float:
        return self._score(*self.before)

    def _score(self, low: float, high: float) -> float:
        missed = max(low - self.truth, self.truth - high, 0.0)
        return (high - low + 20 * missed) / (self.truth if self.relative else 1.0)


def measure(quick: bool) -> Measured:
    """Every data set; quick: the smaller ones."""
    rows: list[dict[str, object]] = []
    claims: list[Claim] = []
    steps: list[float] = []
    caution: list[float] = []
    for name, data, tables in data_sets():
        if quick and Path(data).stat().st_size > 4e6:
            continue
        profile = make_profile(data, tables, ProfileOptions(before="50%"))
        found = list(claims_of(profile, data, tables))
        claims += found
        errors, ratios = step_errors(profile, data)
        steps += errors.values()
        caution += ratios
        rows.append(row_of(name, found, errors))
    return Measured(rows, figures_of(claims, steps, caution))


def figures_of(
    claims: list[Claim], steps: list[float], caution: list[float]
) -> dict[str, float | None]:
    """What follows from all data sets together."""
    told = [claim for claim in claims if claim.low is not None]
    shares = [claim for claim in told if not claim.relative]
    errors = [abs(claim.value / claim.truth - 1) for claim in claims if claim.relative]
    before = [abs(claim.value_before / claim.truth - 1) for claim in claims if claim.relative]
    return {
        "interval_hit_rate": float(np.mean([claim.hit for claim in told])),
        "interval_abstained": 1 - len(told) / len(claims),
        "interval_score_ratio": float(
            np.mean([c.score for c in told]) / np.mean([c.score_before for c in told])
        ),
        "interval_score_ratio_shares": float(
            np.mean([c.score for c in shares]) / np.mean([c.score_before for c in shares])
        ),
        "distinct_error_median": float(np.median(errors)),
        "distinct_error_p90": float(np.quantile(errors, 0.9)),
        "distinct_error_median_before": float(np.median(before)),
        "distinct_error_p90_before": float(np.quantile(before, 0.9)),
        "step_error_median": float(np.median(steps)),
        "step_error_max": max(steps),
        "caution_mean": float(np.mean(caution)),
        "caution_worst": max(caution),
        "hit_rate_before": float(np.mean([c.before[0] <= c.truth <= c.before[1] for c in told])),
        "figures": float(len(claims)),
    }


def row_of(name: str, claims: list[Claim], errors: dict[str, float]) -> dict[str, object]:
    """One line of the result."""
    told = [claim for claim in claims if claim.low is not None]
    distinct = [abs(c.value / c.truth - 1) for c in claims if c.relative]
    worst = max(told, key=lambda claim: claim.score, default=None)
    return {
        "data": name,
        "figures": len(claims),
        "hit_rate": float(np.mean([c.hit for c in told])),
        "score": float(np.mean([c.score for c in told])),
        "score_before": float(np.mean([c.score_before for c in told])),
        "distinct_error": float(np.median(distinct)) if distinct else math.nan,
        **{f"step_error_{method}": error for method, error in errors.items()},
        "worst": worst and f"{worst.table}, {worst.figure}",
    }


def data_sets() -> Iterator[tuple[str, str, Tables]]:
    """Every data set with its tables."""
    for path in sorted(DATA.glob("*.parquet")):
        described = path.with_suffix(".tables.yaml")
        tables = Tables.load(described) if described.exists() else tables_of(path)
        yield path.stem, str(path), tables
    for path in sorted(DATA.glob("*.tsv")):
        yield path.stem, str(path), criteo_tables(path)


def tables_of(path: Path) -> Tables:
    """One table for every column of whole numbers, as large as its largest id."""
    data = pq.read_table(path)
    found = []
    for name in data.column_names:
        kind = data.schema.field(name).type
        bags = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if name in LEFT_OUT or not pa.types.is_integer(kind.value_type if bags else kind):
            continue
        values = pa.compute.list_flatten(data[name]) if bags else data[name]
        rows = pa.compute.max(values).as_py() + 1
        pooling = "mean" if bags else "sum"
        found.append(_table(name, rows, pooling=pooling))
    return Tables(batch_size=256, tables=tuple(found))


def criteo_tables(path: Path) -> Tables:
    """The 26 categorical columns, hashed into twice as many rows as there are ids."""
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    found = []
    for index in range(26):
        ids = {line[index - 26] for line in lines} - {""}
        found.append(_table(f"C{index + 1}", max(16, 2 * len(ids)), ids="hash"))
    return Tables(batch_size=256, tables=tuple(found))


def _table(name: str, rows: int, **more: Any) -> Table:
    return Table(name=name, num_embeddings=rows, embedding_dim=32, features=(name,), **more)


def claims_of(profile: Profile, data: str, tables: Tables) -> Iterator[Claim]:
    """Everything a profile says of data to come, beside what came."""
    first, second = (
        lookups_of(TimeWindow(**window).of(open_source(data, _features(tables))), tables)
        for window in ({"before": "50%"}, {"after": "50%"})
    )
    for table in tables:
        yield from _shares(profile, table, first[table.name], second[table.name])
        yield from _distinct(profile, table, second[table.name])


def _features(tables: Tables) -> list[str]:
    return list(dict.fromkeys(name for table in tables for name in table.features))


def lookups_of(source: Source, tables: Tables) -> dict[str, SampleLookups]:
    """The rows that every table's samples look up."""
    parts: dict[str, list[SampleLookups]] = {table.name: [] for table in tables}
    for part in source.parts:
        for chunk in source.read(part, _features(tables)):
            for table in tables:
                features = []
                for name in table.features:
                    ids = chunk.features[name]
                    where = Where(name, part.path, chunk.first_sample, ids.lengths)
                    rows = checked_rows(table, ids.values, None, where)
                    features.append(
                        SampleLookups(rows.rows, rows.lengths(ids.lengths), chunk.samples)
                    )
                parts[table.name].append(together(features))
    return {name: _joined(found) for name, found in parts.items()}


def _joined(parts: list[SampleLookups]) -> SampleLookups:
    lengths = np.concatenate([part.lengths for part in parts if part.lengths is not None])
    rows = np.concatenate([part.rows for part in parts])
    return SampleLookups(rows, lengths, len(lengths))


def _shares(
    profile: Profile, table: Table, first: SampleLookups, second: SampleLookups
) -> Iterator[Claim]:
    """Coverage of hot sets, and of the rows that were seen."""
    counts, rows = profile[table.name].counts, table.num_embeddings
    assert counts is not None
    if not len(counts.rows) or not len(second.rows):
        return
    order = rows_by_position(counts.rows, rows)
    seen = np.bincount(second.rows, minlength=rows)[order]
    reached = np.concatenate(([0.0], np.cumsum(seen) / seen.sum()))
    former = _former(first, rows)
    for hot in sorted({math.ceil(share * rows) for share in HOT}):
        found = profile.coverage(table.name, hot)
        before = former.at(hot)[1:]
        yield Claim(
            table.name, f"coverage of {hot} rows", float(reached[hot]), found.share, found.low,
            found.high, (before[0], before[1]), relative=False,
        )  # fmt: skip
    unseen = profile.unseen(table.name)
    before = former.at(len(counts.rows))
    yield Claim(
        table.name, "unseen", 1 - float(reached[len(counts.rows)]), unseen.share, unseen.low,
        unseen.high, (1 - before[2], 1 - before[1]), relative=False,
    )  # fmt: skip


def _former(first: SampleLookups, rows: int) -> Any:
    """The curve that halves of the data gave."""
    assert first.lengths is not None
    middle = int(first.lengths[: first.samples // 2].sum())
    early, late = (
        np.bincount(part, minlength=rows) for part in (first.rows[:middle], first.rows[middle:])
    )
    touched = np.flatnonzero(early + late)
    return coverage_curve((early + late)[touched], late[touched], rows)


def _distinct(profile: Profile, table: Table, second: SampleLookups) -> Iterator[Claim]:
    """Distinct rows of batches of the shuffled second half."""
    assert second.lengths is not None
    stats = profile[table.name]
    if not len(second.rows) or not stats.lookups:
        return
    order = np.random.default_rng(0).permutation(second.samples)
    place = np.empty(second.samples, dtype=np.int64)
    place[order] = np.arange(second.samples)
    places = np.repeat(place, second.lengths)
    assert stats.counts is not None
    former = profile_curve(stats.counts.counts, profile, table)
    for size in BATCHES:
        if size > second.samples // 2:
            continue
        batches = second.samples // size
        inside = places < batches * size
        pairs = np.unique(places[inside] // size * table.num_embeddings + second.rows[inside])
        seen = np.bincount(pairs // table.num_embeddings, minlength=batches).astype(np.float64)
        found = profile.distinct(table.name, size)
        said, low, high = distinct_interval(
            former, stats.lookups_per_sample, size, stats.samples, seen
        )
        yield Claim(
            table.name, f"distinct rows of {size}", float(seen.mean()), found.value, found.low,
            found.high, (low, high), relative=True, value_before=said,
        )  # fmt: skip


def profile_curve(counts: Ints, profile: Profile, table: Table) -> Any:
    """The curve that was taken for the distribution of lookups, drift between halves included."""
    slices = profile[table.name].slices
    assert slices is not None
    rows = table.num_embeddings
    if slices.thinning:
        return coverage_curve(counts, None, rows).smoothed()
    middle = np.searchsorted(np.cumsum(slices.samples), slices.samples.sum() / 2) + 1
    late = slices.counts[:, middle:].sum(axis=1, dtype=np.int64)
    total = slices.counts.sum(axis=1, dtype=np.int64)
    return coverage_curve(total, late, rows).smoothed()


def step_errors(profile: Profile, data: str) -> tuple[dict[str, float], list[float]]:
    """How far predicted steps are off, by method; and what planning with caution does to them."""
    half = profile.stats[0].samples
    batch_size = min(256, half // 2 // DEVICES)
    profile = Profile(batch_size, profile.stats)
    cluster = cluster_for(profile.tables)
    errors, caution = {}, []
    for method in METHODS:
        plan = make_plan(profile, cluster, method)
        found = replay(plan, data, after="50%", batches="shuffled")
        errors[method] = abs(found.figure("step").error)
        if method == "joint":
            shy = make_plan(profile, cluster, method, PlanOptions(confidence=0.9))
            again = replay(shy, data, after="50%", batches="shuffled")
            caution.append(again.step_s / found.step_s)
    return errors, caution


def cluster_for(tables: Tables, levels: tuple[Level, ...] = LEVELS, name: str = "2x4") -> Cluster:
    """Fast memory for a quarter of the model, slow memory for all; two nodes of four devices.

    Links are slow and quick to answer, so that the bytes of these small tables decide the step.
    Other levels may be given.
    """
    total = sum(table.stored_bytes for table in tables)
    share = total // 4 // math.prod(level.size for level in levels)
    fast = Tier(name="hbm", capacity_bytes=share, bandwidth_bytes_per_s=1e11)
    slow = Tier(name="dram", capacity_bytes=2 * total, bandwidth_bytes_per_s=5e9)
    return Cluster(name=name, device=Device(tiers=(fast, slow)), levels=levels)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory():
        run("real_data", measure, goals=GOALS)
