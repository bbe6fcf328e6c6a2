"""Plan invariants, re-checked by code that shares nothing with the planners.

Every (row, column) of every table covered exactly once per scope group, every member
and tier exists, every capacity holds, and the row order names each touched row once.
Plain sums of whole numbers on purpose: this is the part that must be easy to trust.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.cost.views import VIEWS
from rowtier.errors import InvalidError, Mistake
from rowtier.plan.options import PlanOptions
from rowtier.plan.serving import STATELESS
from rowtier.profile.curve import Ints
from rowtier.sayings import mistake_from
from rowtier.tables import Table
from rowtier.units import show_bytes

if TYPE_CHECKING:
    from rowtier.plan.plan import Plan


def refuse_mistakes(plan: Plan, source: object) -> None:
    """Raise `InvalidError` with all that `build`, `save` and `load` refuse in a plan."""
    mistakes = [*find_mistakes(plan), *stamp_mistakes(plan)]
    if mistakes:
        raise InvalidError(source, mistakes)


def stamp_mistakes(plan: Plan) -> Iterator[Mistake]:
    """What a plan says of its making that cannot be: for another cluster, with strange wishes."""
    if plan.cluster.fingerprint != plan.made_for.cluster:
        yield Mistake(
            "made_for.cluster",
            plan.made_for.cluster,
            f"the cluster in the file is {plan.cluster.fingerprint}, not the one the plan was "
            "made for; plan again",
        )
    if plan.certificate is not None and plan.certificate.view not in VIEWS:
        accepted = f"there is no such view; {', '.join(VIEWS)}"
        yield Mistake("certificate.view", plan.certificate.view, accepted)
    yield from option_mistakes(plan)
    yield from _serving_mistakes(plan)


def _serving_mistakes(plan: Plan) -> Iterator[Mistake]:
    """Tables that are not as a plan that serves has them: without state, and of one type."""
    if not plan.serves:
        return
    rows_as = plan.origin["options"].get("rows_as")
    for table, _ in plan:
        if table.optimizer != STATELESS:
            said = f"{table.name!r} has state of {table.optimizer}: a plan that serves has none"
            yield Mistake("origin.options.serve", True, f"{said}; plan again")
        elif rows_as is not None and table.dtype != rows_as:
            said = f"{table.name!r} has rows of {table.dtype}; plan again"
            yield Mistake("origin.options.rows_as", rows_as, said)


def option_mistakes(plan: Plan) -> Iterator[Mistake]:
    """Wishes that a plan says it was made with, and that nobody can have."""
    try:
        PlanOptions.model_validate(plan.origin.get("options", {}))
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            yield mistake_from(PlanOptions, detail).below("origin.options")


def find_mistakes(plan: Plan) -> Iterator[Mistake]:
    """Everything that is wrong with a plan's bands and row order."""
    tables = {stats.table.name: stats.table for stats in plan.profile.stats}
    for name in plan.bands:
        if name not in tables:
            yield Mistake(f"tables.{name}", None, "the profile has no such table; drop it")
    placeable = True
    tiers = {
        level: [
            tuple(tier.name for tier in plan.cluster.tiers_of(holder))
            for holder in plan.cluster.members(level)
        ]
        for level in range(len(plan.cluster.scopes))
    }
    for name, table in tables.items():
        if name not in plan.bands:
            yield Mistake("tables", name, "the table has no bands; every table needs a home")
            continue
        for index, band in enumerate(plan.bands[name]):
            for mistake in _band_mistakes(band, table, plan.cluster, tiers):
                placeable = False
                yield mistake.below(f"tables.{name}[{index}]")
        yield from _cover_mistakes(plan.bands[name], table)
    yield from _order_mistakes(plan)
    if placeable:
        yield from _capacity_mistakes(plan, tables)


def _band_mistakes(
    band: Band, table: Table, cluster: Cluster, tiers: dict[int, list[tuple[str, ...]]]
) -> Iterator[Mistake]:
    if band.stop > table.num_embeddings:
        yield Mistake("stop", band.stop, f"the table has {table.num_embeddings} rows")
    if band.columns is not None and band.columns[1] > table.embedding_dim:
        yield Mistake("columns", band.columns, f"the table has {table.embedding_dim} columns")
    if band.exchange == "sums" and table.why_rows is not None:
        yield Mistake("exchange", "sums", f"{table.why_rows}; accepted: rows")
    if band.scope not in cluster.scopes:
        yield Mistake("scope", band.scope, f"accepted: {', '.join(cluster.scopes)}")
        return
    level = cluster.level_of(band.scope)
    count = len(tiers[level])
    members = band.member_list(cluster.group_size(level))
    outside = band.members != "all" and (min(members) < 0 or max(members) >= count)
    missing = [m for m in members if not 0 <= m < count] if outside else []
    if missing:
        yield Mistake(
            "members",
            missing,
            f"there is no such member: a {band.scope} has members 0 to {count - 1}",
        )
        return
    # All devices have the same tiers: one of them is as good as all.
    for member in members[:1] if band.members == "all" else members:
        names = tiers[level][member]
        if band.tier not in names:
            where = cluster.holder_name(cluster.members(level)[member])
            yield Mistake("tier", band.tier, f"{where} has no such tier; it has {', '.join(names)}")
            return


def _cover_mistakes(bands: tuple[Band, ...], table: Table) -> Iterator[Mistake]:
    """Cut the positions at every band's edge; in each piece the columns must tile the row."""
    edges = sorted({0, table.num_embeddings, *(b.start for b in bands), *(b.stop for b in bands)})
    for first, last in pairwise(edges):
        if last > table.num_embeddings:
            return
        covered = 0
        here = [b for b in bands if b.start <= first and b.stop >= last]
        for start, stop in sorted(b.columns or (0, table.embedding_dim) for b in here):
            if start > covered:
                yield _uncovered(table, first, last, covered, start)
            elif start < covered:
                yield Mistake(
                    f"tables.{table.name}",
                    None,
                    f"positions {first} to {last} are covered twice in columns {start} to "
                    f"{min(stop, covered)}; move the start of one of the bands",
                )
            covered = max(covered, stop)
        if covered < table.embedding_dim:
            yield _uncovered(table, first, last, covered, table.embedding_dim)


def _uncovered(table: Table, first: int, last: int, start: int, stop: int) -> Mistake:
    return Mistake(
        f"tables.{table.name}",
        None,
        f"positions {first} to {last} are in no band in columns {start} to {stop}; "
        "extend a band or add one",
    )


def _order_mistakes(plan: Plan) -> Iterator[Mistake]:
    if plan.order is None:
        return
    for stats in plan.profile.stats:
        name, rows = stats.table.name, plan.order.get(stats.table.name)
        if rows is None:
            yield Mistake("order", name, "the table has no row order; plan again")
            continue
        if len(rows) != stats.touched:
            yield Mistake(
                f"order.{name}.rows", len(rows), f"the profile touches {stats.touched} rows"
            )
        outside = rows[(rows < 0) | (rows >= stats.table.num_embeddings)]
        if len(outside):
            limit = stats.table.num_embeddings - 1
            yield Mistake(f"order.{name}", int(outside[0]), f"rows are 0 to {limit}; plan again")
        ordered = np.sort(rows)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            yield Mistake(
                f"order.{name}", int(twice[0]), "the row appears twice in the row order; plan again"
            )


def _capacity_mistakes(plan: Plan, tables: dict[str, Table]) -> Iterator[Mistake]:
    cluster = plan.cluster
    most = sum(tables[name].stored_bytes for name in plan.bands if name in tables)
    whole = np.int64 if most * cluster.num_devices < 2**62 else object  # Python's have no limit

    @cache
    def groups(level: int) -> Ints:
        return _groups(cluster, level)

    used = {tier: np.zeros(cluster.num_holders, dtype=whole) for tier in cluster.tier_names}
    for name, bands in plan.bands.items():
        if name not in tables:
            continue
        for band in bands:
            level = cluster.level_of(band.scope)
            members = list(band.member_list(cluster.group_size(level)))
            rows = _rows_by_member(band, len(members), whole)
            # Nobody is in two groups, so every holder is named once.
            used[band.tier][groups(level)[:, members]] += rows * _bytes_per_row(tables[name], band)
    pooled: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for holder, tier_name in sorted((int(h), t) for t in used for h in np.flatnonzero(used[t])):
        amount = int(used[tier_name][holder])
        tier = next(t for t in cluster.tiers_of(holder) if t.name == tier_name)
        place = cluster.holder_name(holder)
        if tier.shared_by is not None:
            size = cluster.group_size(cluster.level_of(tier.shared_by))
            place = f"{tier.shared_by} {holder // size}"
        pooled[place, tier_name][0] += amount
        pooled[place, tier_name][1] = tier.capacity_bytes
    for (place, tier_name), (amount, capacity) in pooled.items():
        if amount > capacity:
            yield Mistake(
                f"cluster.{tier_name}.capacity",
                None,
                f"{place} would hold {show_bytes(amount)} of rows in {tier_name} and has "
                f"{show_bytes(capacity)}: raise the capacity or move rows away",
            )


def _groups(cluster: Cluster, level: int) -> Ints:
    """The holders in every group of a level, a group in each line."""
    found = [cluster.members(level, group) for group in range(cluster.num_groups(level))]
    return np.array(found, dtype=np.int64)


def _rows_by_member(band: Band, count: int, whole: type) -> Ints:
    """How many rows each of a band's members has, in every copy."""
    total = band.stop - band.start
    position: Ints = np.arange(count).astype(whole)
    if band.order == "blocks":
        block = -(-total // count)
        return np.asarray(np.clip(total - position * block, 0, block))
    # positions start + position − offset, then every `count`-th one
    first = (position - band.offset) % count
    return np.asarray(np.maximum(0, -(-(total - first) // count)))


def _bytes_per_row(table: Table, band: Band) -> int:
    first, last = band.columns or (0, table.embedding_dim)
    width = last - first
    number = 4 if table.dtype == "fp32" else 2
    state = {"sgd": 0, "rowwise_adagrad": 4, "adagrad": 4 * width, "adam": 8 * width}
    state |= {"momentum": state["adagrad"], "adamw": state["adam"]}
    return width * number + state[table.optimizer]
