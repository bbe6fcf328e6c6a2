"""The methods whose plans `joint` weighs against its own, in the order in which it tries them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rowtier.plan import (
    flexshard,
    lookup,
    recshard,
    row_wise,
    row_wise_coalesced,
    sca,
    size,
    size_lookup,
    table_wise,
)
from rowtier.plan.plan import Plan

RIVALS: Mapping[str, Callable[..., Plan]] = {
    "row-wise": row_wise.plan,
    "row-wise-coalesced": row_wise_coalesced.plan,
    "table-wise": table_wise.plan,
    "size": size.plan,
    "lookup": lookup.plan,
    "size-lookup": size_lookup.plan,
    "recshard": recshard.plan,
    "flexshard": flexshard.plan,
    "sca": sca.plan,
}
