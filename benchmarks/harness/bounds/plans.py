"""Legal plans of every kind that a band can say, for `bounds.py`: drawn, uniform and edited."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from typing import Any

import numpy as np

from harness.bounds.draw import Instance
from rowtier import Band, Cluster, Plan, Table
from rowtier.band import Bands
from rowtier.cost.step import StepCost, step_cost
from rowtier.errors import InvalidError
from rowtier.profile.profile import TableStats

TableBands = tuple[Band, ...]


def cost_of(instance: Instance, bands: Bands) -> StepCost:
    """What a step of a plan costs, as the one cost model says."""
    return step_cost(bands, instance.profile, instance.cluster, None, instance.options.cost)


def legal_cost(instance: Instance, bands: Bands) -> StepCost | None:
    """The same; None where a plan with these bands would be refused."""
    try:
        Plan.build("drawn", instance.profile, instance.cluster, bands)
    except InvalidError:
        return None
    cost = cost_of(instance, bands)
    broken = next(instance.options.constraints.violations(bands, cost), None)
    return cost if broken is None else None


def draw_plan(instance: Instance, random: np.random.Generator) -> Bands:
    """Bands of any kind that keep to the pins; they may not fit."""
    cluster, wanted = instance.cluster, instance.options.constraints
    owners = [int(random.integers(cluster.num_devices)) for _ in instance.profile.stats]
    found = {}
    for number, stats in enumerate(instance.profile.stats):
        name = stats.table.name
        owner = owners[0 if wanted.group(name) is not None else number]
        bands = tuple(_bands(stats.table, cluster, random))
        found[name] = pinned(instance, name, bands, owner)
    return found


def _bands(table: Table, cluster: Cluster, random: np.random.Generator) -> Iterator[Band]:
    rows, dim = table.num_embeddings, table.embedding_dim
    cuts = random.integers(1, rows, int(random.integers(0, 3))).tolist() if rows > 1 else []
    for start, stop in pairwise([0, *sorted(set(cuts)), rows]):
        widths: list[tuple[int, int] | None] = [None]
        if dim > 1 and random.random() < 0.2:
            at = int(random.integers(1, dim))
            widths = [(0, at), (at, dim)]
        for columns in widths:
            yield draw_band(table, cluster, random, start, stop, columns)


def draw_band(
    table: Table, cluster: Cluster, random: np.random.Generator, start: int, stop: int,
    columns: tuple[int, int] | None,
) -> Band:  # fmt: skip
    """One band; every field but its rows and columns is drawn."""
    scope = str(random.choice(cluster.scopes))
    level = cluster.level_of(scope)
    group, devices = cluster.members(level), cluster.group_size(level)
    chosen = random.permutation(len(group))[: int(random.integers(1, len(group) + 1))].tolist()
    if random.random() < 0.4:
        chosen = chosen[:1]
    common = set.intersection(*({t.name for t in cluster.tiers_of(group[m])} for m in chosen))
    members: Any = tuple(chosen)
    if not common or (random.random() < 0.4 and devices):
        members, common = "all", {tier.name for tier in cluster.device.tiers}
    pooled = table.pooling != "none"
    return Band(
        start=start,
        stop=stop,
        columns=columns,
        scope=scope,
        members=members,
        order="spread" if random.random() < 0.8 else "blocks",
        offset=int(random.integers(0, 4)),
        tier=str(random.choice(sorted(common))),
        exchange="sums" if pooled and random.random() < 0.5 else "rows",
        coalesced=bool(random.random() < 0.6),
        staged=bool(random.random() < 0.3),
        sync=str(random.choice(["dense", "sparse"])),
    )


def pinned(instance: Instance, name: str, bands: TableBands, owner: int) -> TableBands:
    """The same bands of a table, changed where its pins say otherwise; one owner has it whole."""
    cluster, wanted = instance.cluster, instance.options.constraints
    tiers = [tier.name for tier in cluster.device.tiers]
    pin, one, found = wanted.pin(name), wanted.one_owner(name), []
    if one and cluster.num_devices > 1:
        device = wanted.device(name)
        home = {"scope": cluster.top, "members": (owner if device is None else device,)}
    for band in bands:
        changes: dict[str, Any] = {}
        if pin.scope not in (None, band.scope):
            changes = {"scope": pin.scope, "members": "all"}
        if one and cluster.num_devices > 1:
            changes = dict(home)
        if pin.tier is not None and band.tier not in tiers:  # a server's
            changes = {"members": "all"} | changes
        if changes and band.tier not in tiers:
            changes["tier"] = tiers[0]
        if pin.tier is not None:
            changes["tier"] = pin.tier
        found.append(band.model_copy(update=changes))
    return tuple(found)


def uniform_plans(instance: Instance) -> Iterator[Bands]:
    """All tables kept in one way: by all members of a group, or by one each, in turn."""
    cluster = instance.cluster
    tiers = [tier.name for tier in cluster.device.tiers]
    ways = product(cluster.scopes, ("rows", "sums"), (False, True), (False, True), ("all", "one"))
    for (scope, exchange, coalesced, staged, who), tier in product(ways, tiers):
        size, bands = cluster.group_size(cluster.level_of(scope)), {}
        for number, stats in enumerate(instance.profile.stats):
            sums = exchange == "sums" and stats.table.pooling != "none"
            whole = Band(
                start=0, stop=stats.table.num_embeddings, scope=scope, tier=tier,
                members="all" if who == "all" else (number % size,),
                exchange="sums" if sums else "rows", coalesced=coalesced, staged=staged,
                sync="sparse",
            )  # fmt: skip
            bands[stats.table.name] = pinned(instance, stats.table.name, (whole,), 0)
        yield bands


def edited(
    instance: Instance, stats: TableStats, bands: TableBands, random: np.random.Generator
) -> TableBands:
    """A table's bands with one of them, or a part of one, changed; or one band for all of them."""
    name, found = stats.table.name, list(bands)
    at = int(random.integers(len(found)))
    old = found[at]
    merged = len(found) > 1 and random.random() < 0.2
    if merged:
        old = old.model_copy(update={"start": 0, "stop": stats.table.num_embeddings})
        found = [old.model_copy(update={"columns": None})]
        at = 0
    cut = [found[at]] if merged else _cut(found[at], stats, random)
    chosen = int(random.integers(len(cut)))
    cut[chosen] = _changed(cut[chosen], stats.table, instance.cluster, random)
    found[at : at + 1] = cut
    owner = old.members[0] if old.members != "all" else 0
    moved = random.random() < 0.3 or owner >= instance.cluster.num_devices
    owner = int(random.integers(instance.cluster.num_devices)) if moved else owner
    return pinned(instance, name, tuple(found), owner)


def _cut(band: Band, stats: TableStats, random: np.random.Generator) -> list[Band]:
    """A band whole, or in two where the heat changes, or anywhere, or by columns."""
    draw, dim = random.random(), stats.table.embedding_dim
    if draw < 0.05 and band.width(dim) > 1:
        first, last = band.columns or (0, dim)
        middle = (first + last) // 2
        parts = ((first, middle), (middle, last))
        return [band.model_copy(update={"columns": columns}) for columns in parts]
    if draw < 0.5 or band.rows == 1:
        return [band]
    stops = [int(stop) for stop in stats.curve.stops if band.start < stop < band.stop]
    anywhere = not stops or random.random() < 0.3
    inside = int(random.integers(band.start + 1, band.stop))
    at = inside if anywhere else int(random.choice(stops))
    return [band.model_copy(update={"stop": at}), band.model_copy(update={"start": at})]


def _changed(band: Band, table: Table, cluster: Cluster, random: np.random.Generator) -> Band:
    """All of a band but its rows drawn anew, or one or two fields of it."""
    drawn = draw_band(table, cluster, random, band.start, band.stop, band.columns)
    if random.random() < 0.4:
        return drawn
    ways = (("tier", "members"), ("scope", "members"), ("members",), ("exchange",), ("staged",),
            ("coalesced",), ("sync",), ("exchange", "members"),
            ("scope", "exchange", "members"))  # fmt: skip
    names = ways[int(random.integers(len(ways)))]
    changes = {name: getattr(drawn, name) for name in names}
    if "members" in names and random.random() < 0.7:
        scope = str(changes.get("scope", band.scope))
        devices = cluster.group_size(cluster.level_of(scope))
        one = (int(random.integers(devices)),)
        changes["members"] = "all" if random.random() < 0.5 else one
    return band.model_copy(update=changes)


def in_words(band: Band) -> str:
    """A band on one line: which rows, where, and how they are sent."""
    columns = "" if band.columns is None else f", columns {band.columns[0]}:{band.columns[1]}"
    way = [name for name in ("staged", "coalesced") if getattr(band, name)]
    said = (band.scope, f"members {band.members}", band.order, band.tier, *way, band.exchange)
    return f"{band.start}:{band.stop}{columns} {' '.join(said)}, {band.sync} sync"


def kinds_in(bands: Bands, cluster: Cluster) -> set[str]:
    """The kinds of bands in a plan, in words."""
    return {kind for each in bands.values() for band in each for kind in _kinds_of(band, cluster)}


def _kinds_of(band: Band, cluster: Cluster) -> Iterator[str]:
    """How a band's rows are exchanged, in words."""
    level = cluster.level_of(band.scope)
    inner = " inside" if level < len(cluster.levels) else ""
    devices = cluster.group_size(level)
    if level == 0:
        yield "copies"
    elif band.exchange == "sums":
        yield ("staged " if band.staged else "") + "sums" + inner
    else:
        way = "staged" if band.staged else "coalesced" if band.coalesced else "plain"
        yield f"{way} rows{inner}"
    if any(member >= devices for member in band.member_list(devices)):
        yield "servers"
    if band.columns is not None:
        yield "columns"
