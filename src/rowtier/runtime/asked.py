"""What a batch asks of the tables that run as one, and a batch that has been asked for ahead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from rowtier.errors import UserError
from rowtier.plan.remap import Addressed, Read
from rowtier.runtime.exchange.bundles import Bundle, Lookups
from rowtier.runtime.exchange.step import Trip


@dataclass(frozen=True, eq=False)
class Asked:
    """A batch whose ids are on their way, or have arrived."""

    batch: Addressed
    trip: Future[Trip]
    weights: Mapping[str, Any] = field(default_factory=dict)  # of lookups that want a gradient
    generation: int = 0  # of the engine
    given: Any = None  # what it was made of, to ask again for after a migration


def lookups_of(
    batch: Addressed, bundles: Iterable[Bundle], all_reads: Sequence[Read]
) -> list[Lookups]:
    """What each bundle is asked for, its features one after the other."""
    found = []
    for bundle in bundles:
        reads = [all_reads[i] for i in bundle.reads]
        parts = [batch[read.key] for read in reads]
        for read, part in zip(reads, parts, strict=True):
            if read.table.pooling == "none" and part.weights is not None:
                raise UserError(
                    f"feature {read.feature!r} has weights, and table {read.table.name!r} is "
                    "not pooled, so there is no sum to weigh: leave them away, or multiply the "
                    "rows"
                )
        found.append(bundle.lookups(parts))
    return found
