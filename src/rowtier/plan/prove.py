"""Recompute bounds by code that shares nothing with the solvers.

A certificate of `joint` names a price for a byte of every memory. At any prices every row of
every table may choose its home alone; what that costs, less what all memory is worth, is below
the cost of every plan (README.md says why). So a bound is proved by adding up, once, with
nothing to search: this is that sum, bucket by bucket and home by home.

On RecShard's objective nothing is faster than if all fast memory were one and held the rows
that are read most per byte. Where tables stay whole, bounds have other reasons and are not proved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.cost.memory import output_bytes
from rowtier.cost.terms import row_terms, sums_bytes
from rowtier.cost.time import link_s_per_byte
from rowtier.cost.touch import Bags, table_basis
from rowtier.cost.tree import tree_of
from rowtier.plan.plan import Plan
from rowtier.profile.curve import Floats
from rowtier.profile.profile import Profile, TableStats

MASSES = np.concatenate(([0.0], np.geomspace(1e-6, 1.0, 400)))


def proved_s(plan: Plan) -> float | None:
    """Seconds that no plan beats; None if the certificate's bound needs other reasons."""
    proof = plan.certificate.proof if plan.certificate is not None else None
    if plan.certificate is not None and plan.certificate.view == "recshard":
        return None if proof is None else _pooled_s(plan, proof.capacity_bytes)
    if proof is None or len(proof.prices) != len(_memories(plan.cluster)):
        return None
    prices = np.maximum(np.array(proof.prices), 0.0)
    worth = float(prices @ np.array(proof.capacity_bytes))
    weight = proof.sync_weight
    tables = (_least_s(stats, plan, prices, weight) for stats in plan.profile.stats)
    hidden_s = weight * plan.assumed.dense_s * plan.cluster.work.hidden
    # Rows on servers pay for a device's part of their time, but servers may bear it beside devices.
    share = plan.cluster.num_devices / plan.cluster.num_holders
    found = share * (sum(tables) - worth) - hidden_s + _fixed_s(plan.profile, plan.cluster, weight)
    return max(0.0, found)  # no step takes less than nothing


def _pooled_s(plan: Plan, capacity_bytes: Sequence[float]) -> float:
    """RecShard's objective with the memory of all devices as one, filled with the hottest rows."""
    devices, kept, read = plan.cluster.num_devices, [], []
    for stats in plan.profile.stats:
        curve, table = stats.curve, stats.table
        lookups = plan.profile.lookups_per_step(stats) * devices
        kept.append(curve.widths * float(table.stored_row_bytes))
        read.append(curve.probabilities * curve.widths * lookups * table.row_bytes)
    kept_bytes, read_bytes = np.concatenate(kept), np.concatenate(read)
    order = np.argsort(-read_bytes / kept_bytes, kind="stable")
    until = np.concatenate(([0.0], np.cumsum(kept_bytes[order])))
    served = np.concatenate(([0.0], np.cumsum(read_bytes[order])))
    speed = plan.cluster.own_bandwidth
    tiers = sorted(plan.cluster.device.tiers, key=lambda tier: -speed(tier))
    room, before, seconds = 0.0, 0.0, 0.0
    for tier, size in zip(tiers, capacity_bytes, strict=False):
        room += size * devices
        now = float(np.interp(room, until, served))
        seconds += (now - before) / speed(tier)
        before = now
    return seconds / devices


def _memories(cluster: Cluster) -> list[tuple[str, tuple[int, ...] | None]]:
    """Every memory: its tier, and the servers that have it."""
    found: list[tuple[str, tuple[int, ...] | None]] = [(t.name, None) for t in cluster.device.tiers]
    for server in cluster.servers:
        found += [(tier.name, cluster.server_members(server)) for tier in server.tiers]
    return found


def _homes(cluster: Cluster) -> Iterator[tuple[int, Band]]:
    """Every memory with each way to keep rows in it that are fetched."""
    for memory, (tier, servers) in enumerate(_memories(cluster)):
        scopes = cluster.scopes if servers is None else (cluster.top,)
        for scope in scopes:
            base = Band(start=0, stop=1, scope=scope, tier=tier, coalesced=True)
            if servers is not None:
                base = base.model_copy(update={"members": servers})
            for staged in (False, True):
                for sync in ("dense", "sparse"):
                    yield memory, base.model_copy(update={"staged": staged, "sync": sync})


def _owners(cluster: Cluster) -> Iterator[tuple[int, Band]]:
    """Every memory with one owner in it that sends partial sums."""
    for memory, (tier, servers) in enumerate(_memories(cluster)):
        one = (0,) if servers is None else servers[:1]
        band = Band(start=0, stop=1, scope=cluster.top, tier=tier, members=one, exchange="sums")
        yield memory, band


def _least_s(stats: TableStats, plan: Plan, prices: Floats, sync_weight: float) -> float:
    """The least that a table costs if each row pays for its time and for its memory.

    Of keeping copies equal the step waits for what is not hidden, so for any share of it, less
    the same share of what can be hidden, at least.
    """
    profile, cluster = plan.profile, plan.cluster
    curve, rows = stats.curve, stats.table.num_embeddings
    p = np.append(curve.probabilities, 0.0)
    widths = np.append(curve.widths, rows - curve.ranks).astype(np.float64)
    basis = table_basis(stats, profile, tree_of(cluster).sizes, rest=True)

    def paid(memory: int, band: Band) -> Floats:
        terms = row_terms(band, stats.table, basis, cluster)
        kept = terms.stored_bytes / terms.group_devices
        return np.asarray(terms.step_s(sync_weight) + prices[memory] * kept)

    fetched = np.min([paid(*home) for home in _homes(cluster)], axis=0)
    least = float(fetched @ widths)
    if stats.table.pooling == "none" or cluster.num_devices == 1 or not stats.lookups:
        return least
    owned = np.min([paid(*home) for home in _owners(cluster)], axis=0)
    sums_s = _sums_s(stats, profile, cluster)
    slopes = np.diff(sums_s) / np.diff(MASSES)
    for start, at, slope in zip(MASSES, sums_s, slopes, strict=False):
        rest = float(np.minimum(fetched, owned + slope * p) @ widths)
        least = min(least, float(at - slope * start) + rest)
    return least


def _sums_s(stats: TableStats, profile: Profile, cluster: Cluster) -> Floats:
    """Seconds of a device, on average, for sums of one owner, by the mass it serves."""
    alone = Band(
        start=0, stop=1, scope="device", tier=cluster.device.tiers[0].name, exchange="sums"
    )
    tree = tree_of(cluster)
    whole = alone.model_copy(update={"scope": cluster.top})
    # Spread over all n devices each has mass/n; one owner with all of it sends a n-th of that.
    moved = sums_bytes(whole, profile, stats, MASSES * tree.devices, cluster) / tree.devices
    sums = profile.batch_size * Bags.of(stats).sums(MASSES)
    # The owner packs a sum and the reader unpacks it, and so with gradients.
    work_s = 4 * sums * cluster.work.sum_copy_s(stats.table.row_bytes)
    return np.asarray(2 * link_s_per_byte(tree) @ moved + work_s)


def _fixed_s(profile: Profile, cluster: Cluster, sync_weight: float) -> float:
    """Work of every step, and the rounds through the widest level that joins groups."""
    work = cluster.work
    kinds = {s.table.name if s.table.pooling == "none" else "" for s in profile.stats}
    fixed_s = work.step_s + work.table_s * len(profile.stats) + work.band_s * len(kinds)
    held = output_bytes(profile, tree_of(cluster))
    fixed_s += 2 * work.output_byte_s * float(held.max())  # outputs, and their gradients
    wide = [level for level in cluster.levels if level.size > 1]
    if cluster.servers or not wide or not any(stats.lookups for stats in profile.stats):
        return fixed_s
    waits_s = wide[-1].latency_s + wide[-1].message_s * (wide[-1].size - 1)
    # What runs beside it may take longer, but not all of it can be shorter than the mean.
    waits_s /= max([len(names) for names in cluster.overlap if wide[-1].name in names], default=1)
    return fixed_s + 2 * (work.round_s + sync_weight * waits_s)
