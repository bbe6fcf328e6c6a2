"""The sheets of a report: one for every chart and table of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rowtier.cluster import DEVICE, Cluster
from rowtier.evaluate.drift import PlanDrift
from rowtier.evaluate.shares import tier_seconds
from rowtier.evaluate.words import HomeRange, cuts, placement
from rowtier.profile.curve import Curve
from rowtier.profile.forecast import distinct_of, unseen_of
from rowtier.profile.profile import TableStats
from rowtier.report.facts import Facts
from rowtier.report.sheet import Sheet, drawable

MAX_BARS = 64
CURVE_POINTS = 40
PARTS = {
    "weights": "weights",
    "state": "optimizer state",
    "remap": "remap tables",
    "buffers": "exchange buffers",
    "outputs": "outputs",
}
FLOWS = {
    "ids": "ids",
    "forward": "rows and sums",
    "backward": "gradients",
    "sync": "sync of copies",
    "sync_ids": "ids of synced rows",
}


def all_sheets(facts: Facts) -> dict[str, Sheet]:
    """Every sheet by its name, which is also the name of the file it is downloaded to."""
    return {
        "memory": memory_sheet(facts),
        "load": load_sheet(facts),
        "links": links_sheet(facts),
        "comparison": comparison_sheet(facts),
        "tables": tables_sheet(facts),
    }


def memory_sheet(facts: Facts) -> Sheet:
    """Bytes in every memory by what they are for; `bar` is how a memory is drawn, if it is."""
    rows: list[tuple[Any, ...]] = []
    for tier in facts.plan.cluster.tier_names:
        found = [(pool, held) for pool, held in facts.pools if pool.tier == tier]
        bars = _bars(
            [pool.place for pool, _ in found],
            [sum(held.values()) / pool.capacity_bytes for pool, held in found],
            facts.plan.cluster,
        )
        rows += [
            (pool.place, tier, bar, PARTS[part], amount, pool.capacity_bytes)
            for (pool, held), bar in zip(found, bars, strict=True)
            for part, amount in held.items()
        ]
    return Sheet.of(("place", "tier", "bar", "part", "bytes", "capacity_bytes"), rows)


def load_sheet(facts: Facts) -> Sheet:
    """Busy seconds of every holder: its memories, its work and its links, in one step."""
    cost, cluster = facts.cost, facts.plan.cluster
    memory, work = tier_seconds(cost), cost.time.work_s[:, None]
    links = cost.time.exchange_s + cost.time.sync_s
    times_s = np.hstack([memory, work, links])
    names = [cluster.holder_name(holder) for holder in range(cluster.num_holders)]
    bars = _bars(names, times_s.sum(axis=1).tolist(), cluster)
    parts = [
        *(("memory", drawable(tier)) for tier in cluster.tier_names),
        ("work", "work"),
        *(("links", drawable(level.name)) for level in cluster.levels),
    ]
    rows = [
        (name, bar, *part, seconds)
        for name, bar, times in zip(names, bars, times_s, strict=True)
        for part, seconds in zip(parts, times, strict=True)
        if part[0] != "work" or work.any()
    ]
    return Sheet.of(("holder", "bar", "kind", "part", "seconds"), rows)


def links_sheet(facts: Facts) -> Sheet:
    """Bytes through every level's links in a step, by what they carry."""
    links = facts.cost.links
    rows = [
        (drawable(level.name), FLOWS[name], flow.total[index])
        for index, level in enumerate(facts.plan.cluster.levels)
        for name, flow in links.flows.items()
    ]
    return Sheet.of(("level", "flow", "bytes"), rows)


def comparison_sheet(facts: Facts) -> Sheet:
    """The plan and the baselines, fastest first; those that do not fit come last."""
    loads = [facts.load, *(b.load for b in facts.baselines if b.load is not None)]
    tiers = facts.plan.cluster.tier_names
    rows: list[tuple[Any, ...]] = [
        (
            *(load.name, load is facts.load, load.step_s, load.memory_s, load.work_s, load.links_s),
            *load.spread.to_dict().values(),
            *(load.imbalance, load.slow_share, *load.used_bytes.max(axis=0), ""),
        )
        for load in sorted(loads, key=lambda load: load.step_s)
    ]
    empty = (None,) * (9 + len(tiers))
    rows += [(b.name, False, *empty, b.why) for b in facts.baselines if b.load is None]
    times = ("step_s", "memory_s", "work_s", "links_s", *facts.load.spread.to_dict())
    columns = ("plan", "this_plan", *times, "imbalance", "slow_share")
    return Sheet.of((*columns, *(f"most_{tier}_bytes" for tier in tiers), "why_not"), rows)


def tables_sheet(facts: Facts) -> Sheet:
    """Every table with its size, its lookups, its place and its share of the step."""
    profile, first = facts.plan.profile, facts.plan.cluster.tier_names[0]
    rows = []
    for stats, share in zip(profile.stats, facts.shares, strict=True):
        table, found = stats.table, cuts(facts.plan.bands[stats.table.name], facts.plan.cluster)
        rows.append(
            (
                *(table.name, table.num_embeddings, table.embedding_dim, table.stored_bytes),
                *(profile.lookups_per_step(stats), share),
                sum(s for cut, s in _served(found, stats.curve) if cut.tier != first),
                *_expected(facts, stats),
                placement(found, table.num_embeddings),
            )
        )
    columns = ("table", "rows", "dim", "bytes", "lookups_per_step", "step_share", "slow_share")
    return Sheet.of((*columns, *_EXPECTED, "placement"), rows)


def drift_sheet(drift: PlanDrift) -> Sheet:
    """Every table's hot set on newer data, those that lost most lookups first."""
    moving = {table.name: table for table in drift.move.tables}
    columns = ("table", "lookups_per_step", "hot_share_planned", "hot_share_now")
    rows = [
        (
            *(table.name, table.lookups, table.before, table.now, table.best, table.unseen),
            *(moving[table.name].moved_bytes, moving[table.name].within_bytes),
        )
        for table in drift.tables
    ]
    more = ("hot_share_best", "unseen_share", "moved_bytes", "within_bytes")
    return Sheet.of((*columns, *more), rows)


_EXPECTED = ("unseen", "unseen_low", "unseen_high", "distinct", "distinct_low", "distinct_high")


def _expected(facts: Facts, stats: TableStats) -> tuple[Any, ...]:
    """Lookups to come on rows never seen, and distinct rows of a step; None where nobody knows."""
    profile, devices = facts.plan.profile, facts.plan.cluster.num_devices
    unseen = unseen_of(stats)
    rows = distinct_of(stats, profile.batch_size * devices, profile.batches)
    return unseen.share, unseen.low, unseen.high, rows.value, rows.low, rows.high


def curves(facts: Facts) -> dict[str, Any]:
    """Coverage curves, thinned, with the cuts of every table.

    `shares[t][i]` is what the hottest rows^(i / (points − 1)) rows of table t serve, in
    1/10000; a cut is where it ends, the share of lookups it serves, its tier and its home.
    """
    homes: dict[str, int] = {}
    shares, cut_rows = [], []
    for stats in facts.plan.profile.stats:
        positions = stats.table.num_embeddings ** np.linspace(0, 1, CURVE_POINTS)
        reached = stats.curve.share(positions)  # type: ignore[arg-type]
        shares.append(np.rint(1e4 * reached).astype(int).tolist())
        found = cuts(facts.plan.bands[stats.table.name], facts.plan.cluster)
        cut_rows.append(
            [
                (cut.stop, float(f"{share:.5g}"), cut.tier, homes.setdefault(cut.home, len(homes)))
                for cut, share in _served(found, stats.curve)
            ]
        )
    return {"points": CURVE_POINTS, "shares": shares, "cuts": cut_rows, "homes": list(homes)}


def _served(found: Sequence[HomeRange], curve: Curve) -> list[tuple[HomeRange, float]]:
    return [(cut, float(curve.share(cut.stop) - curve.share(cut.start))) for cut in found]


def _bars(places: Sequence[str], weights: Sequence[float], cluster: Cluster) -> list[str]:
    """What stands under each place's bar; of many places, the heaviest of each run is drawn."""
    if len(places) <= MAX_BARS:
        return [place.removeprefix(f"{DEVICE} ") for place in places]
    run = _run_length(len(places), cluster)
    bars = [""] * len(places)
    for start in range(0, len(places), run):
        stop = min(start + run, len(places))
        heaviest = max(range(start, stop), key=lambda index: weights[index])
        bars[heaviest] = f"{start}–{stop - 1}"
    return bars


def _run_length(places: int, cluster: Cluster) -> int:
    sizes = [cluster.group_size(level) for level in range(1, len(cluster.levels))]
    fitting = [size for size in sizes if places / size <= MAX_BARS]
    return fitting[0] if fitting else -(-places // MAX_BARS)
