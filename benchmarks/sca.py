"""Stochastic Communication Avoidance (arXiv 2411.01611): coalescing and caching, as promised?

Rows of the result differ in `part`. `ratio` is against *plain*: every lookup fetches its row
from the server and returns a gradient, no cache, no coalescing.

    rows     distinct rows that all workers fetch in a step, by the cost model, and counted in
             batches that are drawn from the same distribution. Real datasets are profiled whole,
             and batches are drawn from what was counted there, not taken in their order.
    split    rows that are fetched more often because a batch is split over workers:
             K·Σ(1−(1−p)^(B/K)) − Σ(1−(1−p)^B)
    bytes    bytes of a training step of the `sca` plan, sync of copies included: `predict`
             against `replay`
    trained  samples per second of real training, the parameters on a server behind a link of
             1 Gbit/s: criteo-like tables, 64 columns, row-wise Adagrad, a cache of 10 % of the
             rows with every worker, a linear layer as dense part
    link     bytes over that link, counted outside the ranks (packet headers included), against
             `replay` of the same samples
    exact    how far any weight of any contender is from plain's after training (`error`), and
             any loss (`sampling_error`)
    phones   bytes of one of 1,000 phones and of the cloud behind them, Criteo's full size

A cached row that only one worker has needs no sync. Copies must be kept equal under exact
synchronous training: every reader then gets what any of them changed, which two workers gain from
and a thousand phones do not. So "workers apart" is trained too, where sync crosses slow links, and
phones are counted both ways: `federated_reduction` is the paper's, the forward exchange alone;
`federated_training_reduction` counts gradients and sync, and is below 1.

    distinct_error_max          the largest error of `rows`, over all cells
    split_error_max             of `split`, where 10⁵ rows or more were counted
    bytes_error_max_simulated   of `bytes`
    sca_throughput_ratio        `sca` over plain, one worker; None where links cannot be shaped
    coalescing_throughput_ratio, cache_throughput_ratio    each alone, over plain
    sca_throughput_ratio_apart  two workers on nodes of their own; not if quick
    link_bytes_error_max        of `link`
    weights_off_max             of `exact`
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.form import Measured, run
from harness.sca.drawn import BATCHES, Row, distinct_rows, sca_bytes, worst
from harness.sca.heat import real, stated
from harness.sca.phones import phones_of, reduction
from harness.sca.trained import largest, speed_ratio, trained_or_not

GOALS: dict[str, Any] = {
    "distinct_error_max": ("<=", 0.01),
    "sca_throughput_ratio": (">=", 6.0),
}


def measure(quick: bool) -> Measured:
    """All parts; training first, as it minds most what the machine did before."""
    rows = [*trained_or_not(quick), *simulated(quick), *phones_of(quick)]
    figures: dict[str, float | None] = {
        "distinct_error_max": worst(rows, "rows"),
        "split_error_max": worst(rows, "split"),
        "bytes_error_max_simulated": worst(rows, "bytes"),
        "sca_throughput_ratio": speed_ratio(rows, "sca"),
        "coalescing_throughput_ratio": speed_ratio(rows, "coalescing"),
        "cache_throughput_ratio": speed_ratio(rows, "cache"),
        "sca_throughput_ratio_apart": speed_ratio(rows, "sca", "criteo, workers apart", 2),
        "link_bytes_error_max": largest(rows, "link"),
        "weights_off_max": largest(rows, "exact"),
        "federated_reduction": reduction(rows, "forward"),
        "federated_training_reduction": reduction(rows, "training"),
        "federated_error_max": largest(rows, "phones"),
        "cells": float(sum(row["part"] == "rows" for row in rows)),
    }
    return Measured(rows, figures)


def simulated(quick: bool) -> Iterator[Row]:
    """Rows and bytes of every distribution."""
    lookups, replayed = (4_000_000, 500_000) if quick else (24_000_000, 4_000_000)
    for index, heat in enumerate([*stated(), *real()]):
        yield from distinct_rows(heat, lookups, BATCHES[:: 3 if quick else 1])
        if not quick or index < 3:
            yield from sca_bytes(heat, replayed)


if __name__ == "__main__":
    run("sca", measure, goals=GOALS)
