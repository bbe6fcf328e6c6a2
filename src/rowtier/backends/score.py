"""What TorchRec's own estimator says of a plan: the figure that its planner minimises."""

from __future__ import annotations

import copy
from typing import Any

from torchrec.distributed.planner.constants import DEFAULT_PERF_ESTIMATOR, UVM_CACHING_RATIO
from torchrec.distributed.planner.enumerators import get_partition_by_type
from torchrec.distributed.planner.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.types import Shard, ShardingOption
from torchrec.distributed.planner.utils import build_sharder_data_map, sharder_name
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import CacheParams

from rowtier.backends.modules import collections, model_of
from rowtier.backends.planner import quiet
from rowtier.backends.statistics import constraints_of
from rowtier.backends.topology import topology_of
from rowtier.cluster import Cluster
from rowtier.profile.profile import Profile


def score(
    sharding_plan: Any,
    profile: Profile,
    cluster: Cluster,
    module: Any = None,
    sharders: list[Any] | None = None,
) -> float:
    """Milliseconds of the slowest device, by TorchRec's estimator on the profile's statistics."""
    topology = topology_of(cluster)
    with quiet():
        options = scored(sharding_plan, profile, topology, module, sharders)
    return float(NoopPerfModel(topology).rate(options))


def scored(
    sharding_plan: Any,
    profile: Profile,
    topology: Any,
    module: Any = None,
    sharders: list[Any] | None = None,
) -> list[Any]:
    """A plan as TorchRec's sharding options, with its estimates of time and memory."""
    sharders = sharders or get_default_sharders()
    constraints = constraints_of(profile, topology.world_size)
    parts = dict(collections(model_of(profile.tables) if module is None else module))
    options = []
    for path, part in sharding_plan.plan.items():
        weights = {name.split(".")[-2]: w for name, w in parts[path].named_parameters()}
        for name, sharding in part.items():
            known = constraints[name]
            options.append(
                ShardingOption(
                    name=name,
                    tensor=weights[name],
                    module=(path, parts[path]),
                    input_lengths=known.pooling_factors,
                    batch_size=profile.batch_size,
                    sharding_type=sharding.sharding_type,
                    partition_by=get_partition_by_type(sharding.sharding_type),
                    compute_kernel=sharding.compute_kernel,
                    shards=_shards(sharding, weights[name].shape, topology.world_size),
                    cache_params=_cache(sharding, known),
                )
            )
    sharders_of = build_sharder_data_map({sharder_name(s.module_type): s for s in sharders})
    estimators = (
        EmbeddingPerfEstimatorFactory.create(
            DEFAULT_PERF_ESTIMATOR, topology=topology, constraints=constraints
        ),
        EmbeddingStorageEstimator(topology=topology, constraints=constraints),
    )
    for estimator in estimators:
        estimator.estimate(options, sharders_of)
    return options


def _shards(sharding: Any, shape: tuple[int, ...], devices: int) -> list[Any]:
    if sharding.sharding_spec is None:
        return [Shard(size=list(shape), offset=[0, 0], rank=rank) for rank in range(devices)]
    return [
        Shard(size=list(s.shard_sizes), offset=list(s.shard_offsets), rank=s.placement.rank())
        for s in sharding.sharding_spec.shards
    ]


def _cache(sharding: Any, known: Any) -> Any:
    """The plan's cache, with the profile's statistics, which an executable plan leaves out."""
    cache = copy.copy(sharding.cache_params) or CacheParams()
    cache.stats = known.cache_params.stats
    if cache.load_factor is None:
        cache.load_factor = UVM_CACHING_RATIO
    return cache
