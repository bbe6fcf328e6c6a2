"""What TorchRec's planners are told of each table: what the profile knows, what users wish."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from torchrec.distributed.planner.constants import UVM_CACHING_RATIO

from rowtier.errors import UserError
from rowtier.profile.profile import Profile
from rowtier.profile.to_torchrec import ONLY_ROWS

# Of an asked-for constraint, what the profile knows better unless the user says it.
_FROM_PROFILE = ("pooling_factors", "num_poolings", "batch_sizes")


def constraints_of(
    profile: Profile, devices: int, asked: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """`ParameterConstraints` by table: what the user asks for, completed from the profile.

    The load factor of caches is stated, as TorchRec assumes it, because its estimator counts
    cache misses only where one is.
    """
    found = profile.to_torchrec_constraints(devices)
    for known in found.values():
        known.cache_params.load_factor = UVM_CACHING_RATIO
    for name, wish in (asked or {}).items():
        if name not in found:
            raise UserError(f"constraints: the profile has no table {name!r}; drop it")
        found[name] = _completed(name, wish, found[name])
    return found


def _completed(name: str, wish: Any, known: Any) -> Any:
    made = copy.copy(wish)
    if known.sharding_types is not None:
        if wish.sharding_types not in (None, known.sharding_types):
            raise UserError(
                f"constraints: sharding_types {wish.sharding_types} of table {name!r}: "
                f"{ONLY_ROWS}; ask for {known.sharding_types} or leave it open"
            )
        made.sharding_types = known.sharding_types
    for what in _FROM_PROFILE:
        setattr(made, what, getattr(known, what))
    cache = copy.copy(wish.cache_params) if wish.cache_params is not None else known.cache_params
    cache.stats = cache.stats or known.cache_params.stats
    if cache.load_factor is None:
        cache.load_factor = known.cache_params.load_factor
    made.cache_params = cache
    return made


def allow(
    constraints: Mapping[str, Any], types: Mapping[str, Iterable[str]], kernels: Iterable[str]
) -> None:
    """Name what may be chosen, wherever the user leaves it open; TorchRec then lists grids too."""
    for name, constraint in constraints.items():
        constraint.sharding_types = constraint.sharding_types or list(types[name])
        constraint.compute_kernels = constraint.compute_kernels or list(kernels)
