"""The logic of benchmarks/sca.py: what it counts is right, and a wrong formula would be seen."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from harness.sca import drawn, phones, plans, trained
from harness.sca import heat as heats

from rowtier.synth.zipf import ZipfMass


@pytest.fixture(scope="module")
def heat() -> heats.Heat:
    return heats.in_parts("zipf", np.arange(1, 5001, dtype=np.float64) ** -1.0)


def test_what_is_counted_is_what_numpy_finds_batch_by_batch(heat: heats.Heat) -> None:
    ranks = heat.draw(4096, seed=1)
    found = drawn.Counted.of(ranks, len(heat.counts), batch=1024, workers=8)
    for index, cache in enumerate(drawn.CACHES):
        cut = drawn.cut_of(len(heat.counts), cache)
        by_batch = [
            sum(np.count_nonzero(np.unique(part) >= cut) for part in batch.reshape(8, 128))
            for batch in ranks.reshape(4, 1024)
        ]
        assert found.mean[index] == np.mean(by_batch)
        assert found.deviation[index] == pytest.approx(np.std(by_batch, ddof=1) / 2)


def test_the_cost_model_expects_the_rows_that_are_drawn(heat: heats.Heat) -> None:
    rows = list(drawn.distinct_rows(heat, 2**20, batches=(2048,)))
    assert len(rows) == len(drawn.WORKERS) * len(drawn.CACHES) + len(drawn.WORKERS) - 1
    assert drawn.worst(rows, "rows") < 0.01
    assert drawn.worst(rows, "split") < 0.02


def test_lookups_taken_for_distinct_rows_would_be_seen(
    heat: heats.Heat, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = drawn.cached_bands

    def plain(*args: object) -> object:
        bands = right(*args)  # type: ignore[arg-type]
        return {
            name: tuple(band.model_copy(update={"coalesced": False}) for band in table)
            for name, table in bands.items()
        }

    monkeypatch.setattr(drawn, "cached_bands", plain)
    rows = list(drawn.distinct_rows(heat, 2**19, batches=(2048,)))
    assert drawn.worst(rows, "rows") > 0.1


def test_a_batch_of_one_worker_too_many_would_be_seen(
    heat: heats.Heat, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = drawn.split_cost_rows
    monkeypatch.setattr(drawn, "split_cost_rows", lambda p, workers: right(p, workers + 1))
    rows = list(drawn.distinct_rows(heat, 2**20, batches=(2048,)))
    assert drawn.worst(rows, "split") > 0.02


def test_predicted_bytes_of_the_sca_plan_are_the_replayed_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drawn, "BYTES_AT", ((1, 256),))
    flat = heats.in_parts("zipf", np.arange(1, 20_001, dtype=np.float64) ** -0.8)
    rows = list(drawn.sca_bytes(flat, 2**18))
    assert drawn.worst(rows, "bytes") < 0.02
    assert [row["cache"] for row in rows] == pytest.approx(drawn.CACHES, abs=1e-3)
    # One worker needs no sync, so that every larger cache leaves less to move.
    assert all(b["measured"] < a["measured"] for a, b in pairwise(rows))  # type: ignore[operator]


def test_the_profile_of_a_distribution_puts_hot_rows_anywhere(heat: heats.Heat) -> None:
    stats = heat.profile(64).stats[0]
    assert stats.counts is not None
    assert not list(stats.mistakes())
    assert stats.counts.counts[0] == heat.counts[0]
    assert (np.diff(stats.counts.rows[:100]) < 0).any()


def test_contenders_differ_in_cache_and_coalescing_alone(heat: heats.Heat) -> None:
    found = trained.contenders(heat.profile(256), trained.Setting(1))
    assert list(found) == ["plain", "coalescing", "cache", "sca"]
    cached = [plans.cached_rows(plan.bands) for plan in found.values()]
    assert cached[:2] == [0, 0]
    assert cached[2] == cached[3] == pytest.approx(500, abs=1)
    coalesced = [plan.bands["t"][-1].coalesced for plan in found.values()]
    assert coalesced == [False, True, False, True]
    assert len({plan.cluster.fingerprint for plan in found.values()}) == 1


def test_ranks_come_out_as_often_as_their_share() -> None:
    law = ZipfMass(5000, 1.0)
    ranks = phones.drawn_ranks(law, 100_000, np.random.default_rng(0))
    assert ranks.min() == 0
    assert ranks.max() < 5000
    for cut in (1, 10, 1000):
        share = float(law.share(np.array([float(cut)]))[0])
        assert np.mean(ranks < cut) == pytest.approx(share, abs=0.006)


def test_without_links_there_is_no_throughput_to_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trained, "why_not_here", lambda: "no namespaces here")
    rows = trained.trained_or_not(quick=True)
    assert rows == []
    assert "no namespaces here" in capsys.readouterr().err
    assert trained.speed_ratio(rows, "sca") is None
