"""Hold what processes counted in training against `rowtier.replay` on the same batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import rowtier
from rowtier.cost.options import CostOptions
from rowtier.torch import Totals


def replay_differences(
    counted: Totals, plan: rowtier.Plan, batches: list[Any]
) -> tuple[int, list[str]]:
    """How many counters there are, and those that `rowtier.replay` finds otherwise."""
    # The runtime sends 4 bytes an id where a table's rows allow it.
    found = rowtier.replay(
        plan, batches, batches="in_time_order", options=CostOptions(ids="narrow")
    )
    figures = {(f.label.of, f.label.name, f.label.at): f.replayed for f in found.figures}
    compared, wrong = 0, []
    for of, name, at, amount in _counters(counted, plan.cluster):
        # Replay gives means over the steps, and leaves out what is zero.
        expected = round(figures.get((of, name, at), 0.0) * found.steps)
        compared += 1
        if expected != amount:
            wrong.append(f"{name} of {of} {at}: counted {amount:,}, replayed {expected:,}")
    return compared, wrong


def replay_verdict(facts: dict[str, Any]) -> list[str]:
    """What `replay_differences` found, for people."""
    if facts["differences"]:
        return ["counters differ from `rowtier replay`:", *facts["differences"]]
    return [f"all {facts['counters']} counters equal `rowtier replay` to the byte"]


def _counters(counted: Totals, cluster: rowtier.Cluster) -> Iterator[tuple[str, str, str, int]]:
    """What every holder did, by the names that replay has for it, and how much."""
    read, written = counted.moved()
    for holder in range(cluster.num_holders):
        of = cluster.holder_name(holder)
        for flow in ("ids", "forward", "backward", "sync", "sync_ids"):
            for index, level in enumerate(cluster.levels):
                yield of, f"{flow} sent", level.name, int(counted.sent(flow)[holder, index])
                yield of, f"{flow} received", level.name, int(counted.received(flow)[holder, index])
        for index, tier in enumerate(cluster.tier_names):
            yield of, "read", tier, int(read[holder, index])
            yield of, "written", tier, int(written[holder, index])
    for tier, lookups in zip(cluster.tier_names, counted.lookups(), strict=True):
        yield tier, "lookups", "", int(lookups)
