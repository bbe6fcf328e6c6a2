"""What rowtier claims of itself: figures of the other benchmarks, with the goals they state."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.claims.results import Data, goals_of
from harness.folders import BENCHMARKS
from harness.form import Goal, meets


@dataclass(frozen=True)
class Own:
    """One figure of a benchmark in words."""

    topic: str
    what: str
    against: str
    benchmark: str
    figure: str
    form: str = "×"

    def goal(self) -> Goal | None:
        """The goal that the benchmark states for this figure."""
        return _goals(self.benchmark).get(self.figure)

    def value(self, results: Mapping[str, Data]) -> float | None:
        """The figure, or None where it was not measured."""
        data = results.get(self.benchmark)
        return None if data is None else data["figures"].get(self.figure)


@functools.cache
def _goals(benchmark: str) -> Mapping[str, Goal]:
    return goals_of(BENCHMARKS / f"{benchmark}.py")


def reached(own: Own, results: Mapping[str, Data]) -> bool | None:
    """Whether a figure reaches its goal; None without either."""
    goal, value = own.goal(), own.value(results)
    return None if goal is None or value is None else meets(value, goal)


def _plans(size: str, name: str, options: str) -> tuple[Own, Own]:
    about = f"{size.replace('x', ' tables × ')} devices, {options}, the worst of 20 instances"
    return (
        Own("Planning", f"gap to the bound, {about}", "a bound on every plan", "plan_scale",
            f"gap_{name}", "%"),
        Own("Planning", f"CPU time, {about}", "", "plan_scale", f"seconds_{name}", "s"),
    )  # fmt: skip


def _speedups(title: str, name: str) -> tuple[Own, Own]:
    about = f"memory time per access of the slowest device, {title}, tables split, by the model"
    baseline = "the best of RecShard's three greedy placements"
    return (
        Own("Planning", f"{about}, median of ten seeds", baseline, "recshard",
            f"{name}_speedup_median"),
        Own("Planning", f"{about}, the worst of ten", baseline, "recshard", f"{name}_speedup_min"),
    )  # fmt: skip


OWN: Sequence[Own] = (
    *_plans("397x16", "397x16_split", "recshard, tables may be split"),
    *_plans("397x16", "397x16_unsplit", "recshard, whole tables"),
    *_plans("1000x128", "1000x128", "recshard, tables may be split"),
    *_plans("5000x1024", "5000x1024", "recshard, tables may be split"),
    Own("Planning", "time over the best of HiGHS after 60 s, RM1 to RM3 and a fat RM2",
        "the mixed-integer program", "recshard", "worse_than_highs_max", "%"),
    *_speedups("RM2", "rm2"),
    *_speedups("RM3", "rm3"),
    Own("Planning", "gap to the bound, 397 tables × 16 devices, joint",
        "a bound on every plan", "plan_scale", "joint_gap_397x16", "%"),
    Own("Planning", "CPU time, 397 tables × 16 devices, joint", "", "plan_scale",
        "joint_seconds_397x16", "s"),
    Own("Planning", "gap to the bound, 1000 tables × 128 devices, joint, the worst of four",
        "a bound on every plan", "plan_scale", "joint_gap_1000x128", "%"),
    Own("Planning", "CPU time, 1000 tables × 128 devices, joint", "", "plan_scale",
        "joint_seconds_1000x128", "s"),
    Own("Planning", "gap to the bound, 5000 tables × 1024 devices, joint, the worst of two",
        "a bound on every plan", "plan_scale", "joint_gap_5000x1024", "%"),
    Own("Planning", "CPU time, 5000 tables × 1024 devices, joint", "", "plan_scale",
        "joint_seconds_5000x1024", "s"),
    Own("Planning", "predicted step of the best other plan, six real data sets × three batches "
        "× two clusters, the worst", "joint's", "real_plans", "best_rival_over_joint_min"),
    Own("Planning", "the same replayed on data that came later", "joint's", "real_plans",
        "replayed_min"),
    Own("Planning", "fast memory filled where it binds, the worst", "all of it", "real_plans",
        "fast_memory_used_min", "%"),
    Own("Planner against TorchRec's", "slowest device by TorchRec's own estimator, the worst of "
        "instances that its planner solved", "TorchRec's planner", "torchrec_planner",
        "worst_score_ratio"),
    Own("Planner against TorchRec's", "CPU time of planning 400 tables × 16 devices",
        "TorchRec's planner", "torchrec_planner", "time_ratio"),
    Own("Exactness of predictions", "predicted counts, stationary data, the largest error",
        "replay of the data", "predict_vs_replay", "stationary_max_error", "%"),
    Own("Exactness of predictions", "sparse counts inside their stated interval",
        "replay of the data", "predict_vs_replay", "interval_hit_rate", "%"),
    Own("Exactness of predictions", "bytes between nodes, large messages, the largest error",
        "bytes on the interfaces", "flexshard", "bytes_error_max_large", "%"),
    Own("Exactness of predictions", "bytes between nodes, small messages, the largest error",
        "bytes on the interfaces", "flexshard", "bytes_error_max_small", "%"),
    Own("Exactness of predictions", "communication time, the median error",
        "measured time", "flexshard", "time_error_median", "%"),
    Own("Exactness of predictions", "communication time, the largest error",
        "measured time", "flexshard", "time_error_max", "%"),
    Own("Exactness of predictions", "whole step on this machine, calibrated in the same run, the "
        "median error", "measured time", "step_truth", "step_error_median", "%"),
    Own("Exactness of predictions", "the same, nine in ten are below", "measured time",
        "step_truth", "step_error_p90", "%"),
    Own("Exactness of predictions", "pairs of plans, more than 10 % apart on the clock, that the "
        "model orders alike", "measured order", "step_truth", "order_agreement", "%"),
    Own("Exactness of predictions", "predicted steps of two calibrations in a row, the largest "
        "difference", "each other", "step_truth", "calibrate_spread", "%"),
    Own("Exactness of predictions", "bytes over the link of SCA's training, the largest error",
        "bytes on the interfaces", "sca", "link_bytes_error_max", "%"),
    Own("Exactness of predictions", "expected bytes of caches and workers, the largest error",
        "batches that are drawn", "sca", "bytes_error_max_simulated", "%"),
    Own("Traffic", "rows and gradients between nodes above the least of any static placement, "
        "replayed",
        "one copy, no ids counted", "flexshard", "static_bound_excess_max", "%"),
    Own("Traffic", "bytes between nodes saved, sequence table, joint, Zipf 1.2, measured: what is "
        "left beyond coalescing", "our own coalesced row-wise", "flexshard",
        "bytes_reduction_zipf1.2_vs_coalesced", "%"),
    Own("Traffic", "time in collectives, sequence table, joint, Zipf 1.2, measured: what is left "
        "beyond coalescing", "our own coalesced row-wise", "flexshard",
        "time_ratio_zipf1.2_vs_coalesced"),
    Own("Traffic", "bytes between nodes above the least of any static placement, by the model",
        "one copy, staged, ids counted", "traffic", "excess_over_static_bound_max", "%"),
    Own("Traffic", "bytes between nodes saved, pooled tables, joint, Zipf 1.0 and steeper, "
        "the least", "row-wise without coalescing", "traffic",
        "pooled_2x8_zipf1.0_reduction_min", "%"),
    Own("Traffic", "bytes between nodes saved, sequence tables, joint, Zipf 1.2, the least",
        "row-wise without coalescing", "traffic", "sequence_2x8_zipf1.2_reduction_min", "%"),
    Own("Traffic", "fewer bytes of a phone, one of 1,000, Criteo's full size, forward only",
        "every lookup fetched", "sca", "federated_reduction"),
    Own("Traffic", "fewer bytes of a phone, gradients and sync counted", "every lookup fetched",
        "sca", "federated_training_reduction"),
    Own("Step time against TorchRec's", "sequence step, joint, the least speed-up",
        "TorchRec row-wise", "runtime_step", "sequence_vs_torchrec_min"),
    Own("Step time against TorchRec's", "sequence step, joint, the median speed-up",
        "TorchRec row-wise", "runtime_step", "sequence_vs_torchrec_median"),
    Own("Step time against TorchRec's", "sequence step, joint: what the placement alone gives, "
        "the least", "our own coalesced row-wise", "runtime_step", "sequence_vs_own_rowwise_min"),
    Own("Step time against TorchRec's", "pooled step, joint, the least speed-up",
        "the best of TorchRec's table-wise and row-wise", "runtime_step",
        "pooled_vs_torchrec_best_min"),
    Own("Step time against TorchRec's", "small step, 26 tables × 64 floats, 32 and 256 samples a "
        "rank, the least speed-up", "the best of TorchRec's table-wise and row-wise",
        "runtime_step", "small_vs_torchrec_min"),
    Own("Step time against TorchRec's", "peak memory of a rank, the most",
        "what the plan says", "runtime_step", "memory_over_plan_max"),
    Own("Exactness of training", "difference of any weight, coalesced and cached, at the end of "
        "training", "every lookup fetched", "sca", "weights_off_max", ""),
    Own("Disk tier", "throughput, 40 tables of four times the memory, joint",
        "the fastest greedy placement, given our order of rows", "recshard_trained",
        "recshard_throughput_ratio_hotness_order"),
    Own("Disk tier", "the same with 2,048 samples a step",
        "the fastest greedy placement, rows in id order", "recshard_trained",
        "recshard_throughput_ratio_batch_2048"),
    Own("Disk tier", "the same with pages read when they are needed",
        "the fastest greedy placement, rows in id order", "recshard_trained",
        "recshard_throughput_ratio_plain_loop"),
    Own("Disk tier", "the same on two ranks, on this machine's two cores",
        "the fastest greedy placement, rows in id order", "recshard_trained",
        "recshard_throughput_ratio_two_ranks"),
    Own("Disk tier", "throughput, model of four times the memory, joint", "one mapped file",
        "disk_tier", "joint_vs_mmap"),
    Own("Disk tier", "throughput, model of four times the memory, joint",
        "the best greedy placement of whole tables", "disk_tier", "joint_vs_best_greedy"),
    Own("Disk tier", "reads of the disk saved, joint",
        "the best greedy placement of whole tables", "disk_tier", "slow_reads_greedy_vs_joint"),
    Own("Profiling", "throughput of profiling a Zipf file", "decoding it only", "profile_speed",
        "zipf_ratio"),
    Own("Profiling", "coverage of hot rows from a sample, the largest error",
        "what they really serve", "profile_sampling", "max_coverage_error", "%"),
    Own("Kernels", "look-up of rows", "the barest compiled loop", "kernels", "lookup_ratio"),
    Own("Kernels", "update of rows", "the barest compiled loop", "kernels", "update_ratio"),
)  # fmt: skip
