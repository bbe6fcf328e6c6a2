"""A plan held against the profile and the cluster that it was made from.

A plan brings copies of both, which whoever edits one can seal anew. Against the originals the
copies are compared as fingerprints and as numbers, and the row order with the counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rowtier.cluster import Cluster
from rowtier.errors import Mistake, UserError
from rowtier.plan.carried import statistics_of
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.plan.serving import seen_as
from rowtier.profile.profile import Profile, RowCounts, TableStats

NEARLY = 1e-9  # of a statistic: what another machine may compute otherwise


@dataclass(frozen=True)
class Originals:
    """What a plan is to be checked against, where it is known."""

    profile: Profile | None = None
    cluster: Cluster | None = None

    @property
    def says(self) -> str:
        """What was checked against, in words."""
        names = {"profile": self.profile, "cluster": self.cluster}
        given = [name for name, one in names.items() if one is not None]
        copies = [name for name in names if name not in given]
        if not copies:
            return "checked against the profile and cluster given"
        said = f"the {given[0]} given and " if given else ""
        plural = "copies of profile and cluster" if len(copies) > 1 else f"copy of the {copies[0]}"
        options = " and ".join(f"--{name}" for name in copies)
        return (
            f"checked against {said}the plan's own {plural}: an edited copy would not be seen; "
            f"give {options}"
        )

    def mistakes(self, plan: Plan) -> Iterator[Mistake]:
        """Where the plan differs from what it says that it was made from."""
        if self.cluster is not None and self.cluster.fingerprint != plan.made_for.cluster:
            yield _other("cluster", plan.made_for.cluster, self.cluster.fingerprint)
        if self.cluster is not None and plan.cluster != self.cluster:
            accepted = "the plan's copy is not the cluster given; plan again"
            yield Mistake("cluster", plan.cluster.name, accepted)
        if self.profile is not None:
            yield from _profile_mistakes(plan, self.profile)

    def seen_by(self, plan: Plan) -> Plan:
        """The plan with the originals in the place of its copies."""
        profile = plan.profile if self.profile is None else curve_for(plan, self.profile)
        return replace(plan, profile=profile, cluster=self.cluster or plan.cluster)


def curve_for(plan: Plan, profile: Profile) -> Profile:
    """What a plan was made from of a profile: with its batches, confidence, and as it serves."""
    options = PlanOptions.of(plan)
    expected = seen_as(profile.with_batches(options.batches), options)
    expected = expected.for_planning(options.confidence)
    kept = any(stats.arranged for stats in plan.profile.stats)
    if kept and profile.form == "counted" and expected.tables == plan.profile.tables:
        return statistics_of(plan, expected)
    return expected.to_curve()


def _other(what: str, said: str, found: str) -> Mistake:
    accepted = f"the {what} given is {found}: give the one the plan was made for, or plan again"
    return Mistake(f"made_for.{what}", said, accepted)


def _profile_mistakes(plan: Plan, profile: Profile) -> Iterator[Mistake]:
    try:
        curve = curve_for(plan, profile)
    except UserError as error:
        yield Mistake("origin.options", None, f"the profile given has no such statistics: {error}")
        return
    # Counted, or a curve; and who has the counts may check what was made from their curve.
    as_curve = profile.with_batches(PlanOptions.of(plan).batches).to_curve()
    counted = profile.fingerprint == plan.made_for.profile
    if not counted and as_curve.fingerprint != plan.made_for.profile:
        yield _other("profile", plan.made_for.profile, profile.fingerprint)
    if curve.fingerprint != plan.profile.fingerprint:
        yield from _copy_mistakes(plan.profile, curve)
    if profile.form == "counted" and counted:
        yield from _order_mistakes(plan, profile)


def _copy_mistakes(copy: Profile, original: Profile) -> Iterator[Mistake]:
    """Where numbers differ by more than rounding; the first table only."""
    if copy.tables != original.tables or copy.batches != original.batches:
        accepted = "the plan's copy has other tables or batches than the profile given; plan again"
        yield Mistake("curve.tables", None, accepted)
        return
    if copy.horizon != original.horizon:
        accepted = f"the profile given looks {original.horizon:g} lengths ahead; plan again"
        yield Mistake("curve.horizon", copy.horizon, accepted)
    for mine, other in zip(copy.stats, original.stats, strict=True):
        if mine.facts() != other.facts() or not _alike(mine, other):
            accepted = "the plan's copy has other statistics than the profile given; plan again"
            yield Mistake("curve.statistics", mine.table.name, accepted)
            return


def _alike(mine: TableStats, other: TableStats) -> bool:
    pairs = list(zip(mine.arrays(), other.arrays(), strict=False))
    same = len(list(mine.arrays())) == len(list(other.arrays()))
    return same and all(
        a.shape == b.shape and np.allclose(a, b, rtol=NEARLY, atol=0.0, equal_nan=True)
        for a, b in pairs
    )


def _order_mistakes(plan: Plan, profile: Profile) -> Iterator[Mistake]:
    """Whether the row order has every touched row, the hottest first."""
    order = plan.order
    if order is None:
        yield Mistake("order", None, "the profile given has rows and the plan has none; plan again")
        return
    for stats in profile.stats:
        name = stats.table.name
        assert stats.counts is not None
        if plan.profile[name].arranged:
            continue  # rows are where another plan put them; their heat was compared
        wrong = _wrong_order(order.get(name), stats.counts)
        if wrong is not None:
            yield Mistake(f"order.{name}", None, f"{wrong}; plan again")
        words, own = stats.vocabulary, plan.vocabularies.get(name)
        if words is not None and (own is None or own.fingerprint != words.fingerprint):
            accepted = "the plan's copy is not the one of the profile given; plan again"
            yield Mistake(f"vocabularies.{name}", None, accepted)


def _wrong_order(rows: np.ndarray | None, counts: RowCounts) -> str | None:
    if rows is None or len(rows) != len(counts.rows):
        return "has other rows than the profile given touches"
    if np.array_equal(rows, counts.rows):
        return None
    by_row = np.argsort(counts.rows, kind="stable")
    at = np.searchsorted(counts.rows[by_row], rows).clip(max=len(rows) - 1)
    known = by_row[at]
    if not np.array_equal(counts.rows[known], rows):
        return "has other rows than the profile given touches"
    if not np.array_equal(counts.counts[known], counts.counts):
        return "is not by how often rows were looked up in the profile given"
    return None
