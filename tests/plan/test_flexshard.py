"""`flexshard`: three bands by probability, at row-wise's own memory (arXiv 2301.02959)."""

from dataclasses import replace
from itertools import combinations_with_replacement, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import clusters, profiles

from rowtier import (
    Band,
    Cluster,
    Curve,
    Device,
    FeatureStats,
    Level,
    PlanOptions,
    Profile,
    Table,
    TableStats,
    Tier,
)
from rowtier.band import Bands
from rowtier.cost.step import step_cost
from rowtier.cost.views import objective
from rowtier.errors import InfeasibleError
from rowtier.plan import row_wise
from rowtier.plan.check import find_mistakes
from rowtier.plan.flexshard import flexshard_bands, plan
from rowtier.profile.curve import bucket_stops

OPTIONS = PlanOptions()


def cluster(
    sizes: tuple[int, ...] = (4, 2), capacity: int = 2**40, latency: float = 0.0
) -> Cluster:
    names = ("node", "rack", "cluster")[-len(sizes) :] if len(sizes) != 2 else ("node", "cluster")
    levels = tuple(
        Level(name=name, size=size, bandwidth_bytes_per_s=1e10 / 10**i, latency_s=latency)
        for i, (name, size) in enumerate(zip(names, sizes, strict=True))
    )
    tier = Tier(name="hbm", capacity_bytes=capacity, bandwidth_bytes_per_s=1e12)
    return Cluster(name="c", levels=levels, device=Device(tiers=(tier,)))


def table(
    name: str, rows: int, *, zipf: float = 1.1, pooling: str = "none", pool: int = 8
) -> TableStats:
    stops = bucket_stops(rows)
    heat = np.arange(1, rows + 1, dtype=float) ** -zipf
    mass = np.diff(np.cumsum(heat)[stops - 1], prepend=0.0) / heat.sum()
    feature = FeatureStats(name=f"f_{name}", present=1000, lookups=1000 * pool)
    made = Table(
        name=name,
        num_embeddings=rows,
        embedding_dim=16,
        pooling=pooling,
        features=(f"f_{name}",),
    )
    return TableStats(made, 1000, (feature,), Curve(stops, mass * 1000 * pool))


def sequences(batch: int = 64) -> Profile:
    sizes = {"a": (20_000, 1.2), "b": (5_000, 0.8), "c": (60_000, 1.0)}
    return Profile(batch, tuple(table(n, rows, zipf=z) for n, (rows, z) in sizes.items()))


def peak_bytes(bands: Bands, profile: Profile, where: Cluster) -> int:
    memory = step_cost(bands, profile, where).memory
    return int((memory.rows + memory.buffers)[: where.num_devices, 0].max())


def baseline(profile: Profile, where: Cluster) -> Bands:
    return row_wise.plan(profile, where, OPTIONS).bands


@pytest.mark.parametrize("extra", [0.0, 0.01, 0.05, 0.2, 1.0])
@pytest.mark.parametrize("batch", [1, 8, 64, 512])
def test_no_device_uses_a_byte_more_than_its_budget(extra: float, batch: int) -> None:
    profile, where = sequences(batch), cluster()
    bands, _ = flexshard_bands(profile, where, OPTIONS, extra=extra)
    budget = peak_bytes(baseline(profile, where), profile, where) * (1 + extra)
    assert peak_bytes(bands, profile, where) <= budget


def test_bands_are_prefixes_by_probability_from_device_outwards() -> None:
    where = cluster()
    made = plan(sequences(), where, OPTIONS)
    assert not list(find_mistakes(made))
    scopes = set()
    for bands in made.bands.values():
        assert [b.start for b in bands] == [0, *(b.stop for b in bands[:-1])]
        levels = [where.level_of(b.scope) for b in bands]
        assert levels == sorted(set(levels))
        assert all(b.exchange == "rows" and not (b.coalesced or b.staged) for b in bands)
        scopes |= {b.scope for b in bands}
    assert scopes == {"device", "node", "cluster"}


def test_replicas_pay_for_themselves_with_buffers_that_are_no_longer_needed() -> None:
    profile, where = sequences(), cluster()
    made = plan(profile, where, OPTIONS)
    assert made.certificate is not None
    plain = objective("flexshard", baseline(profile, where), profile, where)
    assert made.certificate.objective < 0.6 * plain


def test_the_certificate_is_what_the_cost_model_says_and_tight() -> None:
    profile, where = sequences(), cluster(latency=1e-7)
    made = plan(profile, where, OPTIONS)
    certificate = made.certificate
    assert certificate is not None
    assert certificate.view == "flexshard"
    again = objective("flexshard", made.bands, made.profile, made.cluster)
    assert certificate.objective == pytest.approx(again, rel=1e-12)
    assert certificate.bound <= certificate.objective <= 1.02 * certificate.bound


def test_a_scarce_budget_is_named_as_what_binds_and_still_used() -> None:
    where = cluster()
    stats = (
        replace(s, table=s.table.model_copy(update={"optimizer": "adam"}))
        for s in sequences().stats
    )
    profile = Profile(4, tuple(stats))
    bands, certificate = flexshard_bands(profile, where, OPTIONS)
    assert "memory budget" in certificate.binding
    assert certificate.gap < 0.1
    plain = baseline(profile, where)
    assert certificate.objective < 0.9 * objective("flexshard", plain, profile, where)
    assert peak_bytes(bands, profile, where) > 0.999 * peak_bytes(plain, profile, where)


@pytest.mark.parametrize("batch", [2, 16, 128])
def test_more_budget_never_hurts(batch: int) -> None:
    profile, where = sequences(batch), cluster()
    extras = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    found = [flexshard_bands(profile, where, OPTIONS, extra=e)[1] for e in extras]
    for less, more in pairwise(found):
        assert more.objective <= less.objective * (1 + 1e-4)
        assert more.bound <= less.bound * (1 + 1e-6)


@pytest.mark.parametrize("sizes", [(3,), (2, 2), (2, 2, 2)])
@pytest.mark.parametrize("extra", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("batch", [1, 8])
def test_no_cut_of_tiny_tables_is_better_than_the_bound_or_much_better_than_the_plan(
    sizes: tuple[int, ...], extra: float, batch: int
) -> None:
    profile = Profile(batch, (table("a", 24, zipf=1.3), table("b", 12, zipf=0.7, pool=3)))
    where = cluster(sizes, latency=1e-9)
    made, certificate = flexshard_bands(profile, where, OPTIONS, extra=extra)
    budget = peak_bytes(baseline(profile, where), profile, where) * (1 + extra)
    assert peak_bytes(made, profile, where) <= budget
    best = min(_every_cut(profile, where, budget), default=np.inf)
    assert certificate.bound <= best * (1 + 1e-9)
    assert certificate.objective <= best * 1.15  # 24 rows on 8 devices are never even


def _every_cut(profile: Profile, where: Cluster, budget: float) -> list[float]:
    scopes = list(dict.fromkeys([*where.scopes[:2], where.top]))
    choices = []
    for stats in profile.stats:
        rows, options = stats.table.num_embeddings, []
        for cuts in combinations_with_replacement(range(0, rows + 1, 3), len(scopes) - 1):
            bands, start = [], 0
            for scope, stop in zip(scopes, [*cuts, rows], strict=True):
                if stop > start:
                    home = {"scope": scope, "tier": "hbm", "sync": "sparse"}
                    bands.append(Band(start=start, stop=stop, **home))
                start = stop
            options.append(tuple(bands))
        choices.append((stats.table.name, options[:: max(1, len(options) // 14)]))
    found = []
    for picked in product(*(options for _, options in choices)):
        bands = {name: chosen for (name, _), chosen in zip(choices, picked, strict=True)}
        cost = step_cost(bands, profile, where)
        memory = cost.memory
        if (memory.rows + memory.buffers)[:, 0].max() <= budget:
            found.append(cost.time.links_s)
    return found


def test_on_one_level_there_are_two_bands_and_on_one_device_one() -> None:
    flat = plan(sequences(), cluster((8,)), OPTIONS)
    assert {b.scope for bands in flat.bands.values() for b in bands} == {"device", "cluster"}
    alone = cluster((1,)).model_copy(update={"levels": ()})
    single = plan(sequences(), alone, OPTIONS)
    assert [len(bands) for bands in single.bands.values()] == [1, 1, 1]
    assert not list(find_mistakes(flat)) + list(find_mistakes(single))


def test_pooled_tables_stay_row_wise_beside_sequences() -> None:
    pooled = table("p", 7_000, pooling="sum")
    profile = Profile(64, (pooled, *sequences().stats))
    where = cluster()
    made = plan(profile, where, OPTIONS)
    assert made.bands["p"] == baseline(profile, where)["p"]
    assert not list(find_mistakes(made))
    certificate = made.certificate
    assert certificate is not None
    assert certificate.bound <= certificate.objective <= 1.02 * certificate.bound
    only = plan(Profile(64, (pooled,)), where, OPTIONS)
    assert only.certificate is not None
    assert "row-wise" in only.certificate.binding


def test_too_little_memory_says_how_much_is_missing() -> None:
    profile = sequences()
    rows = sum(s.table.stored_bytes for s in profile.stats)
    with pytest.raises(InfeasibleError, match=r"need 5\.5 MiB .* has 2\.8 MiB: .* is missing; add"):
        plan(profile, cluster(capacity=rows // 16), OPTIONS)


def test_where_only_the_rows_fit_copies_are_not_made_at_their_cost() -> None:
    profile = sequences(batch=4096)
    rows = sum(s.table.stored_bytes for s in profile.stats)
    made = plan(profile, cluster(capacity=rows // 8 + 2000), OPTIONS)
    assert not list(find_mistakes(made))


def test_equal_inputs_give_equal_plans() -> None:
    first, second = (plan(sequences(), cluster(), OPTIONS) for _ in range(2))
    assert first.fingerprint == second.fingerprint


@settings(max_examples=40, deadline=None)
@given(profiles(), clusters(), st.sampled_from([0.0, 0.1]))
def test_any_plan_is_valid_not_worse_than_row_wise_and_above_its_bound(
    profile: Profile, where: Cluster, extra: float
) -> None:
    made = plan(profile, where, OPTIONS)
    assert not list(find_mistakes(made))
    bands, certificate = flexshard_bands(profile, where, OPTIONS, extra=extra)
    plain = baseline(profile, where)
    assert peak_bytes(bands, profile, where) <= peak_bytes(plain, profile, where) * (1 + extra)
    worst = objective("flexshard", plain, profile, where)
    assert certificate.bound <= certificate.objective <= worst * (1 + 1e-9)
