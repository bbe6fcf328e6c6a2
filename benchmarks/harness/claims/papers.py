"""The claims of the three papers, and what the results say of each.

What a paper said stands here; everything of ours is read from the results. A claim is judged on
one figure, and where it does not hold is found in the rows: each setting has its own ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.claims import settings
from harness.claims.judge import Claim, Judged, judge
from harness.claims.results import Data

# The figures that the claim benchmarks give, by benchmark.
FIGURES: dict[str, tuple[str, ...]] = {
    "flexshard": (
        "bytes_error_max_large",
        "bytes_error_max_small",
        "time_error_median",
        "time_error_max",
        "flexshard_bytes_reduction",
        "flexshard_time_ratio",
        "static_bound_excess_max",
    ),
    "recshard_trained": ("recshard_throughput_ratio", "recshard_slow_ratio"),
    "sca": (
        "distinct_error_max",
        "sca_throughput_ratio",
        "federated_reduction",
        "bytes_error_max_simulated",
    ),
}


def judge_all(results: Mapping[str, Data]) -> list[Judged]:
    """Every claim of every paper."""
    return [judge(claim, results) for claim in CLAIMS]


def figures_of(results: Mapping[str, Data]) -> dict[str, float | None]:
    """The figures of the claim benchmarks, None where there is no result."""
    found: dict[str, float | None] = {}
    for benchmark, names in FIGURES.items():
        figures = results[benchmark]["figures"] if benchmark in results else {}
        found |= {name: figures.get(name) for name in names}
    return found


_MODEL = "the best of three greedy placements of whole tables"


def _rm(model: str, said: float) -> Claim:
    return Claim(
        paper="RecShard",
        claim=f"{model.upper()}: speed-up over the next best placement",
        said=f"{said}×",
        bar=(">=", said),
        baseline=_MODEL,
        how="by the cost model, RecShard's own objective, median of seeds",
        benchmark="recshard",
        figure=f"{model}_speedup_median",
        by_setting=lambda data: settings.models(data, "recshard, split (recshard)", (model,)),
    )


CLAIMS: Sequence[Claim] = (
    Claim(
        paper="RecShard",
        claim="embedding training throughput, capacity-constrained",
        said="over 6×",
        bar=(">=", 6.0),
        baseline="the fastest of three greedy placements of whole tables, rows in id order",
        how="joint, trained on one rank with a disk read ahead, median of settings",
        benchmark="recshard_trained",
        figure="recshard_throughput_ratio",
        by_setting=settings.trained_throughput,
    ),
    Claim(
        paper="RecShard",
        claim="load balance",
        said="over 12×",
        bar=(">=", 12.0),
        baseline="the fastest greedy placement of whole tables",
        how="joint, trained on two ranks, busiest over mean minus 1, median of settings",
        benchmark="recshard_trained",
        figure="recshard_balance_ratio",
        by_setting=settings.trained_balance,
    ),
    Claim(
        paper="RecShard",
        claim="fewer accesses to slow memory",
        said="over 87×",
        bar=(">=", 87.0),
        baseline="the greedy placement of whole tables that has the fewest",
        how="joint, trained on one rank with a disk read ahead, median of settings",
        benchmark="recshard_trained",
        figure="recshard_slow_ratio",
        by_setting=settings.trained_slow,
    ),
    Claim(
        paper="RecShard",
        claim="fewer accesses to slow memory, RM2 and RM3",
        said="over 87×",
        bar=(">=", 87.0),
        baseline=_MODEL,
        how="by the cost model, median of models and seeds; where none is left, one is counted",
        benchmark="recshard",
        figure=lambda data: settings.median(settings.models(data, "slow ratio", ("rm2", "rm3"))),
        by_setting=lambda data: settings.models(data, "slow ratio", ("rm2", "rm3")),
    ),
    _rm("rm1", 2.58),
    _rm("rm2", 5.26),
    _rm("rm3", 7.41),
    Claim(
        paper="FlexShard",
        claim="less traffic between nodes, sequence tables",
        said="over 85 %",
        bar=(">=", 0.85),
        baseline="TorchRec row-wise, the same batches and processes",
        how="joint, trained between network namespaces, Zipf 1.2, bytes on their interfaces",
        benchmark="flexshard",
        figure="flexshard_bytes_reduction",
        by_setting=settings.flexshard_bytes,
        form="%",
    ),
    Claim(
        paper="FlexShard",
        claim="lower communication latency in training",
        said="almost 6×",
        bar=(">=", 6.0),
        baseline="TorchRec row-wise, the same batches and processes",
        how="joint, trained between network namespaces, Zipf 1.2, time in collectives",
        benchmark="flexshard",
        figure="flexshard_time_ratio",
        by_setting=settings.flexshard_time,
    ),
    Claim(
        paper="FlexShard",
        claim="additional memory, peak bytes of a device",
        said="none",
        bar=("<=", 0.0),
        baseline="row-wise, rows and exchange buffers",
        how="the plans that were trained, the most of all settings",
        benchmark="flexshard",
        figure=lambda data: max(settings.flexshard_memory(data).values(), default=None),
        by_setting=settings.flexshard_memory,
        form="%",
    ),
    Claim(
        paper="FlexShard",
        claim="additional memory, 16 and 64 devices, peak bytes of a device",
        said="none",
        bar=("<=", 0.0),
        baseline="row-wise, rows and exchange buffers",
        how="by the cost model, flexshard and joint at +0 %, the most of all settings",
        benchmark="traffic",
        figure=lambda data: max(settings.traffic_memory(data).values(), default=None),
        by_setting=settings.traffic_memory,
        form="%",
    ),
    Claim(
        paper="SCA",
        claim="training throughput",
        said="up to 6×",
        bar=(">=", 6.0),
        baseline="the same training, every lookup fetched: no cache, no coalescing",
        how="trained behind a link of 1 Gbit/s, criteo-like tables, one worker",
        benchmark="sca",
        figure="sca_throughput_ratio",
        by_setting=settings.sca_throughput,
    ),
    Claim(
        paper="SCA",
        claim="expected distinct rows are what is measured",
        said="equal",
        bar=("<=", 0.01),
        baseline="Σ 1 − (1 − p)^B; an error of 1 % is taken as equal",
        how="batches drawn, distinct rows counted, the largest error",
        benchmark="sca",
        figure="distinct_error_max",
        by_setting=settings.sca_distinct,
        form="%",
    ),
)
