"""What may travel: tables whose lookups have learned weights go by rows, pins say rows or sums."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.run import run
from cost.cost_cases import rich_clusters, rich_profiles
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import counted

from rowtier import (
    METHODS,
    Band,
    Cluster,
    Constraints,
    InvalidError,
    Plan,
    PlanOptions,
    Profile,
    Table,
    UserError,
    make_plan,
)
from rowtier.cost.step import step_cost
from rowtier.plan.check import find_mistakes
from rowtier.plan.prove import proved_s
from rowtier.plan.verify import verify

FETCH = ("sca", "row-wise-coalesced")  # methods in which every row travels
OTHERS = [method for method in METHODS if method != "joint"]


def learned(profile: Profile, *names: str) -> Profile:
    """The same statistics, with learned weights for some tables, or for all that are pooled."""
    stats = tuple(
        replace(one, table=one.table.model_copy(update={"weights": "learned"}))
        if one.table.pooling != "none" and (not names or one.table.name in names)
        else one
        for one in profile.stats
    )
    return replace(profile, stats=stats)


def sent(plan: Plan, table: str) -> set[str]:
    """How rows of a table travel that are not on every device."""
    return {band.exchange for band in plan.bands[table] if band.scope != "device"}


def two(fast: int = 2_000, slow: int = 26_000, **more: Any) -> Cluster:
    """Two devices that together have room for all rows, and not for copies of them."""
    return Cluster.model_validate(
        {
            "name": "two",
            "levels": [{"name": "node", "size": 2, "bandwidth": 1e9, "latency": 1e-5}],
            "device": {
                "tiers": [
                    {"name": "hbm", "capacity": fast, "bandwidth": 1e11},
                    {"name": "dram", "capacity": slow, "bandwidth": 1e9},
                ]
            },
            **more,
        }
    )


SERVERS = [
    {
        "name": "ps",
        "level": "node",
        "tiers": [{"name": "ram", "capacity": 10**6, "bandwidth": 1e9}],
    }
]


def lists(rows: int = 200, ids: int = 40, batch: int = 4) -> Profile:
    """Two pooled tables with lists of so many ids, and a sequence."""
    stats = []
    for index in range(3):
        random = np.random.default_rng(index)
        heat = random.permutation(5000 // np.arange(10, rows + 10))
        table = Table(
            name=f"t{index}",
            num_embeddings=rows,
            embedding_dim=16,
            features=(f"f{index}",),
            pooling="none" if index == 2 else "sum",
            optimizer="sgd",
        )
        stats.append(counted(table, heat, samples=int(heat.sum()) // ids))
    return Profile(batch, tuple(stats))


def pinned(**exchanges: str) -> PlanOptions:
    """A pin of the exchange for some tables."""
    pins = {name: {"exchange": word} for name, word in exchanges.items()}
    return PlanOptions(constraints=Constraints.model_validate({"tables": pins}))


@given(st.data(), rich_clusters(), rich_profiles())
@settings(max_examples=24, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_method_sends_sums_of_tables_with_learned_weights(
    data: st.DataObject, cluster: Cluster, profile: Profile
) -> None:
    profile = learned(profile)
    split, fit = data.draw(st.booleans()), data.draw(st.sampled_from(["rows", "all"]))
    for method in data.draw(st.permutations(OTHERS))[:3]:
        if method == "recshard-milp" and len(cluster.device.tiers) > 2:
            continue
        plan = make_plan(profile, cluster, method, PlanOptions(split=split, fit=fit))
        assert {b.exchange for bands in plan.bands.values() for b in bands} == {"rows"}
        assert verify(plan).holds


@pytest.mark.parametrize("method", METHODS)
def test_pins_of_the_exchange_are_kept_or_refused_by_name(method: str) -> None:
    profile, cluster = lists(), two(servers=SERVERS)
    options = pinned(t0="rows", t1="sums")
    if method in FETCH:
        said = rf"{method} takes no such constraint .*tables\.t1\.exchange.*plan with joint"
        with pytest.raises(UserError, match=said):
            make_plan(profile, cluster, method, options)
        options = pinned(t0="rows")
    plan = make_plan(profile, cluster, method, options)
    assert sent(plan, "t0") == {"rows"}
    assert sent(plan, "t1") == ({"rows"} if method in FETCH else {"sums"})
    assert verify(plan).holds


@cache
def planned(kind: str) -> Plan:
    """A plan of joint in which the first table goes by rows: `free` to, by `pin`, or `learned`."""
    profile = learned(lists(), "t0") if kind == "learned" else lists()
    return make_plan(profile, two(), "joint", pinned(**({"t0": "rows"} if kind == "pin" else {})))


def test_learned_weights_do_what_the_pin_does() -> None:
    free, by_pin, by_table = planned("free"), planned("pin"), planned("learned")
    assert sent(free, "t0") == {"sums"}, "or the pin would take nothing away"
    assert by_table.bands == by_pin.bands
    bounds = []
    for plan in (free, by_pin, by_table):
        assert plan.certificate is not None
        assert verify(plan).proved == pytest.approx(plan.certificate.bound, rel=1e-3)
        bounds.append(plan.certificate.bound)
    assert bounds[1] == bounds[2]
    assert bounds[1] > 1.01 * bounds[0], "fewer plans, a higher bound"


def test_a_bound_of_a_pin_is_not_claimed_for_plans_without_it() -> None:
    plan = planned("pin")
    assert not verify(replace(plan, constraints=None)).holds
    assert plan.certificate is not None
    assert plan.certificate.covers.endswith("within the constraints")


@pytest.mark.parametrize(
    ("word", "more"),
    [
        ("rows", {"device": 1}),
        ("sums", {"device": 1}),
        ("rows", {"tier": "dram"}),
        ("sums", {"scope": "node"}),
    ],
)
def test_the_exchange_is_kept_beside_other_pins(word: str, more: dict[str, Any]) -> None:
    pins = {"t0": {"exchange": word, **more}, "t1": {"exchange": word, "never_split": True}}
    options = PlanOptions(constraints=Constraints.model_validate({"tables": pins}))
    cluster = two(servers=SERVERS) if word == "sums" and "device" in more else two()
    plan = make_plan(lists(), cluster, "joint", options)
    assert sent(plan, "t0") == sent(plan, "t1") == {word}
    verdict = verify(plan)
    assert verdict.holds
    assert verdict.proved is None, "other pins have bounds that are only claimed"


def test_a_table_that_nobody_looks_up_may_be_pinned_to_sums_and_lie_once() -> None:
    table = Table(name="idle", num_embeddings=500, embedding_dim=16, features=("g",))
    idle = counted(table, np.zeros(500, dtype=np.int64))
    profile = Profile(64, (*lists().stats[:1], idle))
    cluster = two(fast=16_000, slow=10_000)  # no room for a copy of it on every device
    free, kept = (make_plan(profile, cluster, options=o) for o in (pinned(), pinned(idle="sums")))
    assert sent(kept, "idle") == {"sums"}
    assert free.certificate is not None
    assert kept.certificate is not None
    assert kept.certificate.bound == pytest.approx(free.certificate.bound, rel=1e-3)
    assert proved_s(kept) == pytest.approx(kept.certificate.bound, rel=1e-3)


def test_rows_that_fit_nowhere_else_are_packed_by_the_exchange_that_is_left() -> None:
    stored = sum(s.table.stored_bytes for s in lists().stats)
    tight = two(fast=64 * 25, slow=stored // 2 - 64 * 20)
    plan = make_plan(lists(), tight, "joint", pinned(t0="sums", t1="sums"))
    assert sent(plan, "t0") == sent(plan, "t1") == {"sums"}
    assert verify(plan).holds


def test_mistakes_about_the_exchange_are_named() -> None:
    profile = learned(lists(), "t0")
    with pytest.raises(InvalidError) as caught:
        make_plan(profile, two(), "joint", pinned(t0="sums", t2="sums"))
    said = str(caught.value)
    assert "tables.t0.exchange: 'sums': the weights of its lookups are learned" in said
    assert "tables.t2.exchange: 'sums': the table is not pooled; accepted: rows" in said
    with pytest.raises(ValueError, match="rows"):
        Constraints.model_validate({"tables": {"t0": {"exchange": "row"}}})
    with pytest.raises(ValueError, match="lookups of a table that is not pooled have no weights"):
        Table.model_validate({**profile.stats[2].table.to_data(), "weights": "learned"})


def test_a_plan_with_sums_of_learned_weights_is_no_valid_plan(tmp_path: Path) -> None:
    plan = make_plan(lists(), two(), "row-wise")
    broken = replace(plan, profile=learned(plan.profile, "t0"))
    said = [str(mistake) for mistake in find_mistakes(broken)]
    assert len(said) == len(plan.bands["t0"])
    assert "tables.t0[0].exchange: 'sums': the weights of its lookups are learned" in said[0]
    assert not verify(broken).holds
    make_plan(learned(lists(), "t0"), two(), "row-wise").save(tmp_path / "plan")
    data = json.loads((tmp_path / "plan/plan.json").read_text())
    data.pop("fingerprint")
    data["tables"]["t0"][0]["exchange"] = "sums"
    (tmp_path / "plan/plan.json").write_text(json.dumps(data))
    code, _, error = run("verify", f"{tmp_path}/plan")
    assert code == 2
    assert "weights of its lookups are learned" in error


def test_the_command_line_keeps_to_pins_and_to_learned_weights(tmp_path: Path) -> None:
    learned(lists(), "t0").save(tmp_path / "profile")
    two().save(tmp_path / "cluster.yaml")
    files = ["--profile", f"{tmp_path}/profile", "--cluster", f"{tmp_path}/cluster.yaml"]
    pins = tmp_path / "pins.yaml"
    pins.write_text("tables: {t1: {exchange: rows}}\n")
    plan = ["plan", *files, "--constraints", str(pins), "-o", f"{tmp_path}/plan"]
    code, _, error = run(*plan)
    assert code == 0, error
    loaded = Plan.load(tmp_path / "plan")
    assert sent(loaded, "t0") == sent(loaded, "t1") == {"rows"}
    assert loaded.profile["t0"].table.weights == "learned"
    code, out, _ = run("verify", f"{tmp_path}/plan")
    assert code == 0
    assert "the bound was recomputed" in out
    assert "t0" in (said := run("explain", f"{tmp_path}/plan", "t0")[1])
    assert "rows travel, never sums: the weights of its lookups are learned" in said
    assert "partial sums travel" not in said
    assert "exchange rows" in run("explain", f"{tmp_path}/plan", "t1")[1]
    for text, names in (
        ("tables: {t0: {exchange: sums}}\n", "weights of its lookups are learned"),
        ("tables: {t1: {exchange: row}}\n", "'row'"),
    ):
        pins.write_text(text)
        code, _, error = run(*plan)
        assert code == 2
        assert names in error
    pins.write_text("tables: {t1: {exchange: sums}}\n")
    code, _, error = run(*plan, "--method", "sca")
    assert code == 2
    assert "sca takes no such constraint" in error
    pins.write_text("tables: {t1: {exchange: rows}}\nlinks: {node: 10KB}\n")
    code, _, error = run(*plan)
    assert code == 3
    assert "links.node" in error
    assert "or drop tables.t1.exchange" in " ".join(error.split())
    free = planned("free")
    limit = Constraints.model_validate({"links": {"node": 10_000}})
    cost = step_cost(free.bands, free.profile, free.cluster)
    assert not list(limit.violations(free.bands, cost)), "sums are within it"


def test_bands_on_every_device_are_open_to_any_pin() -> None:
    bands = {"t0": (Band(start=0, stop=200, scope="device", tier="hbm"),)}
    profile = replace(lists(), stats=lists().stats[:1])
    wanted = pinned(t0="sums").constraints
    assert not list(wanted.violations(bands, step_cost(bands, profile, two())))
