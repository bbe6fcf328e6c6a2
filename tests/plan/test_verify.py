import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies import counted
from typer.testing import CliRunner

from rowtier import Band, Cluster, InvalidError, Plan, PlanOptions, Profile, Table, make_plan
from rowtier.cli.main import app
from rowtier.cost.views import objective
from rowtier.plan.constraints import Constraints
from rowtier.plan.prove import proved_s
from rowtier.plan.verify import verify

runner = CliRunner()


def _profile(seed: int = 0, tables: int = 6) -> Profile:
    rng = np.random.default_rng(seed)
    stats = []
    for index in range(tables):
        rows = int(rng.integers(100, 400))
        table = Table(name=f"t{index}", num_embeddings=rows, embedding_dim=8,
                      features=(f"f{index}",), optimizer="sgd")  # fmt: skip
        heat = rng.permutation((3e3 / np.arange(1, rows + 1)).astype(int))
        stats.append(counted(table, heat, samples=4000))
    return Profile(128, tuple(stats))


def _cluster(profile: Profile, share: float = 0.2) -> Cluster:
    total = sum(stats.table.stored_bytes for stats in profile.stats)
    fast = {"name": "hbm", "capacity": int(share * total / 4), "bandwidth": 1e11}
    slow = {"name": "ddr", "capacity": 2 * total, "bandwidth": 1e9}
    levels = [
        {"name": "node", "size": 2, "bandwidth": 1e10, "latency": 1e-6},
        {"name": "cluster", "size": 2, "bandwidth": 1e9, "latency": 2e-6},
    ]
    data = {"name": "four", "levels": levels, "device": {"tiers": [fast, slow]}}
    return Cluster.model_validate(data)


@pytest.fixture(scope="module")
def profile() -> Profile:
    return _profile()


@pytest.fixture(scope="module")
def joint(profile: Profile) -> Plan:
    return make_plan(profile, _cluster(profile), "joint", stop=lambda: True)


@pytest.fixture
def folder(joint: Plan, tmp_path: Path) -> Path:
    joint.save(tmp_path / "plan")
    return tmp_path / "plan"


def _edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads((folder / "plan.json").read_text())
    change(data)
    (folder / "plan.json").write_text(json.dumps(data))


def _claim(plan: Plan, **changes: Any) -> Plan:
    assert plan.certificate is not None
    return replace(plan, certificate=plan.certificate.model_copy(update=changes))


def _proof(plan: Plan, **changes: Any) -> Plan:
    assert plan.certificate is not None
    assert plan.certificate.proof is not None
    proof = plan.certificate.proof.model_copy(update=changes)
    return _claim(plan, proof=proof, bound=plan.certificate.objective)


def _keys(plan: Plan) -> set[str]:
    return {mistake.key for mistake in verify(plan).mistakes}


def test_a_slow_plan_is_not_certified_by_bytes_that_its_proof_names(joint: Plan) -> None:
    """All rows in slow memory of one device: many times the bound, once certified as 0.00 %."""
    worst = Band(start=0, stop=1, scope="cluster", members=(0,), tier="ddr")
    bands = {
        name: (worst.model_copy(update={"stop": mine[-1].stop}),)
        for name, mine in joint.bands.items()
    }
    cost = objective("step", bands, joint.profile, joint.cluster, joint.order)
    true = proved_s(joint)
    assert true is not None
    assert cost > 5 * true
    lying = _claim(replace(joint, bands=bands), objective=cost, rounds=())
    for capacity in ((0.0, 0.0), (-1e12, -1e12), (nan, inf)):
        assert "certificate.bound" in _keys(_proof(lying, capacity_bytes=capacity))


@pytest.mark.parametrize(
    "changes",
    [
        {"prices": (0.0, nan)},
        {"prices": (nan, 0.0)},
        {"prices": (inf, 0.0)},
        {"prices": (0.0, -1e-6)},
        {"prices": (1e308, 1e308)},
        {"prices": (1e14, 0.0)},
        {"prices": (1e14, 1e14)},
        {"prices": ()},
        {"prices": (0.0, 0.0, 0.0)},
        {"sync_weight": 2.0},
        {"sync_weight": -9.0},
        {"sync_weight": nan},
        {"holder_weights": (2.0,)},
        {"holder_weights": (nan,)},
        {"holder_weights": ()},
        {"holder_weights": (-1.0,)},
        {"masses": ()},
        {"masses": ((), ())},
        {"masses": ((0.0, 0.5), (0.0, 0.5))},
        {"masses": ((0.5, 1.0), (0.5, 1.0))},
        {"masses": ((0.0, nan, 1.0), (0.0, 1.0))},
        {"masses": ((0.0, 1e-300, 1.0), (0.0, 1e-300, 1.0))},
        {"masses": (tuple(i / 9999 for i in range(10_000)),) * 2},
    ],
)
def test_whatever_a_proof_says_a_bound_is_not_above_what_is_true(
    joint: Plan, changes: dict[str, Any]
) -> None:
    forged = _proof(joint, **changes)
    assert any(key.startswith(("certificate.proof", "certificate.bound")) for key in _keys(forged))
    true, proved = proved_s(joint), proved_s(forged)
    assert true is not None
    assert proved is not None
    assert joint.certificate is not None
    assert proved <= joint.certificate.objective


@pytest.mark.parametrize("value", [nan, inf, -inf])
@pytest.mark.parametrize("field", ["objective", "bound", "from_statistics"])
def test_numbers_that_are_none_are_findings(joint: Plan, field: str, value: float) -> None:
    assert f"certificate.{field}" in _keys(_claim(joint, **{field: value}))


def test_a_file_with_numbers_that_are_none_is_not_read(folder: Path) -> None:
    _edit(folder, lambda data: data["certificate"].update(bound=nan))
    with pytest.raises(InvalidError):
        Plan.load(folder)


def test_rounds_and_what_nothing_beats_without_them_are_recomputed(joint: Plan) -> None:
    assert joint.certificate is not None
    rounds = joint.certificate.rounds
    assert any(one.without for one in rounds)
    for index, one in enumerate(rounds):
        more = one.model_copy(update={"rounds": one.rounds + 1})
        forged = _claim(joint, rounds=(*rounds[:index], more, *rounds[index + 1 :]))
        assert _keys(forged) == {f"certificate.rounds[{index}].rounds"}
        if one.without is not None:
            raised = one.model_copy(update={"without": 2 * one.without + 1e-6})
            forged = _claim(joint, rounds=(*rounds[:index], raised, *rounds[index + 1 :]))
            assert _keys(forged) == {f"certificate.rounds[{index}].without"}


def test_a_method_certifies_in_its_own_view_and_about_its_own_plans(
    joint: Plan, profile: Profile
) -> None:
    assert joint.certificate is not None
    recshard = make_plan(profile, joint.cluster, "recshard")
    assert _keys(_claim(recshard, covers=joint.certificate.covers)) == {"certificate.covers"}
    assert "certificate.view" in _keys(replace(recshard, certificate=joint.certificate))
    assert "method" in _keys(replace(joint, method="row-wise"))
    assert verify(recshard).holds
    assert not verify(recshard).gap_is_proved


def test_a_bound_that_is_only_claimed_is_not_a_proved_gap_not_even_of_nothing(
    profile: Profile, tmp_path: Path
) -> None:
    plan = make_plan(profile, _cluster(profile), "sca")
    assert plan.certificate is not None
    perfect = _claim(plan, bound=plan.certificate.objective)
    found = verify(perfect)
    assert (found.gap, found.gap_is_proved, found.to_dict()["gap_is"]) == (0.0, False, "claimed")
    perfect.save(tmp_path / "plan")
    done = runner.invoke(app, ["verify", str(tmp_path / "plan")])
    assert "it claims to be at most" in done.output
    assert "claimed, not proved" in " ".join(done.output.split())


def test_a_plan_must_leave_free_what_it_says_that_it_leaves(profile: Profile) -> None:
    plan = make_plan(profile, _cluster(profile), "recshard", PlanOptions(split=True, reserve=0.2))
    assert verify(plan).assumes == ("20% reserved",)
    more = replace(plan, origin={"options": {"split": True, "reserve": 0.5}})
    assert "reserve" in _keys(more)
    assert "certificate.bound" in _keys(replace(plan, origin={"options": {"split": True}}))


def test_what_fit_all_leaves_free_is_part_of_what_the_bound_is_about() -> None:
    profile = replace(_profile(3), batch_size=16)
    cluster = _cluster(profile, 1.5)
    plan = make_plan(profile, cluster, "joint", PlanOptions(fit="all"), stop=lambda: True)
    assert plan.certificate is not None
    assert plan.certificate.left
    assert "of hbm free beside rows" in plan.certificate.covers
    found = verify(plan, profile, cluster)
    assert found.holds, found.mistakes
    assert found.gap_is_proved
    assert "certificate.covers" in _keys(_claim(plan, left=()))


@pytest.mark.parametrize("split", [False, True])
def test_a_bound_counts_on_devices_of_which_less_is_reserved(split: bool) -> None:
    """One device has all its fast memory: what it can hold is faster than both were held to be."""
    table = Table(name="t", num_embeddings=64, embedding_dim=4, features=("f",), optimizer="sgd")
    profile = Profile(16, (counted(table, np.full(64, 10)),))
    data = {
        "name": "two",
        "levels": [{"name": "node", "size": 2, "bandwidth": 1e9}],
        "device": {
            "tiers": [
                {"name": "hbm", "capacity": 2048, "bandwidth": 1e11},
                {"name": "ddr", "capacity": 4096, "bandwidth": 1e8},
            ]
        },
    }
    cluster = Cluster.model_validate(data)
    reserve = {"reserve": [{"tier": "hbm", "amount": 2048, "device": 0}]}
    wishes = PlanOptions(split=split, constraints=Constraints.model_validate(reserve))
    plan = make_plan(profile, cluster, "recshard", wishes)
    assert plan.certificate is not None
    other = {"t": (Band(start=0, stop=64, scope="node", members=(1,), tier="hbm"),)}
    assert plan.certificate.bound <= objective("recshard", other, profile, cluster)
    assert verify(plan, profile, cluster).holds


@pytest.mark.parametrize("key", ["plan.json", "curve/profile.json"])
def test_a_dropped_fingerprint_is_a_finding_though_the_plan_loads(folder: Path, key: str) -> None:
    data = json.loads((folder / key).read_text())
    data.pop("fingerprint")
    (folder / key).write_text(json.dumps(data))
    assert verify(Plan.load(folder)).holds
    assert [m.key.split(".")[-1] for m in verify(folder).mistakes] == ["fingerprint"]
    done = runner.invoke(app, ["verify", str(folder)])
    assert done.exit_code != 0


def test_an_edited_copy_of_the_cluster_is_seen_against_the_original(
    joint: Plan, profile: Profile, tmp_path: Path
) -> None:
    levels = [one.model_copy(update={"latency_s": 1.0}) for one in joint.cluster.levels]
    forged = make_plan(
        profile, joint.cluster.model_copy(update={"levels": tuple(levels)}), "joint",
        stop=lambda: True,
    )  # fmt: skip
    forged.save(tmp_path / "plan")
    assert verify(tmp_path / "plan").holds
    found = verify(tmp_path / "plan", cluster=joint.cluster)
    assert {m.key for m in found.mistakes} == {"made_for.cluster", "cluster"}
    stamped = replace(forged, made_for=joint.made_for)
    assert "cluster" in {m.key for m in verify(stamped, cluster=joint.cluster).mistakes}


def test_edited_statistics_and_rows_are_seen_against_the_original(
    joint: Plan, profile: Profile
) -> None:
    assert joint.order is not None
    assert verify(joint, profile, joint.cluster).holds
    fewer = tuple(replace(s, samples=2 * s.samples) for s in joint.profile.stats)
    copy = replace(joint, profile=replace(joint.profile, stats=fewer))
    assert "curve.statistics" in {m.key for m in verify(copy, profile).mistakes}
    reversed_rows = {name: rows[::-1].copy() for name, rows in joint.order.items()}
    assert verify(replace(joint, order=reversed_rows)).holds
    found = verify(replace(joint, order=reversed_rows), profile)
    assert {m.key for m in found.mistakes} == {f"order.{name}" for name in joint.order}
    other = _profile(1)
    assert "made_for.profile" in {m.key for m in verify(joint, other).mistakes}


def test_rows_that_are_equally_hot_may_be_in_any_order() -> None:
    table = Table(name="t", num_embeddings=64, embedding_dim=4, features=("f",), optimizer="sgd")
    profile = Profile(16, (counted(table, np.full(64, 10)),))
    plan = make_plan(profile, "local", "row-wise")
    assert plan.order is not None
    turned = replace(plan, order={"t": plan.order["t"][::-1].copy()})
    assert verify(turned, profile).holds
    strange = replace(plan, order={"t": np.append(plan.order["t"][:-1], 70)})
    assert not verify(strange, profile).holds


def test_a_plan_made_from_a_curve_is_checked_against_counts_or_curve(profile: Profile) -> None:
    cluster = _cluster(profile)
    plan = make_plan(profile.to_curve(), cluster, "recshard", PlanOptions(split=True))
    for given in (profile, profile.to_curve()):
        found = verify(plan, given, cluster)
        assert found.holds, found.mistakes


@pytest.mark.parametrize("wishes", [{"confidence": 0.9}, {"reserve": 0.1}, {"fit": "all"}])
def test_an_honest_plan_holds_against_its_originals(wishes: dict[str, Any]) -> None:
    profile = _profile(5)
    cluster = _cluster(profile, 30.0)
    plan = make_plan(profile, cluster, "recshard", PlanOptions(split=True, **wishes))
    found = verify(plan, profile, cluster)
    assert found.holds, found.mistakes
    assert found.gap_is_proved


def test_the_verdict_says_what_it_was_checked_against(
    folder: Path, profile: Profile, joint: Plan, tmp_path: Path
) -> None:
    profile.save(tmp_path / "profile")
    joint.cluster.save(tmp_path / "cluster.yaml")
    given = ["--profile", str(tmp_path / "profile"), "--cluster", str(tmp_path / "cluster.yaml")]
    cases = {
        "checked against the profile and cluster given": given,
        "checked against the profile given and the plan's own copy of the cluster: an edited copy "
        "would not be seen; give --cluster": given[:2],
        "checked against the plan's own copies of profile and cluster: an edited copy would not be "
        "seen; give --profile and --cluster": [],
    }
    for says, options in cases.items():
        done = runner.invoke(app, ["verify", str(folder), *options])
        assert done.exit_code == 0, done.output
        assert says in " ".join(done.output.split())


def _overfull(plan: Plan) -> Plan:
    fast = Band(start=0, stop=1, scope="device", tier="hbm")
    bands = {n: (fast.model_copy(update={"stop": b[-1].stop}),) for n, b in plan.bands.items()}
    return replace(plan, bands=bands)


def test_build_save_and_load_refuse_the_same(joint: Plan, profile: Profile, folder: Path) -> None:
    broken = _overfull(joint)
    before = shutil.copytree(folder, folder.parent / "before")
    said = []
    with pytest.raises(InvalidError) as caught:
        Plan.build("mine", profile, joint.cluster, broken.bands)
    said.append(caught.value.mistakes)
    with pytest.raises(InvalidError) as caught:
        broken.save(folder)
    said.append(caught.value.mistakes)
    assert (folder / "plan.json").read_text() == (before / "plan.json").read_text()
    bands = {name: [one.to_data() for one in mine] for name, mine in broken.bands.items()}
    _edit(folder, lambda data: data.update(tables=bands))
    with pytest.raises(InvalidError) as caught:
        Plan.load(folder)
    said.append(caught.value.mistakes)
    assert said[0] == said[1] == said[2]
    assert any("capacity" in mistake.key for mistake in said[0])


def test_a_plan_for_another_cluster_is_not_saved(joint: Plan, tmp_path: Path) -> None:
    other = joint.cluster.model_copy(update={"name": "other"})
    with pytest.raises(InvalidError, match=r"made_for\.cluster"):
        replace(joint, cluster=other).save(tmp_path / "plan")


def test_a_plan_that_cannot_be_is_found_and_not_priced(joint: Plan) -> None:
    gone = replace(joint, bands={**joint.bands, "t0": ()})
    found = verify(gone)
    assert not found.holds
    assert found.step_s is None
    assert found.gap is None


def test_a_plan_that_breaks_its_constraints_or_has_strange_ones_is_found(joint: Plan) -> None:
    wanted = {"tables": {"t0": {"tier": "hbm"}, "t1": {"tier": "moon"}, "t9": {"device": 0}}}
    for tables in ({"t0": wanted["tables"]["t0"]}, wanted["tables"]):
        pinned = Constraints.model_validate({"tables": tables})
        forged = replace(joint, constraints=pinned)
        assert joint.certificate is not None
        forged = _claim(forged, covers=f"{joint.certificate.covers}, within the constraints")
        assert any(key.startswith("constraints") for key in _keys(forged))


def test_a_proof_that_is_gone_is_a_finding_unless_pins_decide(joint: Plan) -> None:
    assert joint.certificate is not None
    bare = _claim(joint, proof=None, bound=joint.certificate.objective)
    assert [m.key for m in verify(bare).mistakes] == ["certificate.proof"]
    pinned = Constraints.model_validate({"keep_together": [["t0", "t1"]]})
    keys = [m.key for m in verify(replace(bare, constraints=pinned)).mistakes]
    assert "certificate.proof" not in keys


def test_damaged_statistics_of_a_plan_are_made_anew_by_planning(folder: Path) -> None:
    curves = folder / "curve" / "curves.parquet"
    raw = bytearray(curves.read_bytes())
    raw[len(raw) // 2] ^= 1
    curves.write_bytes(raw)
    with pytest.raises(InvalidError, match="; plan again"):
        Plan.load(folder)
