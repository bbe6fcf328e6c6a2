"""How far predictions are from replays, on data that stays the same and on data that does not.

Stationary data: six pooled tables and a table of sequences, ids drawn from Zipf's law, at
least 10 lookups per row in the half that is profiled. Plans of every method are made from
the first half and replayed on the second, on 2 nodes of 4 devices with two memories. The fast
ones hold 40 % of the rows together (`tight`), or all of them three times (`roomy`: room for
copies). Sparse figures come from further replays of the same plans with small batches.

    stationary_max_error    the largest error of any figure that counts more than 10⁵ events in
                            the replay: bytes per level, distinct rows, lookups per tier and
                            holder, and so on. Times are no counts; their error is in the rows.
    interval_hit_rate       share of the other figures that are inside their stated interval
    tail_*_error            mean size of an error over steps of many small batches
                            (`harness/predict_vs_replay/tail.py`),
                            where loads differ the most: of the step of mean loads (`step`) and
                            of the mean over steps (`expected`), both against the mean of the
                            replayed steps, of their median and of their 99th percentile
    expected_max_*_ratio    replayed steps of `joint` with `objective: expected_max` over those
                            without, for tables that are alike: their mean, and their p99
    replay_lookups_per_s    lookups that one core replays in a second, decoding included: the
                            median of runs over a criteo-like file, compiled beforehand

Real data (`../shared/data` beside this repository, or ROWTIER_DATA): plans from the first
half, replayed on the second. Errors are shown as measured, and those above 10 % with their
reason, which is measured too. "Repeats": how many more distinct rows the statistics of the
second half itself predict than its steps have, as samples that follow each other share ids;
statistics know no order. "New": the share of a step's distinct rows that the first half
never saw. `real_tail_*_error` are the errors of small batches there, which changes of the data
are part of.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness.folders import DATA
from harness.form import Measured, run
from harness.predict_vs_replay.tail import (
    TAIL_DATA,
    alike,
    objective_figures,
    objectives,
    tail_errors,
    tail_figures,
    tails,
)

from rowtier import (
    Cluster,
    Device,
    Level,
    Profile,
    ProfileOptions,
    Replay,
    Table,
    Tables,
    Tier,
    make_plan,
    make_profile,
    make_workload,
    predict,
    replay,
)
from rowtier.evaluate.replayed import Figure

METHODS = (
    "row-wise", "row-wise-coalesced", "table-wise", "recshard", "flexshard", "sca", "joint",
)  # fmt: skip
MANY = 1e5
SPARSE = ((64, 12, 5), (128, 20, 6))  # batch size, steps, seed
FAST = {"tight": 0.4, "roomy": 3.0}  # fast memory of all devices over the bytes of all rows
REAL = ("bookcrossing", "diginetica", "nowplaying", "criteo_sample")
GOALS: dict[str, Any] = {
    "stationary_max_error": ("<=", 0.02),
    "interval_hit_rate": (">=", 0.85),
    "replay_lookups_per_s": (">=", 1e7),
}


def measure(quick: bool) -> Measured:
    """Everything; rows first of the stationary data, then of real data."""
    rows: list[dict[str, object]] = []
    errors: list[float] = []
    hits: list[bool] = []
    with tempfile.TemporaryDirectory() as folder:
        tables, path = stationary_data(Path(folder), quick)
        profile = half_of(path, tables, late=False)
        tail = tails("stationary", path, profile, cluster_for(profile), quick)
        tail_rows = [row(data, method, found, repeats=0.0) for data, method, found in tail]
        for data, method, found in stationary(profile, path):
            errors += [abs(figure.error) for figure in counted(found) if figure.events > MANY]
            hits += [figure.as_expected for figure in counted(found) if figure.events <= MANY]
            rows.append(row(data, method, found, repeats=0.0))
        ratios, objective_rows = compared_objectives(Path(folder), quick)
        speed = lookups_per_s(Path(folder), quick)
    for data, method, found, repeats in real(quick):
        rows.append(row(data, method, found, repeats))
    real_rows = [row(data, method, found, repeats=0.0) for data, method, found in real_tails(quick)]
    rows += [*tail_rows, *real_rows, *objective_rows]
    figures: dict[str, float | None] = {
        "stationary_max_error": max(errors),
        "interval_hit_rate": sum(hits) / len(hits),
        **tail_figures(tail_rows, "tail"),
        **tail_figures(real_rows, "real_tail"),
        **ratios,
        "replay_lookups_per_s": speed,
        "figures_above_1e5": float(len(errors)),
        "figures_below_1e5": float(len(hits)),
    }
    return Measured(rows, figures)


def counted(found: Replay) -> list[Figure]:
    """Figures that count something."""
    return [figure for figure in found.figures if figure.label.unit != "s"]


def row(data: str, method: str, found: Replay, repeats: float) -> dict[str, object]:
    """One line of the result."""
    figures = counted(found)
    many = [figure for figure in figures if figure.events > MANY]
    few = [figure for figure in figures if figure.events <= MANY]
    worst = max(many, key=lambda figure: abs(figure.error), default=None)
    return {
        "data": data,
        "method": method,
        **tail_errors(found),
        "max_error": worst and abs(worst.error),
        "of": worst and ", ".join(filter(None, worst.label[1:4])),
        "over_10%": f"{sum(abs(figure.error) > 0.1 for figure in many)} of {len(many)}",
        "hit_rate": sum(f.as_expected for f in few) / len(few) if few else None,
        "reason": reason(found, worst, repeats),
    }


def reason(found: Replay, worst: Figure | None, repeats: float) -> str:
    """Why the worst figure is off by more than 10 %, from what was counted."""
    if worst is None or abs(worst.error) <= 0.1:
        return ""
    if worst.label.name == "samples at home":
        return "features of a sample depend on each other; predicted as if they did not"
    rows = found.figure("rows touched", at=found.prediction.plan.cluster.top)
    new = f"new {found.unseen / (found.steps * rows.replayed):.0%}"
    if rows.error > 0.1:
        return f"repeats {repeats:.0%}, {new}"
    blocks = any(
        b.order == "blocks" for bands in found.prediction.plan.bands.values() for b in bands
    )
    if worst.label.kind == "holder" and blocks:
        return f"{new}, and they lie in the last blocks: ids count by first appearance"
    return f"{new}; hot rows change"


def stationary(profile: Profile, data: Path) -> Iterator[tuple[str, str, Replay]]:
    """Replays of each method's plan on data like the profiled data."""
    for name, share in FAST.items():
        for method in METHODS:
            plan = make_plan(profile, cluster_for(profile, share), method)
            yield name, method, replay(plan, data, after=0.5, batches="in_time_order")
            for batch, steps, seed in SPARSE:
                found = replay(
                    plan,
                    data,
                    batch_size=batch,
                    steps=steps,
                    seed=seed,
                    after=0.5,
                    batches="in_time_order",
                )
                yield f"{name}, {steps} steps of {batch}", method, found


def stationary_data(folder: Path, quick: bool) -> tuple[Tables, Path]:
    """Zipf's law over rows in random order; lengths fixed, at random, or often none."""
    random = np.random.default_rng(11)
    samples, batch = (200_000, 512) if quick else (1_000_000, 1024)
    columns: dict[str, pa.Array] = {}
    tables = []
    shapes = [(20_000, 1, 1.05), (5_000, 4, 0.8), (30_000, 6, 1.2), (300, 1, 0.6), (8_000, 3, 1.0)]
    shapes += [(2_000, 2, 0.0), (20_000, 8, 1.05)]
    for index, (rows, length, zipf) in enumerate(shapes):
        rows = rows // 4 if quick else rows
        lengths = np.ones(samples, dtype=np.int64)
        if length > 1:
            lengths = random.poisson(length, samples)
        heat = np.arange(1, rows + 1, dtype=float) ** -zipf
        ranks = random.choice(rows, size=int(lengths.sum()), p=heat / heat.sum())
        ids = random.permutation(rows)[ranks]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        column = pa.LargeListArray.from_arrays(offsets, ids) if length > 1 else pa.array(ids)
        columns[f"f{index}"] = column
        assert len(ids) / 2 > 10 * rows
        pooling = "none" if index == len(shapes) - 1 else "sum"
        name, features = f"t{index}", (f"f{index}",)
        tables.append(
            Table(
                name=name, num_embeddings=rows, embedding_dim=32, features=features,
                pooling=pooling,
            )
        )  # fmt: skip
    path = folder / "stationary.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=100_000)
    return Tables(batch_size=batch, tables=tuple(tables)), path


def half_of(data: Path, tables: Tables, late: bool) -> Profile:
    """The profile of the first or second half of the samples."""
    options = ProfileOptions(after=0.5) if late else ProfileOptions(before=0.5)
    return make_profile(data, tables, options)


def cluster_for(profile: Profile, fast_share: float = 0.4) -> Cluster:
    """Two nodes of four devices whose fast memories hold a share of all rows together."""
    nodes, devices = 2, 4
    total = sum(stats.table.stored_bytes for stats in profile.stats)
    fast = int(fast_share * total / (nodes * devices))
    return Cluster(
        name="bench",
        levels=(
            Level(name="node", size=devices, bandwidth_bytes_per_s=3e11, latency_s=5e-6),
            Level(name="cluster", size=nodes, bandwidth_bytes_per_s=2.5e10, latency_s=2e-5),
        ),
        device=Device(
            tiers=(
                Tier(
                    name="hbm", capacity_bytes=fast, bandwidth_bytes_per_s=1.5e12,
                    granularity_bytes=32,
                ),
                Tier(name="dram", capacity_bytes=4 * total, bandwidth_bytes_per_s=1.6e10),
            )
        ),
    )  # fmt: skip


def lookups_per_s(folder: Path, quick: bool) -> float:
    """Lookups per second of one core, whole runs with decoding, after one to compile."""
    samples = 300_000 if quick else 2_000_000
    make_workload("criteo", folder / "criteo", samples=samples, scale=0.01)
    data = folder / "criteo" / "data"
    profile = make_profile(data, folder / "criteo" / "tables.yaml")
    plan = make_plan(profile, Cluster.preset("recshard-16"), "row-wise")
    speeds = []
    for _ in range(4):
        before = time.process_time()
        found = replay(plan, data, batch_size=min(4096, samples // 64), batches="in_time_order")
        speeds.append(found.lookups / (time.process_time() - before))
    return statistics.median(speeds[1:])


def real(quick: bool) -> Iterator[tuple[str, str, Replay, float]]:
    """Replays of the second half of real data under plans from the first."""
    if not DATA.is_dir():
        print(f"no real data: there is no folder {DATA}; set ROWTIER_DATA", file=sys.stderr)
        return
    for name, path, tables in real_tables():
        profile, own = half_of(path, tables, late=False), half_of(path, tables, late=True)
        cluster = cluster_for(profile)
        for method in ("row-wise", "joint") if quick else METHODS:
            plan = make_plan(profile, cluster, method)
            found = replay(plan, path, after=0.5, batches="in_time_order")
            rows = found.figure("rows touched", at=cluster.top).replayed
            expected = predict(replace(plan, profile=own.to_curve())).facts.distinct[-1]
            yield name, method, found, float(expected) / rows - 1


def compared_objectives(
    folder: Path, quick: bool
) -> tuple[dict[str, float | None], list[dict[str, object]]]:
    """What `objective: expected_max` is worth, and the rows of both plans."""
    found, rows = [], []
    for count in (8,) if quick else (8, 16, 24):
        for zipf in (0.0,) if quick else (0.0, 0.6):
            tables, path = alike(folder, count, zipf)
            profile = half_of(path, tables, late=False)
            name = f"{count} alike, zipf {zipf}"
            for data, *both in objectives(name, path, profile, cluster_for(profile, 1.5)):
                found.append((both[0], both[1]))
                for method, one in zip(("joint", "joint, expected_max"), both, strict=True):
                    rows.append(row(data, method, one, repeats=0.0))
    return objective_figures(found), rows


def real_tails(quick: bool) -> Iterator[tuple[str, str, Replay]]:
    """Small batches of real data."""
    for name, path, tables in real_tables(TAIL_DATA) if DATA.is_dir() else ():
        profile = half_of(path, tables, late=False)
        yield from tails(name, path, profile, cluster_for(profile), quick)


def real_tables(wanted: Sequence[str] = REAL) -> Iterator[tuple[str, Path, Tables]]:
    """The real datasets that are there, with tables for their columns."""
    for name in wanted:
        path, said = DATA / f"{name}.parquet", DATA / f"{name}.tables.yaml"
        if path.exists():
            yield name, path, Tables.load(said) if said.exists() else _tables_of(path)
    path = DATA / "criteo_sample.tsv"
    if path.exists() and "criteo_sample" in wanted:
        tables = [_hashed(f"C{i}", 10_000) for i in range(1, 27)]
        yield "criteo_sample", path, Tables(batch_size=64, tables=tuple(tables))


def _tables_of(path: Path) -> Tables:
    """One table per column of ids; sequences are not pooled."""
    schema = pq.read_schema(path)
    tables = []
    for field in schema:
        if pa.types.is_floating(field.type) or field.name == "rating":
            continue
        column = pq.read_table(path, columns=[field.name]).column(0).combine_chunks()
        sequence = pa.types.is_list(field.type) or pa.types.is_large_list(field.type)
        values = column.flatten() if sequence else column.drop_null()
        rows = int(pa.compute.max(values).as_py()) + 1
        plain = rows < 4 * len(values)
        table = _hashed(field.name, 2 * len(values.unique()))
        if plain:
            table = table.model_copy(update={"num_embeddings": rows, "ids": "as_is"})
        tables.append(table.model_copy(update={"pooling": "none"}) if sequence else table)
    return Tables(batch_size=512, tables=tuple(tables))


def _hashed(name: str, rows: int) -> Table:
    return Table(name=name, num_embeddings=rows, embedding_dim=32, features=(name,), ids="hash")


if __name__ == "__main__":
    run("predict_vs_replay", measure, goals=GOALS)
