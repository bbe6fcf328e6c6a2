import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli.run import run
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import counted, plans, profiles

from rowtier import Certificate, Cluster, InfeasibleError, Plan, Profile, Table, make_plan
from rowtier.cost.memory import memory_sizes
from rowtier.cost.options import CostOptions
from rowtier.cost.step import step_cost
from rowtier.manifest import write_manifest
from rowtier.plan.joint.bound import least_of
from rowtier.plan.make import METHODS
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Proof
from rowtier.plan.prove import _Check, proof_mistakes, proved_s
from rowtier.plan.verify import verify


@given(plans())
@settings(max_examples=150, deadline=None)
def test_the_bound_is_below_every_plan(plan: Plan) -> None:
    least = least_of(plan.profile, plan.cluster, PlanOptions(), CostOptions())
    step_s = step_cost(plan.bands, plan.profile, plan.cluster, plan.order).step_s
    assert least.seconds <= step_s * (1 + 1e-9)


PRICES = st.one_of(st.floats(0, 1e-6), st.floats(0, 1e15))


@given(plans(), st.lists(PRICES, min_size=8, max_size=8))
@settings(max_examples=100, deadline=None)
def test_what_any_prices_prove_is_below_every_plan(plan: Plan, prices: list[float]) -> None:
    memories = len(memory_sizes(plan.cluster))
    kinds = 1 + len(plan.cluster.servers)
    proof = Proof(prices=tuple(prices[:memories]), holder_weights=(1 / kinds,) * kinds)
    cuts = len(_Check(plan, proof).senders)
    proof = proof.model_copy(update={"masses": ((0.0, 0.01, 0.3, 1.0),) * cuts})
    step_s = step_cost(plan.bands, plan.profile, plan.cluster, plan.order).step_s
    claimed = Certificate(view="step", objective=step_s, bound=0.0, binding="", proof=proof)
    certified = replace(plan, certificate=claimed)
    assert not list(proof_mistakes(certified))
    proved = proved_s(certified)
    assert proved is not None
    assert proved <= step_s * (1 + 1e-9)


def test_a_bound_is_recomputed_from_its_prices() -> None:
    profile = _skewed(2)
    plan = make_plan(profile, _cluster(profile, 0.05, 2), "joint")
    certificate = plan.certificate
    assert certificate is not None
    found = verify(plan)
    assert found.proved is not None
    assert certificate.bound <= found.proved * (1 + 1e-9)
    between = (found.proved + certificate.objective) / 2
    bold = certificate.model_copy(update={"bound": between})
    assert not verify(replace(plan, certificate=bold)).holds


def _skewed(seed: int, tables: int = 6, batch: int = 256) -> Profile:
    rng = np.random.default_rng(seed)
    stats = []
    for index in range(tables):
        rows = int(rng.integers(50, 3000))
        heat = rng.permutation(np.maximum(1, 3e4 / np.arange(1, rows + 1) ** rng.uniform(0.5, 1.4)))
        table = Table(
            name=f"t{index}", num_embeddings=rows, embedding_dim=int(rng.choice([8, 16, 32])),
            features=(f"f{index}",), pooling=str(rng.choice(["sum", "mean", "none"])),
        )  # type: ignore[arg-type]  # fmt: skip
        heat = heat.astype(np.int64)
        stats.append(
            counted(table, heat, samples=max(1, int(heat.sum()) // int(rng.integers(1, 9))))
        )
    return Profile(batch, tuple(stats))


def _cluster(profile: Profile, share: float, seed: int) -> Cluster:
    rng = np.random.default_rng(seed)
    stored = sum(s.table.stored_bytes for s in profile.stats)
    return Cluster.model_validate(
        {
            "name": "random",
            "levels": [
                {"name": "node", "size": 2, "bandwidth": float(rng.uniform(1e9, 1e11))},
                {"name": "cluster", "size": 2, "bandwidth": float(rng.uniform(1e8, 1e10))},
            ],
            "device": {
                "tiers": [
                    {"name": "fast", "capacity": max(1, int(share * stored)), "bandwidth": 1e11},
                    {"name": "slow", "capacity": 2 * stored, "bandwidth": 1e9},
                ]
            },
        }
    )


@pytest.mark.parametrize("seed", range(6))
def test_joint_is_never_worse_than_any_other_method(seed: int) -> None:
    profile = _skewed(seed)
    cluster = _cluster(profile, [0.05, 0.2, 2.0][seed % 3], seed)
    joint = make_plan(profile, cluster, "joint")
    assert joint.certificate is not None
    best = joint.certificate.objective
    assert joint.certificate.bound <= best
    for method in METHODS:
        if method.endswith("milp"):
            continue
        try:
            other = make_plan(profile, cluster, method)
        except InfeasibleError:
            continue
        assert best <= step_cost(other.bands, profile, cluster).step_s * (1 + 1e-12), method
    assert make_plan(profile, cluster, "joint").fingerprint == joint.fingerprint


def test_joint_spreads_rows_where_no_counts_tell_how_hot_blocks_are() -> None:
    profile = Profile(
        64, tuple(s for s in _skewed(1).stats if s.table.pooling == "none")
    ).to_curve()
    cluster = _cluster(profile, 2.0, 1)
    flat = cluster.model_copy(update={"levels": cluster.levels[1:]})
    blocks = make_plan(profile, flat, "row-wise-coalesced")
    joint = make_plan(profile, flat, "joint")
    orders = {band.order for bands in joint.bands.values() for band in bands}
    assert orders == {"spread"}
    assert joint.certificate is not None
    assert joint.certificate.objective <= step_cost(blocks.bands, profile, flat).step_s * 1.01


def test_nothing_is_cut_for_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    chances = np.arange(1, 5001) ** -1.2
    stats = []
    for index in range(4):
        table = Table(
            name=f"t{index}", num_embeddings=5000, embedding_dim=16, pooling="none",
            features=(f"f{index}",), optimizer="sgd",
        )  # fmt: skip
        heat = np.random.default_rng(index).multinomial(100_000, chances / chances.sum())
        stats.append(counted(table, heat, samples=5_000))
    profile = Profile(256, tuple(stats))
    ram = {"name": "ram", "capacity": "1 GiB", "bandwidth": "5 GB/s", "granularity": 64}
    level = {"name": "node", "size": 2, "bandwidth": "2 GB/s", "latency": 5e-5}
    cluster = Cluster.model_validate({"name": "two", "levels": [level], "device": {"tiers": [ram]}})

    def made() -> tuple[int, float]:
        plan = make_plan(profile, cluster)
        assert plan.certificate is not None
        return sum(map(len, plan.bands.values())), plan.certificate.objective

    bands, whole_s = made()
    monkeypatch.setattr("rowtier.plan.joint.make.NEAR_ENOUGH", 0.0)
    more, cut_s = made()
    monkeypatch.setattr("rowtier.plan.joint.make.WORTH_CUTTING", 1e-4)
    assert made() == (bands, whole_s)
    assert bands == len(stats) < more
    assert cut_s < whole_s < cut_s * 1.0001


def test_more_fast_memory_never_hurts() -> None:
    profile = _skewed(1)
    times = []
    for share in (0.05, 0.3, 2.0):
        certificate = make_plan(profile, _cluster(profile, share, 1), "joint").certificate
        assert certificate is not None
        times.append((certificate.objective, certificate.bound))
    assert times[0][1] >= times[1][1] >= times[2][1]
    assert times[0][0] >= times[2][0]


@given(profiles(max_tables=4), st.sampled_from(["recshard-16", "parameter-server", "local"]))
@settings(max_examples=12, deadline=None)
def test_joint_places_anything_that_fits(profile: Profile, preset: str) -> None:
    plan = make_plan(profile, Cluster.preset(preset), "joint")
    assert verify(plan).holds


def test_tables_that_do_not_fit_at_all_are_infeasible() -> None:
    profile = _skewed(0)
    tight = _cluster(profile, 0.001, 0).model_dump(by_alias=True)
    tight["device"]["tiers"][1]["capacity"] = 1000
    with pytest.raises(InfeasibleError, match=r"need .* and 'random' has"):
        make_plan(profile, Cluster.model_validate(tight), "joint")


CORRUPTIONS = [
    ("stop", lambda b: {"stop": b["stop"] - 1}),
    ("start", lambda b: {"start": b["start"] + 1}),
    ("beyond", lambda b: {"stop": b["stop"] + 1}),
    ("scope", lambda _: {"scope": "galaxy"}),
    ("tier", lambda _: {"tier": "tape"}),
    ("members", lambda _: {"members": [99]}),
    ("twice", lambda _: {"members": [0, 0]}),
    ("columns", lambda _: {"columns": [0, 3]}),
    ("many columns", lambda _: {"columns": [0, 999]}),
    ("order", lambda _: {"order": "sorted"}),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    profile = _skewed(2)
    folder = tmp_path_factory.mktemp("plans") / "plan"
    make_plan(profile, _cluster(profile, 0.1, 2), "joint").save(folder)
    return folder


def _corrupt(saved: Path, target: Path, change: object) -> None:
    data = json.loads((saved / "plan.json").read_text())
    data.pop("fingerprint")
    change(data)  # type: ignore[operator]
    target.mkdir()
    for file in ("order.bin",):
        (target / file).write_bytes((saved / file).read_bytes())
    (target / "curve").mkdir()
    for path in (saved / "curve").iterdir():
        (target / "curve" / path.name).write_bytes(path.read_bytes())
    (target / "plan.json").write_text(json.dumps(data))
    write_manifest(target)


@pytest.mark.parametrize(("name", "change"), CORRUPTIONS)
def test_verify_catches_a_corrupted_band(
    saved: Path, tmp_path: Path, name: str, change: object
) -> None:
    def apply(data: dict) -> None:  # type: ignore[type-arg]
        band = data["tables"]["t0"][0]
        band.update(change(band))  # type: ignore[operator]

    _corrupt(saved, tmp_path / "bad", apply)
    code, _, errors = run("verify", str(tmp_path / "bad"))
    assert code == 2, name
    assert "t0" in errors


@pytest.mark.parametrize(
    ("key", "factor", "says"),
    [
        ("objective", 0.9, "certificate.objective"),
        ("objective", 1.1, "certificate.objective"),
        ("bound", 10.0, "certificate.bound"),
        ("bound", -1.0, "certificate.bound"),
    ],
)
def test_verify_catches_a_false_certificate(
    saved: Path, tmp_path: Path, key: str, factor: float, says: str
) -> None:
    def apply(data: dict) -> None:  # type: ignore[type-arg]
        data["certificate"][key] *= factor

    _corrupt(saved, tmp_path / "bad", apply)
    code, _, errors = run("verify", str(tmp_path / "bad"))
    assert code == 2
    assert says in errors


def test_verify_catches_bands_that_cost_more_than_claimed(saved: Path, tmp_path: Path) -> None:
    def slow(data: dict) -> None:  # type: ignore[type-arg]
        for bands in data["tables"].values():
            for band in bands:
                band["tier"] = "slow"

    _corrupt(saved, tmp_path / "bad", slow)
    code, _, errors = run("verify", str(tmp_path / "bad"))
    assert code == 2
    assert "the bands cost" in " ".join(errors.split())


def test_verify_holds_for_a_good_plan(saved: Path) -> None:
    code, text, errors = run("verify", str(saved))
    assert (code, errors) == (0, "")
    assert text.startswith("the plan holds")
    assert json.loads(run("verify", str(saved), "--json")[1])["holds"] is True


def test_a_confident_plan_knows_less_heat() -> None:
    profile = _skewed(3)
    careful = profile.for_planning(0.95)
    assert careful.fingerprint == profile.fingerprint
    for ours, theirs in zip(profile.stats, careful.stats, strict=True):
        ranks = np.array([1, 5, 20])
        assert (theirs.curve.share(ranks) <= ours.curve.share(ranks) + 1e-12).all()
