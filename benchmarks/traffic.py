"""Bytes on the links: what flexshard, sca and joint move, against what is done without them.

20 tables of 10⁵ to 10⁷ rows (log-uniform), 64 columns fp32, 4096 samples per device: pooled
(sums of about 10 rows) or sequences (about 20 rows each). 16 devices in 2 nodes and 64 in 8, with
the links of `recshard-16` and one memory. Everything is computed by the cost model, with sync
counted and nothing overlapped. Bytes are those that an average device sends in a step.

The budget of a device is what row-wise (`rows`, plain) uses at its peak, exchange buffers
included, plus 0, 5 or 20 %: flexshard and sca count their own buffers in it. joint does not, so
it is given less room until what it returns keeps to the budget with the buffers it really needs,
but never less than row-wise's rows take. `memory_ratio` says what was used in the end, rows and
buffers, over what row-wise uses. The baselines have all the memory that they want.

    pooled_2x8_zipf1.0_reduction_min    bytes between nodes that joint saves of plain `rows`,
                                        pooled tables, +0 %, the least over seeds and Zipf 1.0, 1.2
    sequence_2x8_zipf1.2_reduction_min  the same on sequence tables with Zipf 1.2
    excess_over_static_bound_max        sequence tables, +0 %, 2 nodes, all Zipfs: joint's bytes
                                        between nodes over the least that any static placement
                                        moves, minus 1. That is one copy, staged:
                                        Σ (2·s + id)·u_1/n_1·(n_2 − n_1)/n_2, ids included, since
                                        every row that is fetched has to be asked for by its id.
    excess_without_ids_max              the same with no ids in the bound, as if asking were free
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from harness.form import Measured, run

from rowtier import Cluster, Curve, FeatureStats, Level, Profile, Table, TableStats
from rowtier.band import Band, Bands
from rowtier.cost.options import DEFAULTS
from rowtier.cost.step import StepCost, step_cost
from rowtier.cost.touch import touch_probability
from rowtier.errors import InfeasibleError
from rowtier.plan import joint, sca, table_wise
from rowtier.plan.flexshard import flexshard_bands
from rowtier.plan.options import PlanOptions
from rowtier.profile.curve import bucket_stops
from rowtier.synth.zipf import ZipfMass

TABLES, DIM, BATCH, SAMPLES = 20, 64, 4096, 1_000_000
ROWS = (1e5, 1e7)
LENGTH = {"pooled": 10, "sequence": 20}
NODES = (2, 8)
ZIPFS = (0.8, 1.0, 1.2)
BUDGETS = (0.0, 0.05, 0.20)
PLENTY_BYTES = 2**44

GOALS: dict[str, Any] = {
    "pooled_2x8_zipf1.0_reduction_min": (">=", 0.80),
    "sequence_2x8_zipf1.2_reduction_min": (">=", 0.85),
    "excess_over_static_bound_max": ("<=", 0.05),
}


def profile_of(kind: str, zipf: float, seed: int) -> Profile:
    """20 tables whose rows, lengths and shifts follow from a seed."""
    random = np.random.default_rng(seed)
    stats = []
    for index in range(TABLES):
        rows = int(np.exp(random.uniform(*np.log(ROWS))))
        lookups = int(SAMPLES * random.uniform(0.5, 1.5) * LENGTH[kind])
        table = Table(
            name=f"t{index}",
            num_embeddings=rows,
            embedding_dim=DIM,
            pooling="none" if kind == "sequence" else "sum",
            features=(f"f{index}",),
        )
        stops = bucket_stops(rows)
        mass = np.diff(ZipfMass(rows, zipf).share(stops.astype(np.float64)), prepend=0.0)
        feature = FeatureStats(name=f"f{index}", present=SAMPLES, lookups=lookups)
        stats.append(TableStats(table, SAMPLES, (feature,), Curve(stops, mass * lookups)))
    return Profile(BATCH, tuple(stats))


def cluster_of(nodes: int, capacity_bytes: int) -> Cluster:
    """The links of `recshard-16`, with so many nodes and one memory of this size."""
    preset = Cluster.preset("recshard-16")
    inside, between = preset.levels
    levels: tuple[Level, ...] = (inside, between.model_copy(update={"size": nodes}))
    fast = preset.device.tiers[0].model_copy(update={"capacity_bytes": capacity_bytes})
    device = preset.device.model_copy(update={"tiers": (fast,)})
    name = f"{nodes}x{inside.size}"
    return preset.model_copy(update={"name": name, "levels": levels, "device": device})


@dataclass(frozen=True, eq=False)
class Setting:
    """Tables on devices, and what plain row-wise uses there."""

    kind: str
    nodes: int
    zipf: float
    seed: int
    profile: Profile
    plain: StepCost

    @classmethod
    def of(cls, kind: str, nodes: int, zipf: float, seed: int) -> Setting:
        """Generate the tables and price row-wise."""
        profile, cluster = profile_of(kind, zipf, seed), cluster_of(nodes, PLENTY_BYTES)
        plain = step_cost(row_wise(profile, cluster, order="blocks"), profile, cluster)
        return cls(kind, nodes, zipf, seed, profile, plain)

    def row(self, method: str, budget: float | None, cost: StepCost) -> dict[str, object]:
        """One line of the result."""
        intra, inter = device_bytes(cost)
        return {
            "kind": self.kind,
            "cluster": f"{self.nodes}x8",
            "zipf": self.zipf,
            "seed": self.seed,
            "method": method,
            "budget": budget,
            "inter_node_bytes": inter,
            "intra_node_bytes": intra,
            "links_s": cost.time.links_s,
            "reduction": 1 - inter / device_bytes(self.plain)[1],
            "memory_ratio": peak_bytes(cost) / peak_bytes(self.plain),
        }


def row_wise(profile: Profile, cluster: Cluster, **changes: Any) -> Bands:
    """Every table over all devices."""
    tier = cluster.device.tiers[0].name
    return {
        s.table.name: (
            Band(
                start=0,
                stop=s.table.num_embeddings,
                scope=cluster.top,
                tier=tier,
                offset=index,
                **changes,
            ),
        )
        for index, s in enumerate(profile.stats)
    }


def device_bytes(cost: StepCost) -> tuple[float, float]:
    """Bytes that an average device sends inside its node and between nodes."""
    inside, between = cost.links.total_bytes / cost.cluster.num_devices
    return float(inside), float(between)


def peak_bytes(cost: StepCost) -> int:
    """Rows and exchange buffers of the fullest device."""
    return int((cost.memory.rows + cost.memory.buffers)[:, 0].max())


def static_bound_bytes(setting: Setting, id_bytes: float) -> float:
    """The least that a device sends between nodes under any static placement."""
    inside, devices = setting.plain.cluster.group_size(1), setting.plain.cluster.num_devices
    total = 0.0
    for stats in setting.profile.stats:
        lookups = setting.profile.lookups_per_step(stats) * inside
        touched = touch_probability(stats.curve.probabilities, lookups) @ stats.curve.widths
        total += float(touched) * (2 * stats.table.row_bytes + id_bytes)
    return total / inside * (devices - inside) / devices


def baselines(setting: Setting) -> Iterator[dict[str, object]]:
    """What is done without the papers, with plenty of memory."""
    profile, cluster = setting.profile, cluster_of(setting.nodes, PLENTY_BYTES)
    yield setting.row("rows plain", None, setting.plain)
    ways: dict[str, dict[str, Any]] = {
        "rows coalesced": {"coalesced": True},
        "rows coalesced, staged": {"coalesced": True, "staged": True},
    }
    if setting.kind == "pooled":
        ways |= {"sums": {"exchange": "sums", "order": "blocks"}}
    for name, changes in ways.items():
        bands = row_wise(profile, cluster, **changes)
        yield setting.row(name, None, step_cost(bands, profile, cluster))
    whole = table_wise.plan(profile, cluster, PlanOptions()).bands
    yield setting.row("table-wise", None, step_cost(whole, profile, cluster))


def planned(setting: Setting, budget: float) -> Iterator[dict[str, object]]:
    """What the planners do with a budget."""
    profile, options = setting.profile, PlanOptions()
    plenty = cluster_of(setting.nodes, PLENTY_BYTES)
    budget_bytes = int(peak_bytes(setting.plain) * (1 + budget))
    exact = cluster_of(setting.nodes, budget_bytes)
    methods: dict[str, Callable[[], Bands]] = {
        "flexshard": lambda: flexshard_bands(profile, plenty, options, extra=budget)[0],
        "sca": lambda: sca.plan(profile, exact, options).bands,
        "joint": lambda: joint_bands(setting, budget_bytes),
    }
    for name, method in methods.items():
        try:
            yield setting.row(name, budget, step_cost(method(), profile, plenty))
        except InfeasibleError:
            continue


def joint_bands(setting: Setting, budget_bytes: int) -> Bands:
    """joint within a budget that includes the buffers of what it returns.

    Never with less room than row-wise's rows take: there its buffers may exceed the budget.
    """
    profile, plenty = setting.profile, cluster_of(setting.nodes, PLENTY_BYTES)
    least_bytes = int(setting.plain.memory.rows[:, 0].max())
    capacity_bytes = budget_bytes
    while True:
        cluster = cluster_of(setting.nodes, capacity_bytes)
        bands = joint.plan(profile, cluster, PlanOptions()).bands
        excess = peak_bytes(step_cost(bands, profile, plenty)) - budget_bytes
        if excess <= 0 or capacity_bytes == least_bytes:
            return bands
        capacity_bytes = max(least_bytes, capacity_bytes - max(excess, budget_bytes // 50))


def measure(quick: bool) -> Measured:
    """All settings, and the figures of the smaller cluster."""
    rows: list[dict[str, object]] = []
    excess: dict[str, list[float]] = {"with_ids": [], "without_ids": []}
    for setting in settings(seeds=1 if quick else 5):
        rows += baselines(setting)
        for budget in BUDGETS:
            found = list(planned(setting, budget))
            rows += found
            if setting.kind == "sequence" and setting.nodes == 2 and budget == 0.0:
                for row in found:
                    if row["method"] == "joint":
                        note_excess(setting, row, excess)
    figures = {
        "pooled_2x8_zipf1.0_reduction_min": least_reduction(rows, "pooled", 1.0),
        "sequence_2x8_zipf1.2_reduction_min": least_reduction(rows, "sequence", 1.2),
        "excess_over_static_bound_max": max(excess["with_ids"], default=None),
        "excess_without_ids_max": max(excess["without_ids"], default=None),
    }
    return Measured(rows, figures)


def settings(seeds: int) -> Iterator[Setting]:
    """Every combination."""
    for kind in LENGTH:
        for nodes in NODES:
            for zipf in ZIPFS:
                for seed in range(seeds):
                    yield Setting.of(kind, nodes, zipf, seed)


def note_excess(setting: Setting, row: dict[str, object], excess: dict[str, list[float]]) -> None:
    """How far bytes between nodes are above the bound."""
    moved = row["inter_node_bytes"]
    assert isinstance(moved, float)
    id_bytes = DEFAULTS.id_bytes(setting.profile.stats[0].table)
    excess["with_ids"].append(moved / static_bound_bytes(setting, id_bytes) - 1)
    excess["without_ids"].append(moved / static_bound_bytes(setting, 0) - 1)


def least_reduction(rows: list[dict[str, object]], kind: str, zipf: float) -> float | None:
    """What joint saves at least between two nodes, for this Zipf or a steeper one, at +0 %."""
    found = [
        reduction
        for row in rows
        if (row["kind"], row["cluster"], row["method"]) == (kind, "2x8", "joint")
        and row["budget"] == 0.0
        and isinstance(row["zipf"], float)
        and row["zipf"] >= zipf
        and isinstance(reduction := row["reduction"], float)
    ]
    return min(found, default=None)


if __name__ == "__main__":
    run("traffic", measure, goals=GOALS)
