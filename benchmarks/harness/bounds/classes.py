"""Legal plans of the classes that the certificates of recshard, flexshard and sca are about.

    recshard         whole tables, each on one device, its rows in any tiers of it
    recshard split   every row once, on devices: any members, cuts and columns
    flexshard        sequence tables in up to three bands (a copy per device, per node, once) in
                     fast memory, within row-wise's peak of it; other tables as row-wise has them
    sca              rows where sca has them, or copied to every device as far as the fastest
                     memory has room for rows and buffers

Each plan is measured as the certificate's own view says (`cost/views.py`). Half of them are drawn
from the whole class, half around the best that there is: fast memory filled, cuts near the plan's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from harness.bounds.draw import Instance
from rowtier import Band, Plan, PlanOptions, Profile, make_plan
from rowtier.band import Bands
from rowtier.cluster import DEVICE, Cluster
from rowtier.cost.step import step_cost
from rowtier.cost.views import assumptions, objective
from rowtier.errors import InfeasibleError
from rowtier.plan.check import find_mistakes
from rowtier.profile.profile import TableStats

DRAWN = 30  # plans of each class for each problem
BROKEN = 1e-9

Draw = Callable[[Plan, np.random.Generator], Bands | None]


@dataclass(frozen=True)
class Held:
    """How many plans of a class were held against a bound, and the least over it."""

    plans: int
    broken: int
    closest: float


def held(method: str, instance: Instance, random: np.random.Generator) -> Held | None:
    """Plans of a method's class against its bound; None where it has no plan or no bound."""
    name, _, split = method.partition(" ")
    profile = _as_sequences(instance.profile, random) if name == "flexshard" else instance.profile
    try:
        plan = make_plan(profile, instance.cluster, name, PlanOptions(split=bool(split)))
    except InfeasibleError:
        return None
    certificate = plan.certificate
    assert certificate is not None
    costs = []
    for _ in range(DRAWN):
        bands = CLASSES[method](plan, random)
        if bands is not None and _fits(plan, bands):
            options = assumptions(certificate.view)
            view = certificate.view
            costs.append(objective(view, bands, plan.profile, plan.cluster, None, options))
    broken = sum(cost < certificate.bound * (1 - BROKEN) for cost in costs)
    closest = min(costs, default=np.inf)
    return Held(len(costs), broken, closest / certificate.bound if certificate.bound else np.inf)


def _fits(plan: Plan, bands: Bands) -> bool:
    return next(iter(find_mistakes(replace(plan, bands=bands))), None) is None


def _as_sequences(profile: Profile, random: np.random.Generator) -> Profile:
    """The same tables, most of them not pooled."""
    stats = [
        replace(one, table=one.table.model_copy(update={"pooling": "none"}))
        if random.random() < 0.8
        else one
        for one in profile.stats
    ]
    return replace(profile, stats=tuple(stats))


def _whole_tables(plan: Plan, random: np.random.Generator) -> Bands:
    """Every table on a device of its own choice, the hottest rows of each device in one tier."""
    devices = plan.cluster.num_devices
    owners = {s.table.name: int(random.integers(devices)) for s in plan.profile.stats}
    if random.random() < 0.5:
        owners = {name: _owner(bands) for name, bands in plan.bands.items()}
    found: dict[str, tuple[Band, ...]] = {}
    for device in set(owners.values()):
        here = [s for s in plan.profile.stats if owners[s.table.name] == device]
        cuts, tiers = _filled(here, plan.cluster, 1, random)
        for stats in here:
            whole = Band(start=0, stop=1, scope=plan.cluster.top, members=(device,), tier=tiers[0])
            found[stats.table.name] = _two_tiers(whole, stats, cuts[stats.table.name], tiers)
    return found


def _owner(bands: tuple[Band, ...]) -> int:
    members = bands[0].members
    assert members != "all"
    return members[0]


def _filled(
    tables: list[TableStats], cluster: Cluster, devices: int, random: np.random.Generator
) -> tuple[dict[str, int], list[str]]:
    """How many of each table's hottest rows fit into one tier of some devices, and the tiers.

    Rows come by lookups per byte, tables more or less favoured; often exactly.
    """
    tiers = list(cluster.device.tiers)
    if random.random() < 0.5:
        tiers.sort(key=lambda tier: -cluster.own_bandwidth(tier))
    first = tiers[0]
    left = devices * (first.capacity_bytes // (cluster.sharers(first) if devices > 1 else 1))
    favour = random.choice([0.0, 0.3, 2.0])
    queue = []
    for stats in tables:
        likes = np.exp(favour * random.standard_normal()) / stats.table.stored_row_bytes
        rates = stats.curve.probabilities * stats.lookups * likes * stats.table.row_bytes
        widths = np.diff(stats.curve.stops, prepend=0).tolist()
        queue += [(-rate, stats, width) for rate, width in zip(rates, widths, strict=True)]
        queue.append((0.0, stats, stats.table.num_embeddings - stats.curve.positions))
    cuts = {stats.table.name: 0 for stats in tables}
    for _, stats, width in sorted(queue, key=lambda entry: entry[0]):
        rows = min(width, left // stats.table.stored_row_bytes)
        cuts[stats.table.name] += rows
        left -= rows * stats.table.stored_row_bytes
    return cuts, [tier.name for tier in tiers]


def _two_tiers(band: Band, stats: TableStats, cut: int, tiers: list[str]) -> tuple[Band, ...]:
    """A table's hottest rows in one tier, the others in the last."""
    edges = sorted({0, cut, stats.table.num_embeddings})
    return tuple(
        band.model_copy(
            update={"start": a, "stop": b, "offset": a, "tier": tiers[0] if b <= cut else tiers[-1]}
        )
        for a, b in pairwise(edges)
    )


def _kept_once(plan: Plan, random: np.random.Generator) -> Bands:
    """Rows dealt to all devices, fast memory filled; some bands then go to fewer, or in columns."""
    cluster, found = plan.cluster, {}
    cuts, tiers = _filled(list(plan.profile.stats), cluster, cluster.num_devices, random)
    moved = random.choice([0.0, 0.3, 1.0])
    for stats in plan.profile.stats:
        whole = Band(start=0, stop=1, scope=cluster.top, tier=tiers[0])
        dim, bands = stats.table.embedding_dim, []
        for band in _two_tiers(whole, stats, cuts[stats.table.name], tiers):
            widths: list[tuple[int, int] | None] = [None]
            if dim > 1 and random.random() < moved / 2:
                at = int(random.integers(1, dim))
                widths = [(0, at), (at, dim)]
            for columns in widths:
                changes: dict[str, object] = {"columns": columns}
                if random.random() < moved:
                    some = int(random.integers(1, cluster.num_devices + 1))
                    members = random.permutation(cluster.num_devices)[:some].tolist()
                    changes |= {"members": tuple(members)}
                bands.append(band.model_copy(update=changes))
        found[stats.table.name] = tuple(bands)
    return found


def _three_bands(plan: Plan, random: np.random.Generator) -> Bands | None:
    """Cuts c1 ≤ c2 of every sequence table that row-wise has in fast memory; None: too large."""
    cluster, fast = plan.cluster, plan.cluster.device.tiers[0].name
    baseline = _row_wise(plan)
    scopes = list(dict.fromkeys([*cluster.scopes[:2], cluster.top]))
    found, near = dict(baseline), random.random() < 0.5
    for stats in plan.profile.stats:
        name, rows = stats.table.name, stats.table.num_embeddings
        home = baseline[name][0]
        if stats.table.pooling != "none" or (home.tier, home.members) != (fast, "all"):
            continue
        stops = [max((b.stop for b in plan.bands[name] if b.scope == s), default=0) for s in scopes]
        if near:
            share = 10 ** random.uniform(-3, -0.3)
            cuts = [int(stop + share * rows * random.standard_normal()) for stop in stops[:-1]]
        else:
            cuts = [int(rows * random.random() ** random.choice([1, 4])) for _ in scopes[1:]]
        cuts = sorted(min(rows, max(0, cut)) for cut in cuts)
        bands = []
        for scope, (start, stop) in zip(scopes, pairwise([0, *cuts, rows]), strict=True):
            sync = str(random.choice(["dense", "sparse"]))
            if stop > start:
                bands.append(Band(start=start, stop=stop, scope=scope, tier=fast, sync=sync))
        found[name] = tuple(bands)
    return found if _peak_bytes(plan, found) <= _peak_bytes(plan, baseline) else None


@lru_cache(maxsize=1)
def _row_wise(plan: Plan) -> Bands:
    return make_plan(plan.profile, plan.cluster, "row-wise").bands


def _peak_bytes(plan: Plan, bands: Bands) -> int:
    """Rows and buffers in the fastest memory of the fullest device."""
    cost = step_cost(bands, plan.profile, plan.cluster)
    used = cost.memory.rows + cost.memory.buffers
    return int(used[: plan.cluster.num_devices, 0].max())


def _cached(plan: Plan, random: np.random.Generator) -> Bands | None:
    """Other rows cached; a table that sca caches as a whole stays so. None: too large."""
    fast, found = plan.cluster.device.tiers[0], {}
    near = random.random() < 0.5
    for stats in plan.profile.stats:
        bands, rows = plan.bands[stats.table.name], stats.table.num_embeddings
        homes = [band for band in bands if band.scope != DEVICE]
        if not homes:
            found[stats.table.name] = bands
            continue
        now = homes[0].start
        if near:
            cached = round(now + 10 ** random.uniform(-3, -0.3) * rows * random.standard_normal())
        else:
            cached = int(rows * random.random() ** random.choice([1, 4]))
        cached = min(rows, max(0, cached))
        start = min(cached, int(random.integers(rows))) if random.random() < 0.2 else 0
        sync = str(random.choice(["dense", "sparse"]))
        copy = Band(start=0, stop=rows, scope=DEVICE, tier=fast.name, sync=sync)
        homes[0] = homes[0].model_copy(update={"start": 0})
        found[stats.table.name] = (
            *_clipped(homes, 0, start), *_clipped([copy], start, cached),
            *_clipped(homes, cached, rows),
        )  # fmt: skip
    usable = fast.capacity_bytes // plan.cluster.sharers(fast)
    return found if _peak_bytes(plan, found) <= usable else None


def _clipped(bands: list[Band], start: int, stop: int) -> Iterator[Band]:
    for band in bands:
        first, last = max(start, band.start), min(stop, band.stop)
        if first < last:
            yield band.model_copy(update={"start": first, "stop": last})


CLASSES: Mapping[str, Draw] = {
    "recshard": _whole_tables,
    "recshard split": _kept_once,
    "flexshard": _three_bands,
    "sca": _cached,
}
