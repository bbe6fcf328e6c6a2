"""sca.py, a thousand phones and a cloud: preset `federated-1000` and tables of Criteo's full size.

A phone's batches are drawn from the same distribution as everybody's: phones that each have
their own habits would repeat more ids than is expected here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from harness.sca.plans import cached_rows, home_plan, without_coalescing
from rowtier import (
    Cluster,
    Curve,
    FeatureStats,
    Plan,
    Profile,
    Table,
    TableStats,
    make_plan,
    predict,
)
from rowtier.cost.options import CostOptions
from rowtier.profile.curve import bucket_stops
from rowtier.synth.criteo import BIG_ZIPF, CARDINALITIES, IDS_PER_SAMPLE, OTHER_ZIPF
from rowtier.synth.zipf import ZipfMass

Row = dict[str, object]

DIM, BATCH, SAMPLES, SEED = 64, 16, 1_000_000, 5
FORWARD = CostOptions(training=False)
TRAINING = CostOptions()
PLAIN, SCA = "plain", "sca"


def criteo_curves() -> Profile:
    """All 26 tables with MLPerf's rows and ids per sample, their heat by formula."""
    stats = []
    for index, (rows, ids) in enumerate(zip(CARDINALITIES, IDS_PER_SAMPLE, strict=True)):
        table = Table(
            name=f"C{index + 1}",
            num_embeddings=rows,
            embedding_dim=DIM,
            features=(f"C{index + 1}",),
        )
        stops = bucket_stops(rows)
        mass = np.diff(heat_of(table).share(stops.astype(np.float64)), prepend=0.0)
        lookups = SAMPLES * ids
        feature = FeatureStats(name=table.name, present=SAMPLES, lookups=lookups)
        stats.append(TableStats(table, SAMPLES, (feature,), Curve(stops, mass * lookups)))
    return Profile(BATCH, tuple(stats))


def heat_of(table: Table) -> ZipfMass:
    """The law of a table's ids."""
    return ZipfMass(table.num_embeddings, BIG_ZIPF.get(table.name, OTHER_ZIPF))


def drawn_ranks(law: ZipfMass, size: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Ranks of independent lookups, by halving where the distribution function lies."""
    wanted = random.random(size)
    low, high = np.zeros(size, dtype=np.int64), np.full(size, law.n - 1)
    while (low < high).any():
        middle = (low + high) // 2
        reached = law.share(middle + 1.0) > wanted
        low, high = np.where(reached, low, middle + 1), np.where(reached, middle, high)
    return low


def contenders(profile: Profile, cluster: Cluster) -> dict[str, Plan]:
    """The plan of method `sca` and what it is made of."""
    best = make_plan(profile, cluster, "sca")
    return {
        PLAIN: home_plan(profile, cluster, coalesced=False),
        "coalescing": home_plan(profile, cluster, coalesced=True),
        "cache": without_coalescing(best, profile),
        SCA: best,
    }


def fetched_bytes(plan: Plan, phones: int) -> NDArray[np.float64]:
    """Bytes that each of some phones exchanges in a forward pass, ids and rows, as drawn."""
    random = np.random.default_rng(SEED)
    found = np.zeros(phones)
    for stats in plan.profile.stats:
        table, home = stats.table, plan.bands[stats.table.name][-1]
        lookups = round(plan.profile.lookups_per_step(stats))
        ranks = drawn_ranks(heat_of(table), phones * lookups, random).reshape(phones, lookups)
        each = table.row_bytes + FORWARD.id_bytes(table)
        cut = home.start if home.scope != "device" else table.num_embeddings
        for phone, mine in enumerate(ranks):
            away = mine[mine >= cut]
            found[phone] += each * (len(np.unique(away)) if home.coalesced else len(away))
    return found


def phones_of(quick: bool) -> Iterator[Row]:
    """Bytes of one phone, and with them of the cloud, a thousand times as much."""
    profile, cluster = criteo_curves(), Cluster.preset("federated-1000")
    plans = contenders(profile, cluster)
    devices = cluster.num_devices
    for options, words in ((FORWARD, "forward"), (TRAINING, "training")):
        moved = {
            name: float(predict(plan, options).cost.links.total_bytes.sum()) / devices
            for name, plan in plans.items()
        }
        for name, plan in plans.items():
            drawn = fetched_bytes(plan, 20 if quick else 100) if options is FORWARD else None
            measured = None if drawn is None else float(drawn.mean())
            yield {
                "part": "phones",
                "data": f"criteo, {words}",
                "method": name,
                "lookups": round(sum(map(profile.lookups_per_step, profile.stats))),
                "workers": devices,
                "cache": cached_rows(plan.bands) / sum(CARDINALITIES),
                "unit": "bytes/phone",
                "expected": moved[name],
                "measured": measured,
                "error": moved[name] / measured - 1 if measured else None,
                "sampling_error": _deviation(drawn),
                "ratio": moved[PLAIN] / moved[name],
                "counted": None if drawn is None else float(drawn.sum()),
            }


def _deviation(drawn: NDArray[np.float64] | None) -> float | None:
    """Of the mean, as a share of it."""
    if drawn is None or not drawn.any():
        return None
    return float(drawn.std(ddof=1) / np.sqrt(len(drawn)) / drawn.mean())


def reduction(rows: list[Row], words: str, method: str = SCA) -> float | None:
    """How many times fewer bytes a method moves than plain rows."""
    for line in rows:
        if (line["part"], line["data"], line["method"]) == ("phones", f"criteo, {words}", method):
            ratio = line["ratio"]
            return ratio if isinstance(ratio, float) else None
    return None
