"""Which tables moved: how many lookups go to rows that a plan keeps in fast memory or as copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rowtier.plan.plan import Plan
from rowtier.profile.profile import Profile, TableStats

_MOVED = 0.005  # of a table's lookups: less is not worth a word


@dataclass(frozen=True)
class TableDrift:
    """Shares of a table's lookups that its hot set takes: in fast memory, or kept as copies."""

    name: str
    lookups: float  # a step and device, now
    before: float  # when it was planned
    now: float  # the same rows
    best: float  # the rows that the best plan would keep there
    unseen: float  # share of lookups now on rows that the plan's profile never saw

    @property
    def lost(self) -> float:
        """Lookups a step and device that left the hot set."""
        return (self.before - self.now) * self.lookups

    @property
    def moved(self) -> bool:
        """Whether the hot set takes another share than it did, or than it could."""
        return max(abs(self.before - self.now), abs(self.best - self.now)) > _MOVED

    @property
    def verdict(self) -> str:
        """One sentence: what the hot set served, serves, and could serve."""
        said = (
            f"{self.name}: fast memory and copies served {self.before:.1%} of its lookups and "
            f"serve {self.now:.1%} now; the best plan's would serve {self.best:.1%}"
        )
        if self.unseen > _MOVED:
            said += f". {self.unseen:.1%} are on rows that were not seen then"
        return said

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        return dict(vars(self))


def table_drifts(plan: Plan, kept: Plan, best: Plan, profile: Profile) -> Iterator[TableDrift]:
    """All tables, those whose hot set lost most lookups first; `profile` knows the rows."""
    found = []
    for stats in profile.stats:
        name, lookups = stats.table.name, profile.lookups_per_step(stats)
        before, now, could = (_hot_share(one, name) for one in (plan, kept, best))
        found.append(TableDrift(name, lookups, before, now, could, _unseen(plan, stats)))
    yield from sorted(found, key=lambda table: (-table.lost, table.name))


def _unseen(plan: Plan, stats: TableStats) -> float:
    assert plan.order is not None
    assert stats.counts is not None
    known = np.zeros(stats.table.num_embeddings, dtype=np.bool_)
    known[plan.order[stats.table.name]] = True
    new = int(stats.counts.counts[~known[stats.counts.rows]].sum(dtype=np.int64))
    return new / stats.lookups if stats.lookups else 0.0


def _hot_share(plan: Plan, table: str) -> float:
    """The share of lookups on rows in the fastest memory or with copies; columns count in part."""
    stats: TableStats = plan.profile[table]
    fastest, top = plan.cluster.device.tiers[0].name, plan.cluster.scopes[-1]
    several = plan.cluster.num_groups(0) > 1
    share = 0.0
    for band in plan.bands[table]:
        if band.tier == fastest or (several and band.scope != top):
            taken = stats.curve.share(band.stop) - stats.curve.share(band.start)
            width = band.width(stats.table.embedding_dim) / stats.table.embedding_dim
            share += float(taken) * width
    return min(1.0, share)
