"""The best plan that moves at most so many bytes: what stays, what moves, what is proved."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from evaluate.drifting import machine, planned, profile
from evaluate.test_diff import homes
from hypothesis import given, settings
from hypothesis import strategies as st

from rowtier import InfeasibleError, MismatchError, Plan, PlanOptions, UserError, diff, make_plan
from rowtier.cost.memory import used_bytes
from rowtier.cost.step import step_cost
from rowtier.evaluate.budget import MovePath, move_path, plan_within
from rowtier.evaluate.rearrange import Dealer, Swaps
from rowtier.evaluate.relabel import relabelled
from rowtier.plan.carried import carried, statistics_of
from rowtier.plan.check import find_mistakes
from rowtier.plan.constraints import Constraints
from rowtier.plan.verify import verify


def moved(old: Plan, new: Plan) -> int:
    found = diff(old, new)
    return found.moved_bytes + int(found.within_bytes.sum())


def step_s(plan: Plan) -> float:
    return step_cost(plan.bands, plan.profile, plan.cluster, plan.order).step_s


def path_of(
    shifts: tuple[int, ...], ram: str = "24KiB", method: str = "joint", nodes: int = 1
) -> tuple[Plan, MovePath]:
    cluster = machine(ram, nodes=nodes)
    old = planned(profile(*(0 for _ in shifts), unseen=40), cluster, method)
    newer = profile(*shifts)
    return old, move_path(newer, cluster, old, fresh=planned(newer, cluster))


@settings(deadline=None, max_examples=8)
@given(
    st.lists(st.sampled_from([0, 5, 60, 200]), min_size=1, max_size=3),
    st.sampled_from(["8KiB", "24KiB", "1MiB"]),
    st.sampled_from(["joint", "row-wise", "table-wise"]),
    st.sampled_from([1, 2]),
)
def test_a_larger_budget_never_gives_a_slower_plan(
    shifts: list[int], ram: str, method: str, nodes: int
) -> None:
    old, path = path_of(tuple(shifts), ram, method, nodes)
    whole = moved(old, path.fresh)
    before = np.inf
    for budget in (0, 1, whole // 64, whole // 8, whole // 2, whole, 10 * whole):
        stage = path.within(budget)
        assert stage.moved_bytes <= budget
        assert moved(old, stage.plan) == stage.moved_bytes
        assert step_s(stage.plan) == stage.objective <= before
        assert not list(find_mistakes(stage.plan))
        before = stage.objective
    assert before <= step_s(path.fresh)


@pytest.mark.parametrize("method", ["joint", "row-wise", "table-wise"])
def test_a_budget_of_nothing_keeps_every_row_where_it_is(method: str, tmp_path: Path) -> None:
    cluster, newer = machine(), profile(150, 30)
    old = planned(profile(0, 0, unseen=40), cluster, method)
    kept = plan_within(newer, cluster, old, 0, fresh=planned(newer, cluster))
    assert kept.bands == old.bands
    for name in ("t0", "t1"):
        assert homes(kept, name) == homes(old, name)
    found = diff(old, kept)
    assert (found.moved_bytes, int(found.within_bytes.sum())) == (0, 0)
    assert step_s(kept) == pytest.approx(step_s(carried(old, newer)), rel=1e-12)
    if method == "joint":
        assert old.order is not None
        assert kept.order is not None
        for name in old.order:
            np.testing.assert_array_equal(kept.order[name], old.order[name])  # slots stay, too
    kept.save(tmp_path / "kept")
    assert Plan.load(tmp_path / "kept").fingerprint == kept.fingerprint
    assert kept.origin["moved"]["from"] == old.fingerprint


def test_without_a_budget_it_is_the_plan_made_anew() -> None:
    cluster, newer = machine(), profile(100)
    old = planned(profile(0), cluster, "row-wise")
    made = plan_within(newer, cluster, old, method="row-wise")
    assert made.fingerprint == make_plan(newer, cluster, "row-wise").fingerprint


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_certificates_of_plans_within_a_budget_hold(share: float, tmp_path: Path) -> None:
    old, path = path_of((150, 30, 0))
    made = path.plan_within(int(share * moved(old, path.fresh)))
    made.save(tmp_path / "plan")
    newer = profile(150, 30, 0)
    found = verify(tmp_path / "plan", newer, made.cluster)
    assert not found.mistakes
    assert found.proved is not None
    fresh = path.fresh.certificate
    assert made.certificate is not None
    assert fresh is not None
    assert made.certificate.bound == pytest.approx(fresh.bound, rel=1e-6)
    assert made.certificate.covers.endswith("however many bytes they would move")
    assert made.certificate.objective == step_s(made)
    binds = made.certificate.objective > 1.001 * fresh.objective
    assert made.certificate.binding.startswith("the budget") == binds


def test_a_certificate_that_claims_too_much_is_found(tmp_path: Path) -> None:
    _, path = path_of((150,), "6KiB")
    made = path.plan_within(0)
    assert made.certificate is not None
    lie = made.certificate.model_copy(update={"bound": made.certificate.objective})
    replace(made, certificate=lie).save(tmp_path / "lie")
    assert any(m.key == "certificate.bound" for m in verify(tmp_path / "lie").mistakes)
    # Another order than the plan's own is seen against the profile.
    assert made.order is not None
    rows = made.order["t0"].copy()
    rows[[0, -1]] = rows[[-1, 0]]
    replace(made, order={"t0": rows}).save(tmp_path / "lie")
    assert verify(tmp_path / "lie", profile(150)).mistakes


@settings(deadline=None, max_examples=5)
@given(
    st.tuples(*[st.sampled_from([0, 10, 120, 200])] * 3),
    st.sampled_from(["8KiB", "24KiB"]),
    st.floats(0, 1),
)
def test_no_choice_of_whole_tables_is_better(
    shifts: tuple[int, int, int], ram: str, share: float
) -> None:
    old, path = path_of(shifts, ram)
    newer, fresh = profile(*shifts), path.fresh
    kept = carried(old, newer)
    budget = int(share * moved(old, fresh))
    found = path.within(budget).objective
    assert kept.order is not None
    assert fresh.order is not None
    for taken in product((False, True), repeat=3):
        side = {f"t{i}": fresh if new else kept for i, new in enumerate(taken)}
        bands = {name: one.bands[name] for name, one in side.items()}
        order = {name: one.order[name] for name, one in side.items() if one.order is not None}
        mixed = replace(fresh, bands=bands, order=order, certificate=None)
        mixed = replace(mixed, profile=statistics_of(mixed, newer))
        if not list(find_mistakes(mixed)) and moved(old, mixed) <= budget:
            assert found <= step_s(mixed) * (1 + 1e-9)


def test_half_of_the_bytes_save_more_than_half_of_the_time() -> None:
    _, path = path_of((200,), "6KiB")
    kept, best = path.within(0).objective, path.within(10**12).objective
    half = path.within(path.stages[-1].moved_bytes // 2).objective
    assert kept - half > 0.6 * (kept - best)
    assert len(path.stages) > 10


def test_rows_change_places_and_memories_stay_as_full() -> None:
    old, newer = planned(profile(0), machine("6KiB")), profile(150)
    kept = carried(old, newer)
    swaps = Swaps.of(kept, newer.stats[0])
    assert swaps.count > 10
    before = kept.rows_in_order("t0")
    for pairs in (1, swaps.count):
        after = replace(kept, order={"t0": swaps.first(pairs)})
        changed = before != after.rows_in_order("t0")
        assert 0 < changed.sum() <= 2 * pairs
        np.testing.assert_array_equal(
            used_bytes(after.bands, kept.profile, kept.cluster),
            used_bytes(kept.bands, kept.profile, kept.cluster),
        )
        assert step_s(replace(after, profile=statistics_of(after, newer))) < step_s(kept)


@pytest.mark.parametrize("even", [False, True])
def test_rows_that_may_stay_on_their_holder_do(even: bool) -> None:
    cluster, newer = machine(), profile(150)
    old = carried(planned(profile(0), cluster), newer)
    fresh = planned(newer, cluster)
    order = Dealer(old, "t0").order(fresh.bands["t0"], newer.stats[0], even=even)
    dealt = replace(fresh, order={"t0": order})
    assert diff(old, dealt).moved_bytes < diff(old, fresh).moved_bytes
    for start, stop in {(band.start, band.stop) for band in fresh.bands["t0"]}:
        rows = [set(p.rows_in_order("t0")[start:stop].tolist()) for p in (fresh, dealt)]
        assert rows[0] == rows[1]


def test_devices_are_named_so_that_most_rows_are_there() -> None:
    cluster = machine("1MiB", devices=3, nodes=2)
    old = planned(profile(0, 0, 0, 0, 0), cluster, "table-wise")
    other = {
        name: tuple(b.model_copy(update={"members": ((b.members[0] + 4) % 6,)}) for b in bands)
        for name, bands in old.bands.items()
    }
    turned = replace(old, bands=other)
    assert diff(old, turned).moved_bytes > 0
    assert diff(old, relabelled(old, turned)).moved_bytes < diff(old, turned).moved_bytes
    first = {
        name: tuple(b.model_copy(update={"members": ((b.members[0] + 3) % 6,)}) for b in bands)
        for name, bands in old.bands.items()
    }
    assert relabelled(old, replace(old, bands=first)).bands == old.bands  # nodes change names


def test_constraints_that_the_old_plan_breaks_need_bytes() -> None:
    cluster, newer = machine(), profile(0, 0)
    old = planned(profile(0, 0), cluster)
    wishes = PlanOptions(
        constraints=Constraints.model_validate({"tables": {"t0": {"tier": "disk"}}})
    )
    fresh = make_plan(newer, cluster, "joint", wishes, stop=lambda: True)
    with pytest.raises(InfeasibleError, match="are needed at least; raise --move-budget"):
        plan_within(newer, cluster, old, 0, options=wishes, fresh=fresh)
    made = plan_within(newer, cluster, old, 10**9, options=wishes, fresh=fresh)
    assert {band.tier for band in made.bands["t0"]} == {"disk"}


def test_what_cannot_be_moved_from_is_refused() -> None:
    cluster = machine()
    old, newer = planned(profile(0), cluster), profile(150)
    with pytest.raises(UserError, match="give 0 or more"):
        plan_within(newer, cluster, old, -1)
    with pytest.raises(MismatchError, match="is only in the profile"):
        plan_within(profile(0, 0), cluster, old, 0)
    with pytest.raises(UserError, match="no row order"):
        plan_within(newer, cluster, planned(profile(0).to_curve(), cluster), 0)
    with pytest.raises(MismatchError, match="cannot stay as it is on cluster"):
        plan_within(newer, machine("1KiB"), old, 0)
    with pytest.raises(MismatchError, match="the plan was made for profile"):
        plan_within(newer, cluster, old, 0, fresh=old)
