"""What the other methods place: `joint` is never worse than any of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rowtier.band import Bands
from rowtier.cluster import Cluster
from rowtier.cost.options import CostOptions
from rowtier.cost.step import step_cost
from rowtier.errors import InfeasibleError
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
from rowtier.plan.joint.whole import changed
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.profile.profile import Profile

# In the order in which they are tried.
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

MANY_TABLES = 50  # of which a part tells most: few rows matter by themselves
WITHOUT_OWNERS = ("sca",)  # methods that spread every row, and take long
CUT_SEQUENCES = ("flexshard",)  # methods that without sequence tables are row-wise
CUT_TABLES = ("recshard",)  # methods that do so on demand
# Without counts, blocks of row ids look evenly hot. Dealing the same rows out really is even.
DEALT = ("row-wise-coalesced",)
BUSIEST = (0.05, 0.25)  # of all tables, that other plans are priced with first
SURELY = 1.02  # times slower: a part of the tables may be placed and bundled otherwise


@dataclass(frozen=True, eq=False)
class Rivals:
    """The other methods, asked for the same."""

    profile: Profile
    cluster: Cluster
    options: PlanOptions
    cost: CostOptions

    def bands(self, best_s: float, without_owners_s: float) -> Iterator[Bands]:
        """What they place, but for those that are known to take longer than the best step.

        `without_owners_s`: what no plan beats in which every row is spread.
        """
        for method in self.hopeful(best_s, without_owners_s):
            yield from self._placed_by(method, self.profile)

    def hopeful(self, best_s: float, without_owners_s: float) -> Iterator[str]:
        """Methods that may be faster: what tables ask for adds up.

        So where the busiest of them alone, with all memory to themselves, take longer than the
        best step, all do.
        """
        sequences = any(s.table.pooling == "none" for s in self.profile.stats)
        for method in RIVALS:
            if method in CUT_SEQUENCES and not sequences:
                continue
            if method in WITHOUT_OWNERS and without_owners_s >= best_s:
                continue
            if all(self._may_beat(method, part, best_s) for part in self._busiest):
                yield method

    def _may_beat(self, method: str, part: Profile, best_s: float) -> bool:
        """Whether a method places some tables in less than the best step of all."""
        return any(
            step_cost(bands, part, self.cluster, None, self.cost).step_s < SURELY * best_s
            for bands in self._placed_by(method, part)
        )

    def _placed_by(self, method: str, profile: Profile) -> Iterator[Bands]:
        """What another method places."""
        for split in (False, True) if method in CUT_TABLES else (self.options.split,):
            wishes = self.options.model_copy(update={"split": split})
            with contextlib.suppress(InfeasibleError):
                bands = RIVALS[method](profile, self.cluster, wishes).bands
                if method in DEALT:
                    yield changed(bands, order="spread")
                if method not in DEALT or profile.form == "counted":
                    yield bands

    @cached_property
    def _busiest(self) -> list[Profile]:
        """The tables that are looked up most, some and more; none of a few tables, or with pins."""
        stats = self.profile.stats
        if len(stats) <= MANY_TABLES or self.options.constraints.decides:
            return []
        moved = [one.lookups_per_sample * one.table.stored_row_bytes for one in stats]
        order = np.argsort(moved, kind="stable")[::-1].tolist()
        counts = [math.ceil(share * len(stats)) for share in BUSIEST]
        parts = [tuple(stats[at] for at in sorted(order[:count])) for count in counts]
        return [replace(self.profile, stats=part) for part in parts]
