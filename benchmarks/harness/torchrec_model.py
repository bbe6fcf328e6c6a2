"""TorchRec's model, every table placed as it is told, on CPU processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def sharded(
    tables: Sequence[Mapping[str, Any]], ways: Mapping[str, Any], *, pooled: bool, lr: float,
    world: int, local_world: int,
) -> Any:  # fmt: skip
    """Tables (the arguments of TorchRec's configurations) under DistributedModelParallel, SGD."""
    import torch
    import torch.distributed as dist
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec import EmbeddingBagCollection, EmbeddingCollection
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan
    from torchrec.distributed.types import ShardingEnv, ShardingPlan
    from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig

    meta, fused = torch.device("meta"), {"learning_rate": lr, "optimizer": EmbOptimType.EXACT_SGD}
    module: Any
    sharder: Any
    if pooled:
        configs = [EmbeddingBagConfig(**table) for table in tables]
        module = EmbeddingBagCollection(tables=configs, device=meta)
        sharder = EmbeddingBagCollectionSharder(fused_params=fused)
    else:
        configs = [EmbeddingConfig(**table) for table in tables]
        module = EmbeddingCollection(tables=configs, device=meta)
        sharder = EmbeddingCollectionSharder(fused_params=fused)
    plan = construct_module_sharding_plan(
        module, dict(ways), sharder=sharder, local_size=local_world, world_size=world,
        device_type="cpu",
    )  # fmt: skip
    return DistributedModelParallel(
        module,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        plan=ShardingPlan({"": plan}),
        sharders=[sharder],
        device=torch.device("cpu"),
    )
