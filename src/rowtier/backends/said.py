"""What a TorchRec plan says beside placement, as plain data that travels in `Plan.origin`.

    origin["torchrec"] = {
      "devices": {"0": "cuda:0", …},                   the device of each rank
      "tables": {"item": {"module": "sparse.ebc", "sharding_type": …, "compute_kernel": …,
                          "ranks": […], "cache": {"load_factor": …}, …}}
    }

Only what is not as usual is kept.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torchrec import DataType
from torchrec.distributed.planner.constants import UVM_CACHING_RATIO
from torchrec.distributed.planner.shard_estimators import EmbeddingOffloadStats
from torchrec.distributed.types import (
    BoundsCheckMode,
    CacheAlgorithm,
    CacheParams,
    MultiPassPrefetchConfig,
)

from rowtier.errors import UserError

ORIGIN = "torchrec"
_PLAIN = ("enforce_hbm", "stochastic_rounding")
_ENUMS: dict[str, Any] = {"bounds_check_mode": BoundsCheckMode, "output_dtype": DataType}
_CACHE_PLAIN = ("load_factor", "reserved_memory", "prefetch_pipeline")
_CACHE_ENUMS: dict[str, Any] = {"algorithm": CacheAlgorithm, "precision": DataType}


def said_by(sharding: Any, path: str, table: str) -> dict[str, Any]:
    """What a `ParameterSharding` says, without the shards."""
    if sharding.key_value_params is not None:
        raise UserError(
            f"table {table!r} has key_value_params (kernel {sharding.compute_kernel}), which "
            "rowtier cannot read: keep it out of the plan, or choose a fused kernel for it"
        )
    said: dict[str, Any] = {
        "module": path,
        "sharding_type": sharding.sharding_type,
        "compute_kernel": sharding.compute_kernel,
        "ranks": None if sharding.ranks is None else list(sharding.ranks),
    }
    said |= _fields(sharding, _PLAIN, _ENUMS)
    if sharding.cache_params is not None:
        said["cache"] = _cache(sharding.cache_params)
    return said


def to_arguments(said: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a `ParameterSharding` that says the same, without the shards."""
    names = ("sharding_type", "compute_kernel", "ranks", *_PLAIN)
    arguments = {name: said[name] for name in names if name in said}
    arguments |= {name: kind[said[name]] for name, kind in _ENUMS.items() if name in said}
    if "cache" in said:
        arguments["cache_params"] = _cache_params(said["cache"])
    return arguments


def load_factor(said: dict[str, Any]) -> float:
    """Share of a table's rows that its cache holds."""
    stated = said.get("cache", {}).get("load_factor")
    return float(UVM_CACHING_RATIO if stated is None else stated)


def _fields(
    source: Any, plain: tuple[str, ...], enums: dict[str, Any] | tuple[str, ...]
) -> dict[str, Any]:
    said = {name: getattr(source, name) for name in plain}
    for name in enums:
        value = getattr(source, name)
        said[name] = None if value is None else value.name
    return {name: value for name, value in said.items() if value is not None}


def _cache(params: Any) -> dict[str, Any]:
    said = _fields(params, _CACHE_PLAIN, _CACHE_ENUMS)
    if params.multipass_prefetch_config is not None:
        said["multipass"] = dataclasses.asdict(params.multipass_prefetch_config)
    if isinstance(params.stats, EmbeddingOffloadStats):
        said["stats"] = {
            "cacheability": params.stats.cacheability,
            "expected_lookups": params.stats.expected_lookups,
            "height": params.stats.height,
            "mrc_hist_counts": params.stats.hist.tolist(),
        }
    return said


def _cache_params(said: dict[str, Any]) -> Any:
    arguments = {name: said[name] for name in _CACHE_PLAIN if name in said}
    arguments |= {name: kind[said[name]] for name, kind in _CACHE_ENUMS.items() if name in said}
    if "multipass" in said:
        arguments["multipass_prefetch_config"] = MultiPassPrefetchConfig(**said["multipass"])
    if "stats" in said:
        counts = torch.tensor(said["stats"]["mrc_hist_counts"], dtype=torch.float64)
        arguments["stats"] = EmbeddingOffloadStats(**{**said["stats"], "mrc_hist_counts": counts})
    return CacheParams(**arguments)
