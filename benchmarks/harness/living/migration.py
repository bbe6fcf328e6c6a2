"""How long `embeddings.migrate` takes, against what `rowtier.diff` says on a calibrated cluster.

Two local ranks, in RAM, two tables of Adam, about 1 GiB in all. The machine is calibrated first;
run it when nothing else does. A second figure is the memory that a rank needed beside the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.form import Measured
from harness.ranks import free_port, run_ranks
from harness.step_truth.job import calibrated_twice

RANKS, DIM = 2, 64
ROWS = 600_000  # of each of two tables: 768 bytes a row with state


def measure(quick: bool) -> Measured:
    """Calibrate, then migrate there and back."""
    ports = free_port(), free_port(), free_port()
    found = run_ranks(RANKS, _timed, ports, ROWS // 8 if quick else ROWS, quick)
    rows = found[0]
    errors = [abs(row["seconds"] / row["predicted_s"] - 1) for row in rows]
    return Measured(
        rows,
        {
            "migrate_time_error": max(errors),
            "migrate_extra_share": max(row["extra_share"] for row in rows),
        },
    )


def _timed(
    rank: int, size: int, ports: tuple[int, int, int], rows: int, quick: bool
) -> list[dict[str, Any]]:
    from rowtier.torch import ShardedEmbeddings

    cluster = calibrated_twice(rank, size, ports, quick)[-1]
    plans = _plans(cluster, rows)
    embeddings = ShardedEmbeddings(plans["blocks"])
    embeddings.migrate(plans["warm"])  # kernels are compiled
    embeddings.migrate(plans["blocks"])
    found = []
    for name in ("copies", "other heat", "blocks"):
        made = embeddings.migrate(plans[name])
        found.append(
            {
                "to": name,
                "moved_bytes": made.moved_bytes,
                "rounds": made.rounds,
                "seconds": made.seconds,
                "predicted_s": made.predicted_s,
                "extra_share": made.extra_bytes / 2**28,
            }
        )
    return found


def _plans(cluster: Any, rows: int) -> dict[str, Any]:
    from rowtier import Band, Plan, Profile, Table

    scopes, tier = cluster.scopes, cluster.tier_names[0]

    def made(seed: int, *bands: Any) -> Plan:
        random = np.random.default_rng(seed)
        stats = []
        for name in ("a", "b"):
            table = Table(
                name=name, num_embeddings=rows, embedding_dim=DIM, features=(name,),
                optimizer="adam",
            )  # fmt: skip
            stats.append(_stats(table, random))
        return Plan.build("made", Profile(64, tuple(stats)), cluster, {"a": bands, "b": bands})

    hot = rows // 10
    spread = [
        Band(start=0, stop=hot, scope=scopes[0], tier=tier),
        Band(start=hot, stop=rows, scope=scopes[-1], tier=tier),
    ]
    return {
        "blocks": made(0, Band(start=0, stop=rows, scope=scopes[-1], tier=tier, order="blocks")),
        "warm": made(3, *spread),
        "copies": made(1, *spread),
        "other heat": made(2, *spread),
    }


def _stats(table: Any, random: Any) -> Any:
    from rowtier import FeatureStats, RowCounts, TableStats

    counts = RowCounts.from_dense(random.zipf(1.2, table.num_embeddings) % 1000)
    lookups = int(counts.counts.sum())
    feature = FeatureStats(name=table.name, present=1000, lookups=lookups)
    return TableStats.counted(table, 1000, (feature,), counts)
