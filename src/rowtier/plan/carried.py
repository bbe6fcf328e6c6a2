"""A plan on other statistics than those it was made from, every row where it is.

Bands are runs of positions in the plan's row order. They and the order stay; what changes is how
hot the rows at those positions are. Only in bands of `blocks`, whose rows lie by their ids wherever
they are in the order, are rows put in the order of their new heat: they are priced one by one then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import lcm

import numpy as np

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.cost.tree import tree_of
from rowtier.errors import MismatchError, UserError
from rowtier.plan.plan import MadeFor, Plan
from rowtier.profile.arranged import DealtRun, in_order_of
from rowtier.profile.curve import Ints
from rowtier.profile.forecast import knows_neighbours
from rowtier.profile.order import NarrowInts, narrow, rows_by_position
from rowtier.profile.profile import Profile, TableStats
from rowtier.profile.vocabulary import Vocabulary
from rowtier.tables import Table

_NAMED = 5  # tables in an error
# What must be the same for a row to be the same in two plans.
_SAME = (
    "num_embeddings", "embedding_dim", "dtype", "optimizer", "ids", "hash_seed", "num_shared",
)  # fmt: skip

Words = Mapping[str, Vocabulary]  # by table


def carried(plan: Plan, profile: Profile, cluster: Cluster | None = None) -> Plan:
    """The same placement on the statistics of another profile, and perhaps on another cluster.

    Nothing is certified of it, as nobody looked for a better one.
    """
    machine = cluster or plan.cluster
    check_same_tables(plan, profile)
    order = {stats.table.name: kept_order(plan, stats) for stats in profile.stats}
    kept = replace(
        plan,
        order=order,
        cluster=machine,
        made_for=MadeFor(profile=profile.fingerprint, cluster=machine.fingerprint),
        certificate=None,
    )
    return replace(kept, profile=statistics_of(kept, with_batches_of(plan, profile)))


def kept_order(plan: Plan, stats: TableStats) -> NarrowInts:
    """A row order that leaves every row of a table where it is, on its holder and in its slot."""
    name = stats.table.name
    assert plan.order is not None
    if not any(band.order == "blocks" for band in plan.bands[name]):
        return plan.order[name]
    return settled(plan.rows_in_order(name), plan.bands[name], plan.cluster, stats)


def settled(
    rows: Ints, bands: Sequence[Band], cluster: Cluster, stats: TableStats, least: int = 0
) -> NarrowInts:
    """Rows by position as an order: in runs that lie by id the hottest first, and cut off where
    all that follow do so by their ids; it names at least so many rows.
    """
    rows, position = rows.copy(), heat_positions(stats)
    for run, by_id in runs_of(bands, cluster):
        if by_id:
            here = rows[run.start : run.stop]
            rows[run.start : run.stop] = here[np.argsort(position[here])]
    falls = np.flatnonzero(np.diff(rows) < 0)
    touched = np.flatnonzero(position[rows] < stats.touched)
    ends = [int(found[-1]) + 1 if len(found) else 0 for found in (falls, touched)]
    return narrow(rows[: max(least, *ends)])


def heat_positions(stats: TableStats) -> Ints:
    """By row id its position in the hotness order of a counted table."""
    assert stats.counts is not None
    position = np.empty(stats.table.num_embeddings, dtype=np.int64)
    position[rows_by_position(stats.counts.rows, len(position))] = np.arange(len(position))
    return position


def runs_of(bands: Sequence[Band], cluster: Cluster) -> list[tuple[DealtRun, bool]]:
    """Runs of positions that no band begins or ends in, and whether rows lie there by their ids."""
    found = []
    for start, stop in pairwise(sorted({edge for b in bands for edge in (b.start, b.stop)})):
        here = [band for band in bands if band.start <= start and stop <= band.stop]
        by_id = [band.order == "blocks" for band in here]
        # Where some columns lie by id and others in turn, no two rows need have the same holders.
        turns = stop - start if any(by_id) and not all(by_id) else 1
        if not any(by_id):
            turns = lcm(*(_members(band, cluster) for band in here))
        found.append((DealtRun(start, stop, turns), all(by_id)))
    return found


def _members(band: Band, cluster: Cluster) -> int:
    tree = tree_of(cluster)
    return len(tree.positions(band, tree.scopes[band.scope]))


def statistics_of(plan: Plan, profile: Profile) -> Profile:
    """The statistics of a counted profile by positions in a plan's row order."""
    assert plan.order is not None
    found = []
    for stats in profile.stats:
        name = stats.table.name
        runs = [run for run, _ in runs_of(plan.bands[name], plan.cluster)]
        found.append(in_order_of(stats, plan.order[name], runs))
    return replace(profile, stats=tuple(found))


def with_batches_of(plan: Plan, profile: Profile) -> Profile:
    """The profile with batches as the plan expects them, where it knows of neighbours."""
    batches = plan.profile.batches
    if batches == profile.batches or not all(map(knows_neighbours, profile.stats)):
        return profile
    return replace(profile, batches=batches)


def check_same_tables(plan: Plan, profile: Profile) -> None:
    """Refuse a profile that does not say how hot each of the plan's rows is."""
    if plan.order is None:
        raise UserError(
            "the plan has no row order, because it was made from a curve, so nobody knows which "
            "row lies where: profile the data with `rowtier profile DATA --tables tables.yaml -o "
            "profile/`, and plan from that"
        )
    if profile.form != "counted":
        raise UserError(
            "the profile is a curve and does not know its rows, so nobody knows how hot those of "
            "the plan are now: give a profile of data, as `rowtier profile` writes it"
        )
    words = {s.table.name: s.vocabulary for s in profile.stats if s.vocabulary is not None}
    sides = (tables_of(plan.profile), plan.vocabularies), (tables_of(profile), words)
    wrong = list(differences(*sides, "plan", "profile"))
    if wrong:
        raise MismatchError(
            f"the profile is not of the plan's tables: {some_of(wrong)}. Give a profile of the "
            "same tables.yaml, or plan anew"
        )


def tables_of(profile: Profile) -> dict[str, Table]:
    """The tables by name."""
    return {stats.table.name: stats.table for stats in profile.stats}


Side = tuple[Mapping[str, Table], Words]


def differences(before: Side, after: Side, old: str, new: str) -> Iterator[str]:
    """Why rows of one side are not rows of the other, in words; `old` and `new` name them."""
    (was, old_words), (now, new_words) = before, after
    yield from (f"{name!r} is only in the {old}" for name in was if name not in now)
    yield from (f"{name!r} is only in the {new}" for name in now if name not in was)
    for name in (name for name in now if name in was):
        for key in _SAME:
            first, second = getattr(was[name], key), getattr(now[name], key)
            if first != second:
                yield f"{name!r} has {key} {first} in the {old} and {second} in the {new}"
        if now[name].grows:
            continue  # what is trained has its own vocabulary, and takes it to any plan
        found = [words.get(name) for words in (old_words, new_words)]
        if len({one.fingerprint if one else None for one in found}) > 1:
            yield f"{name!r} has another vocabulary, so its rows stand for other ids"


def some_of(wrong: list[str]) -> str:
    """The first of many reasons."""
    more = f"; and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    return "; ".join(wrong[:_NAMED]) + more
