"""sca.py, by simulation: rows and bytes that are expected, against batches that are drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.sca.heat import SEED, Heat, Ints
from harness.sca.plans import PLENTY_BYTES, cached_rows, sca_plan, workers_of
from rowtier import (
    Band,
    Cluster,
    Profile,
    Table,
    replay,
)
from rowtier.band import Bands
from rowtier.cost.step import step_cost
from rowtier.evaluate.figures import FLOWS
from rowtier.jit import compiled
from rowtier.plan.sca import split_cost_rows

Row = dict[str, object]

BATCHES = (256, 2_048, 16_384, 65_536)  # lookups of all workers together
WORKERS = (1, 2, 8, 64)
CACHES = (0.0, 0.001, 0.01, 0.1)  # shares of all rows
MANY = 1e5  # rows counted in all batches; with fewer, chance alone may be 1 %
BYTES_AT = ((1, 16_384), (8, 65_536))  # workers and lookups of all of them


@compiled
def count_distinct(
    ranks: Any, batch: int, workers: int, cuts: Any, seen: Any, sums: Any, squares: Any
) -> None:
    """Count, batch by batch, the rows behind each cut that the workers need, each for itself."""
    each = batch // workers
    for first in range(0, len(ranks) - batch + 1, batch):
        found = np.zeros(len(cuts))
        for at in range(first, first + batch):
            rank, reader = ranks[at], 1 + at // each
            if seen[rank] != reader:
                seen[rank] = reader
                for cut in range(len(cuts)):
                    found[cut] += rank >= cuts[cut]
        sums += found
        squares += found * found


@dataclass(frozen=True, eq=False)
class Counted:
    """Rows that all workers together fetch in a batch, by cache: mean, and its own error."""

    batches: int
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]  # of the mean

    @classmethod
    def of(cls, ranks: Ints, rows: int, batch: int, workers: int) -> Counted:
        """Count what was drawn, cut into batches."""
        cuts = np.array([cut_of(rows, cache) for cache in CACHES])
        sums, squares = np.zeros((2, len(cuts)))
        count_distinct(ranks, batch, workers, cuts, np.zeros(rows, np.int64), sums, squares)
        batches = len(ranks) // batch
        mean = sums / batches
        variance = np.maximum(squares / batches - mean**2, 0) / max(1, batches - 1)
        return cls(batches, mean, np.sqrt(variance))


def cut_of(rows: int, cache: float) -> int:
    """How many rows such a share comes to."""
    return round(rows * cache)


def expected_rows(profile: Profile, cluster: Cluster, cache: float) -> float:
    """Rows that the cost model has all workers fetch from the server in a step."""
    table = profile.stats[0].table
    cost = step_cost(cached_bands(table, cluster, cache), profile, cluster)
    return float(cost.links.forward.total.sum()) / table.row_bytes


def cached_bands(table: Table, cluster: Cluster, cache: float) -> Bands:
    """The hottest share of a table with every worker, the rest on the server."""
    rows = table.num_embeddings
    cut, members = cut_of(rows, cache), cluster.server_members(cluster.servers[0])
    home = Band(
        start=cut, stop=rows, scope=cluster.top, members=members, tier="ram", coalesced=True
    )
    near = Band(start=0, stop=cut, scope="device", tier="ram") if cut else None
    return {table.name: (home,) if near is None else (near, home)}


def distinct_rows(heat: Heat, lookups: int, batches: Sequence[int] = BATCHES) -> Iterator[Row]:
    """Distinct rows of every batch size, number of workers and cache, and what splitting adds."""
    ranks, rows = heat.draw(lookups, SEED), len(heat.counts)
    whole = heat.profile(1).to_curve()
    for batch in batches:
        together = Counted.of(ranks, rows, batch, 1)
        for workers in WORKERS:
            cluster = workers_of(workers, PLENTY_BYTES)
            profile = Profile(batch // workers, whole.stats)
            found = together if workers == 1 else Counted.of(ranks, rows, batch, workers)
            for index, cache in enumerate(CACHES):
                yield row(
                    *("rows", heat.name, batch, workers, cache, "rows/step"),
                    expected_rows(profile, cluster, cache),
                    float(found.mean[index]),
                    float(found.deviation[index]),
                    float(found.mean[index] * found.batches),
                )
            if workers > 1:
                extra = float(found.mean[0] - together.mean[0])
                yield row(
                    *("split", heat.name, batch, workers, 0.0, "rows/step"),
                    split_cost_rows(profile, workers),
                    extra,
                    # Every extra row is rare enough to come by itself.
                    float(np.sqrt(max(extra, 0) / found.batches)),
                    extra * found.batches,
                )


def sca_bytes(heat: Heat, steps_lookups: int) -> Iterator[Row]:
    """Bytes of a training step of the `sca` plan, sync counted: predicted and replayed."""
    for workers, batch in BYTES_AT:
        profile = heat.profile(batch // workers)
        order = profile.stats[0].counts
        assert order is not None
        steps = max(1, steps_lookups // batch)
        ids = order.rows[heat.draw(steps * batch, SEED + 1)]
        cluster = workers_of(workers, PLENTY_BYTES)
        for cache in CACHES:
            plan = sca_plan(profile, cluster, cache)
            found = replay(plan, [{"f": ids}], batches="in_time_order")
            flows = [found.figure(flow, of="cluster") for flow in FLOWS if _moves(found, flow)]
            moved = sum(flow.replayed for flow in flows)
            deviation = sum(flow.spread for flow in flows) / np.sqrt(steps)
            yield row(
                *("bytes", heat.name, batch, workers, cached_rows(plan.bands) / len(heat.counts)),
                "bytes/step",
                sum(flow.predicted for flow in flows),
                moved,
                float(deviation),
                sum(flow.events for flow in flows),
            )


def _moves(found: Any, flow: str) -> bool:
    return any(f.label.kind == "level" and f.label.name == flow for f in found.figures)


def row(
    part: str,
    data: str,
    lookups: int,
    workers: int,
    cache: float,
    unit: str,
    expected: float,
    measured: float,
    deviation: float,
    events: float,
) -> Row:
    """One line: what was expected, what was counted, and how far chance may part them."""
    return {
        "part": part,
        "data": data,
        "method": "sca" if cache else "coalescing",
        "lookups": lookups,
        "workers": workers,
        "cache": cache,
        "unit": unit,
        "expected": expected,
        "measured": measured,
        "error": expected / measured - 1 if measured else None,
        "sampling_error": deviation / measured if measured else None,
        "ratio": None,
        "counted": events,
    }


def worst(rows: list[Row], part: str) -> float | None:
    """The largest error of a part, of figures that were counted often enough to tell."""
    errors = [
        abs(error)
        for line in rows
        if line["part"] == part
        and isinstance(error := line["error"], float)
        and isinstance(events := line["counted"], float)
        and events >= MANY
    ]
    return max(errors, default=None)
