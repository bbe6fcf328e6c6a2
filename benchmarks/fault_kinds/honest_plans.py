"""Small plans of every kind whose certificates are forged: methods, machines, wishes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rowtier import Cluster, InfeasibleError, Plan, PlanOptions, Profile, Table, make_plan
from rowtier.cost.views import assumptions, objective
from rowtier.plan.constraints import Constraints
from rowtier.plan.verify import verify
from rowtier.profile.profile import FeatureStats, RowCounts, TableStats

TABLES = 5


@dataclass(frozen=True, eq=False)
class Honest:
    """A plan in its folder, what it was made from, and what is true of it."""

    name: str
    folder: Path
    plan: Plan
    profile: Profile
    cluster: Cluster
    proved: float | None  # the true bound, where there is a proof
    said: tuple[Any, ...]  # what the verdict says that the bound is about and rests on

    def gap(self, forged: Plan) -> float | None:
        """How far the bands of a forged plan truly are from what is proved of this one."""
        certificate = self.plan.certificate
        if certificate is None or not self.proved:
            return None
        view, facts = certificate.view, (self.plan.profile, self.cluster, self.plan.order)
        cost = objective(view, forged.bands, *facts, assumptions(view, self.plan.assumed))
        return cost / self.proved - 1


def profile_of(rng: np.random.Generator, rows: int = 400, batch: int = 64) -> Profile:
    """Skewed tables, one of them a sequence."""
    stats = []
    for index in range(TABLES):
        count, dim = int(rows * rng.uniform(0.3, 1.5)), int(rng.choice([4, 8, 16]))
        table = Table(
            name=f"t{index}", num_embeddings=count, embedding_dim=dim, features=(f"f{index}",),
            pooling="none" if index == 0 else "sum", optimizer="rowwise_adagrad",
        )  # fmt: skip
        heat = rng.permutation((4e3 / np.arange(1, count + 1) ** rng.uniform(0.8, 1.2)).astype(int))
        counts = RowCounts.from_dense(heat)
        lookups = int(counts.counts.sum())
        feature = FeatureStats(name=f"f{index}", present=min(lookups, 5000), lookups=lookups)
        stats.append(TableStats.counted(table, 5000, (feature,), counts))
    return Profile(batch, tuple(stats))


def cluster_of(profile: Profile, share: float, shape: tuple[int, ...], **more: Any) -> Cluster:
    """Devices whose fast memory holds a share of all tables."""
    total = sum(stats.table.stored_bytes for stats in profile.stats)
    devices = int(np.prod(shape))
    names = ("node", "cluster", "site")
    slow: dict[str, Any] = {"name": "ddr", "capacity": 2 * total, "bandwidth": 2e9}
    if more.pop("shared", False):
        slow |= {"shared_by": "node", "capacity": 2 * total * shape[0]}
    fast = {"name": "hbm", "capacity": max(1, int(share * total / devices)), "bandwidth": 2e11}
    levels = [
        {"name": names[i], "size": n, "bandwidth": 1e10 / 10**i, "latency": 2e-6 * (i + 1)}
        for i, n in enumerate(shape)
    ]
    data = {"name": "forged", "levels": levels, "device": {"tiers": [fast, slow]}, **more}
    return Cluster.model_validate(data)


def honest_plans(folder: Path, rng: np.random.Generator) -> Iterator[Honest]:
    """A plan of every kind, saved in a folder, with what is true of it."""
    for name, (method, shape, more, wishes, curve) in _KINDS.items():
        profile = profile_of(rng)
        profile = profile.to_curve() if curve else profile
        share = float(rng.uniform(0.1, 0.4))
        cluster, plan = _placed(profile, method, share, shape, more, PlanOptions(**wishes))
        plan.save(folder / name)
        found = verify(folder / name, profile, cluster)
        assert found.holds, (name, found.mistakes)
        said = (found.covers, found.assumes)
        yield Honest(name, folder / name, plan, profile, cluster, found.proved, said)


def _placed(
    profile: Profile, method: str, share: float, shape: tuple[int, ...], more: Mapping[str, Any],
    options: PlanOptions,
) -> tuple[Cluster, Plan]:  # fmt: skip
    """The plan on the smallest cluster that has room: outputs and buffers may need more."""
    cluster = cluster_of(profile, share, shape, **more)
    try:
        return cluster, make_plan(profile, cluster, method, options, stop=lambda: True)
    except InfeasibleError:
        return _placed(profile, method, 1.25 * share, shape, more, options)


def _pins(**data: Any) -> Constraints:
    return Constraints.model_validate(data)


_SERVER = {
    "servers": [
        {"name": "ps", "count": 1, "level": "node", "bandwidth": 5e9,
         "tiers": [{"name": "dram", "capacity": 10**7, "bandwidth": 1e10}]}
    ]
}  # fmt: skip
_Kind = tuple[str, tuple[int, ...], Mapping[str, Any], Mapping[str, Any], bool]
_KINDS: Mapping[str, _Kind] = {
    "joint": ("joint", (2, 2), {}, {}, False),
    "joint-curve": ("joint", (4,), {}, {}, True),
    "joint-servers": ("joint", (2, 2), _SERVER, {}, False),
    "joint-shared": ("joint", (2, 2), {"shared": True}, {"reserve": 0.1}, False),
    "joint-dense": ("joint", (2,), {"work": {"hidden": 0.5}}, {"dense_s": 1e-5}, False),
    "joint-fit": ("joint", (2,), {}, {"fit": "all"}, False),
    "recshard-sure": ("recshard", (2,), {}, {"confidence": 0.9, "split": True}, False),
    "joint-sent": (
        "joint", (2, 2), {}, {"constraints": _pins(tables={"t1": {"exchange": "rows"}})}, False,
    ),
    "joint-pinned": (
        "joint", (2, 2), {}, {"constraints": _pins(
            tables={"t1": {"device": 1}}, reserve=[{"tier": "hbm", "amount": 64, "device": 0}],
        )}, False,
    ),
    "recshard-split": ("recshard", (4,), {}, {"split": True}, False),
    "recshard-reserve": (
        "recshard", (4,), {"shared": True}, {"split": True, "reserve": 0.2, "constraints": _pins(
            reserve=[{"tier": "hbm", "amount": 512, "device": 1}],
        )}, False,
    ),
    "recshard-whole": ("recshard", (2,), {}, {}, True),
    "flexshard": ("flexshard", (2, 2), {}, {}, False),
    "sca": ("sca", (4,), {}, {}, False),
    "row-wise": ("row-wise", (2, 2), {}, {}, False),
}  # fmt: skip
