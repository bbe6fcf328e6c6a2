"""TorchRec's own enumerator and estimators, asked for no more than the solver needs.

Two things make TorchRec's estimates slow: each of the equal shards of a row-wise table is
estimated alone, and every estimate searches the hardware description for overrides, which
the default description has none of. Both are left out here, and the figures stay TorchRec's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.estimator.config import EmbeddingPerfEstimatorConfig
from torchrec.distributed.planner.estimator.estimator import EmbeddingPerfEstimator
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.types import Shard, ShardEstimator

from rowtier.backends.menu import undominated
from rowtier.errors import UserError
from rowtier.profile.profile import Profile, TableStats

CACHING = "fused_uvm_caching"
TYPES = (
    "data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise", "grid_shard",
)  # fmt: skip
COLUMNS = ("column_wise", "grid_shard")
COVERED = (0.5, 0.8, 0.9, 0.95, 0.99)  # of lookups, by rows that a cache may hold
MOST_CACHED = 0.95  # of a table's rows; TorchRec accepts less than all
LEAST_COLUMNS = 16
FEW_TABLES = 8  # per device; below, tables may be cut into narrower columns


class PlainHardware(EmbeddingPerfEstimatorConfig):  # type: ignore[misc]
    """TorchRec's default hardware, without a search for overrides that it does not have."""

    def __dir__(self) -> list[str]:
        return []


class DistinctShards(ShardEstimator):  # type: ignore[misc]
    """Estimates each size of shard once; equal shards of an option get equal figures."""

    def __init__(self, topology: Any, constraints: Any = None):
        self._inner = EmbeddingPerfEstimator(topology, constraints, config=PlainHardware())

    def estimate(self, sharding_options: list[Any], sharder_data_map: Any) -> None:
        """Fill in what every shard is expected to cost."""
        everything = [option.shards for option in sharding_options]
        for option in sharding_options:
            option.shards = list({tuple(shard.size): shard for shard in option.shards}.values())
        self._inner.estimate(sharding_options, sharder_data_map)
        for option, shards in zip(sharding_options, everything, strict=True):
            known = {tuple(shard.size): shard.perf for shard in option.shards}
            for shard in shards:
                shard.perf = known[tuple(shard.size)]
            option.shards = shards


class Nothing(ShardEstimator):  # type: ignore[misc]
    """Estimates nothing."""

    def __init__(self, topology: Any = None, constraints: Any = None):
        """As all estimators are made."""

    def estimate(self, sharding_options: list[Any], sharder_data_map: Any) -> None:
        """Leave everything open."""


@dataclass(frozen=True, eq=False)
class EnumerationProblem:
    """What TorchRec's enumerator is told, and what of it the user asked for."""

    topology: Any
    constraints: Mapping[str, Any]
    asked: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Choices:
    """Sharding options by table, with TorchRec's estimates."""

    topology: Any
    enumerator: Any
    by_table: Mapping[str, Sequence[Any]]

    @classmethod
    def of(
        cls, problem: EnumerationProblem, module: Any, sharders: list[Any], batch_size: int
    ) -> Choices:
        """What TorchRec's enumerator lists, without what something else in it beats."""
        topology, constraints = problem.topology, problem.constraints
        enumerator = EmbeddingEnumerator(topology, batch_size, constraints, [Nothing()])
        found: dict[str, list[Any]] = {}
        for option in enumerator.enumerate(module, sharders):
            if option.dependency is not None:
                raise UserError(
                    f"table {option.name!r} is part of an embedding tower, which RowtierPlanner "
                    "does not plan: use TorchRec's EmbeddingShardingPlanner for this model"
                )
            found.setdefault(option.name, []).append(option)
        # Estimated from here on, because the enumerator copies all that it lists.
        enumerator._estimators = [
            DistinctShards(topology, constraints),
            EmbeddingStorageEstimator(topology=topology, constraints=constraints),
        ]
        made = cls(topology, enumerator, {name: _distinct(found[name]) for name in found})
        made._estimate([option for options in made.by_table.values() for option in options])
        if len(found) < FEW_TABLES * topology.world_size:
            made = made.narrower(problem.asked)
        return made._pruned()

    def cached(self, profile: Profile) -> Choices:
        """With caches of more sizes: what the coverage curve says that hot rows serve."""
        found = {}
        for name, options in self.by_table.items():
            cachers = [option for option in options if option.compute_kernel == CACHING]
            factors = load_factors(profile[name]) if cachers else []
            more = [with_factor(option, factor) for option in cachers for factor in factors]
            found[name] = [*options, *more]
        self._estimate(
            [o for name, all_ in found.items() for o in all_[len(self.by_table[name]) :]]
        )
        return Choices(self.topology, self.enumerator, found)._pruned()

    def narrower(self, asked: Mapping[str, Any]) -> Choices:
        """With columns cut into narrower runs, where the user does not say how wide."""
        found = {name: list(options) for name, options in self.by_table.items()}
        more: list[Any] = []
        for name, options in found.items():
            wish = asked.get(name)
            types = wish.sharding_types if wish is not None else None
            if (types and "column_wise" not in types) or (wish and wish.min_partition):
                continue
            for option in [o for o in options if o.sharding_type == "table_wise"]:
                cut = [in_runs(option, runs) for runs in self._runs(option)]
                options += cut
                more += cut
        self._estimate(more)
        return Choices(self.topology, self.enumerator, found)

    def _runs(self, option: Any) -> list[int]:
        width = option.tensor.shape[1]
        return [
            runs
            for runs in (2, 4, 8, 16)
            if runs <= self.topology.world_size
            and width % (4 * runs) == 0
            and width // runs >= LEAST_COLUMNS
        ]

    def _estimate(self, options: list[Any]) -> None:
        if options:
            self.enumerator.populate_estimates(options)

    def _pruned(self) -> Choices:
        kept = {n: undominated(options, self.topology) for n, options in self.by_table.items()}
        return Choices(self.topology, self.enumerator, kept)


def _distinct(options: Sequence[Any]) -> list[Any]:
    """In one order in every process, and without a cut into columns that cuts nothing."""
    ordered = sorted(options, key=lambda o: (TYPES.index(o.sharding_type), o.compute_kernel))
    whole = {o.tensor.shape[1] for o in options}
    return [
        o
        for o in ordered
        if o.sharding_type not in COLUMNS or not all(s.size[1] in whole for s in o.shards)
    ] or ordered


def load_factors(stats: TableStats) -> list[float]:
    """Shares of a table's rows that serve much of its lookups, hottest first."""
    curve, rows = stats.curve, stats.table.num_embeddings
    if not len(curve.stops):
        return []
    reached = np.cumsum(curve.lookups) / curve.total
    found = curve.stops[np.searchsorted(reached, COVERED).clip(max=len(reached) - 1)] / rows
    return sorted({float(f"{share:.3g}") for share in found.clip(1 / rows, MOST_CACHED)})


def with_factor(option: Any, factor: float) -> Any:
    """The same option with a cache of another size."""
    changed = copy.copy(option)
    changed.shards = [Shard(size=s.size, offset=s.offset) for s in option.shards]
    changed.cache_params = copy.copy(option.cache_params)
    changed.cache_params.load_factor = factor
    return changed


def in_runs(option: Any, runs: int) -> Any:
    """A table-wise option as column-wise, cut into so many runs."""
    changed, (rows, columns) = copy.copy(option), option.tensor.shape
    changed.sharding_type = "column_wise"
    width = columns // runs
    changed.shards = [Shard(size=[rows, width], offset=[0, i * width]) for i in range(runs)]
    return changed
