"""rowtier for TorchRec: what users import.

    import rowtier.torchrec as rt

    tables = rt.tables(model)                            # TorchRec's tables as ours
    planner = rt.RowtierPlanner(profile, cluster)        # in place of EmbeddingShardingPlanner
    plan = rt.from_plan(sharding_plan, tables, profile, cluster)
    rt.to_plan(plan)                                     # and back
    rt.split(bags, plan)                                 # hot rows copied, cold rows kept once
    rt.ShardedEmbeddingBagCollection.from_module(bags, plan)  # rows where the plan says
    rt.ShardedEmbeddingCollection.from_module(rows, plan)     # the same, not pooled
    rt.score(sharding_plan, profile, cluster)            # TorchRec's own estimate of a plan

TorchRec is imported when a name is first used; if it is missing, or its version does not fit
torch's and fbgemm's, the error says which three are there and which fit together.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rowtier.backends.collections import (
        ShardedEmbeddingBagCollection,
        ShardedEmbeddingCollection,
    )
    from rowtier.backends.method import plan as plan_with_torchrec
    from rowtier.backends.modules import tables
    from rowtier.backends.planner import RowtierPlanner
    from rowtier.backends.read import from_plan
    from rowtier.backends.score import score
    from rowtier.backends.split import split
    from rowtier.backends.write import to_plan
    from rowtier.runtime.together import Together

_HOME = {
    "RowtierPlanner": ("backends.planner", "RowtierPlanner"),
    "ShardedEmbeddingBagCollection": ("backends.collections", "ShardedEmbeddingBagCollection"),
    "ShardedEmbeddingCollection": ("backends.collections", "ShardedEmbeddingCollection"),
    "Together": ("runtime.together", "Together"),
    "from_plan": ("backends.read", "from_plan"),
    "plan_with_torchrec": ("backends.method", "plan"),
    "score": ("backends.score", "score"),
    "split": ("backends.split", "split"),
    "tables": ("backends.modules", "tables"),
    "to_plan": ("backends.write", "to_plan"),
}

__all__ = [
    "RowtierPlanner",
    "ShardedEmbeddingBagCollection",
    "ShardedEmbeddingCollection",
    "Together",
    "from_plan",
    "plan_with_torchrec",
    "score",
    "split",
    "tables",
    "to_plan",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rowtier.torchrec' has no attribute {name!r}")
    part, attribute = _HOME[name]
    value = getattr(importlib.import_module(f"rowtier.{part}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
