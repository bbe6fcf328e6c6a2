import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rowtier
from rowtier import Cluster, Device, Level, Plan, Replay, Table, Tables, Tier, UserError
from rowtier.evaluate.replay import replay
from rowtier.plan.bags import Bags
from rowtier.profile.rarefaction import Batches
from rowtier.tables import OutOfRange
from rowtier.work import UpdateWork, Work

ROWS, SAMPLES = 400, 6000


def machine() -> Cluster:
    tiers = (
        Tier(name="hbm", capacity_bytes=60_000, bandwidth_bytes_per_s=1e12, granularity_bytes=32),
        Tier(name="dram", capacity_bytes=10**9, bandwidth_bytes_per_s=1e10),
    )
    levels = (
        Level(name="node", size=2, bandwidth_bytes_per_s=1e11, latency_s=1e-6),
        Level(name="cluster", size=2, bandwidth_bytes_per_s=1e10, latency_s=1e-5, message_s=1e-6),
    )
    work = Work(
        step_s=1e-5,
        round_s=1e-6,
        band_s=2e-6,
        lookup_s=1e-8,
        plain_s=3e-8,
        row_s=1e-8,
        buffer_bytes_per_s=1e10,
        update=UpdateWork(rowwise_adagrad=2e-8),
    )
    return Cluster(name="four", levels=levels, device=Device(tiers=tiers), work=work)


def samples(seed: int, count: int = SAMPLES) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(seed)
    heat = np.arange(1, ROWS + 1, dtype=float) ** -1.0
    data = {}
    for name, mean in (("a", 3), ("b", 1)):
        lengths = random.poisson(mean, count)
        ids = random.choice(ROWS, size=int(lengths.sum()), p=heat / heat.sum())
        data[name] = (ids.astype(np.int64), lengths.astype(np.int64))
    return data


def tables(**facts: object) -> Tables:
    both = [
        Table(name=f"t{name}", num_embeddings=ROWS, embedding_dim=16, features=(name,), **facts)
        for name in ("a", "b")
    ]
    return Tables(batch_size=50, tables=tuple(both))


@pytest.fixture(scope="module")
def plan() -> Plan:
    tight = rowtier.PlanOptions(reserve=0.85)  # so that both memories serve
    return rowtier.make_plan(rowtier.make_profile([samples(0)], tables()), machine(), "sca", tight)


def test_replay_is_the_function_and_not_a_module() -> None:
    assert rowtier.replay is replay


def test_replay_counts_whole_steps_and_all_their_lookups(plan: Plan) -> None:
    data = samples(1, 450)
    found = replay(plan, [data], batches="in_time_order")
    assert isinstance(found, Replay)
    assert (found.steps, found.samples) == (2, 400)
    assert found.lookups == sum(int(lengths[:400].sum()) for _, lengths in data.values())
    served = [found.figure("lookups", of=tier).replayed for tier in ("hbm", "dram")]
    assert sum(served) * found.steps == pytest.approx(found.lookups)


def test_predictions_hold_on_data_like_the_profiled_data(plan: Plan) -> None:
    found = replay(plan, [samples(1)])
    figures = [figure for figure in found.figures if figure.label.unit != "s"]
    inside = np.mean([figure.as_expected for figure in figures])
    assert inside > 0.85
    assert abs(found.figure("rows touched", at="cluster").error) < 0.03
    assert not found.warnings


def test_a_step_is_slower_than_the_slowest_holder_on_average(plan: Plan) -> None:
    step = replay(plan, [samples(1)]).figure("step")
    assert step.percentiles is not None
    assert step.percentiles[0] <= step.percentiles[1] <= step.percentiles[2] <= step.worst
    assert step.low < step.predicted < step.high
    assert step.as_expected


def test_replaying_the_profiled_data_is_noticed(plan: Plan) -> None:
    assert "looks like the data" in replay(plan, [samples(0)]).warnings[0]


def hashed_away(data: dict[str, tuple[np.ndarray, np.ndarray]]) -> Any:
    """The same number of lookups, of ids that no table has a row for."""
    return {name: (ids + 10 * ROWS, lengths) for name, (ids, lengths) in data.items()}


@pytest.mark.parametrize("policy", ["hash", "clip", "drop"])
def test_ids_without_a_row_are_not_the_profiled_data(policy: OutOfRange) -> None:
    seen = {name: (np.arange(SAMPLES) % ROWS, np.ones(SAMPLES, int)) for name in ("a", "b")}
    plan = rowtier.make_plan(rowtier.make_profile([seen], tables()), machine(), "row-wise")
    assert "looks like the data" in replay(plan, [seen]).warnings[0]
    found = replay(plan, [hashed_away(seen)], on_out_of_range=policy)
    assert found.unseen == 0
    assert found.out_of_range == found.to_dict()["out_of_range"] == 2 * SAMPLES
    assert not any("looks like" in text for text in found.warnings)
    assert "12,000 ids have no row in their table and were" in found.warnings[0]
    word = {"hash": "hashed", "clip": "clipped", "drop": "dropped"}[policy]
    assert f"were {word}; the prediction covers that only if" in found.warnings[0]


def test_as_many_samples_but_other_lookups_are_not_the_profiled_data() -> None:
    ones = np.ones(SAMPLES, int)
    seen = {name: (np.arange(SAMPLES) % ROWS, ones) for name in ("a", "b")}
    plan = rowtier.make_plan(rowtier.make_profile([seen], tables()), machine(), "row-wise")
    other = {**seen, "b": (np.arange(2 * SAMPLES) % ROWS, 2 * ones)}
    assert not any("looks like" in text for text in replay(plan, [other]).warnings)


def test_what_lies_outside_of_its_interval_is_said(plan: Plan) -> None:
    ids = {name: np.sort(values) for name, (values, _) in samples(1).items()}
    lengths = {name: found for name, (_, found) in samples(1).items()}
    sorted_data = [{name: (ids[name], lengths[name]) for name in ids}]
    found = replay(plan, sorted_data, batches="in_time_order")
    said = [text for text in found.warnings if "outside of its interval" in text]
    assert any(text.startswith("a step touches") and "profile newer" in text for text in said)
    rows = found.figure("rows touched", at="cluster")
    assert rows.replayed < rows.low
    few = {name: (values % 3, found) for name, (values, found) in samples(1).items()}
    said = list(replay(plan, [few]).warnings)
    assert any(text.startswith("a step takes") and "profile newer data" in text for text in said)


def test_lookups_on_rows_that_the_profile_never_saw_are_counted(plan: Plan) -> None:
    touched = {name: plan.order[f"t{name}"] for name in ("a", "b")} if plan.order else {}
    data = samples(5)
    found = replay(plan, [data], batches="in_time_order")
    new = sum(int((~np.isin(data[name][0], rows)).sum()) for name, rows in touched.items())
    assert found.unseen_lookups == found.to_dict()["unseen_lookups"] == new > 0
    assert 0 < found.unseen <= found.unseen_lookups


def test_weighted_batches_and_bags_are_replayed_too(plan: Plan) -> None:
    data = samples(1, 400)
    weighted = {name: (*pair, np.ones(len(pair[0]))) for name, pair in data.items()}
    bags = {name: Bags(ids, lengths) for name, (ids, lengths) in data.items()}
    found = replay(plan, [data]).to_dict()
    assert replay(plan, [weighted]).to_dict() == replay(plan, [bags]).to_dict() == found


def test_new_data_of_the_same_length_is_no_reason_to_warn(plan: Plan) -> None:
    found = replay(plan, [samples(5)])
    assert found.unseen > 0
    assert not found.warnings


def test_the_first_part_of_the_data_is_skipped(plan: Plan) -> None:
    first, second = samples(1, 400), samples(2, 400)
    for batches in ("shuffled", "in_time_order"):
        whole = replay(plan, [first, second], after=0.5, batches=batches)
        assert whole.to_dict() == replay(plan, [second], batches=batches).to_dict()
        early = replay(plan, [first, second], before="50%", batches=batches)
        assert early.to_dict() == replay(plan, [first], batches=batches).to_dict()


def test_a_window_may_be_given_by_times(plan: Plan) -> None:
    data = [{**samples(1, 400), "at": np.full(400, day)} for day in (1, 2, 3)]
    some = replay(plan, data, before=3, after=2, time="at")
    assert some.to_dict() == replay(plan, [data[1]]).to_dict()
    with pytest.raises(UserError, match="'at' goes from 1 to 3"):
        replay(plan, data, after=4, time="at")


@pytest.mark.parametrize("batches", ["shuffled", "in_time_order"])
def test_the_seed_draws_which_steps_are_taken(plan: Plan, tmp_path: Path, batches: Batches) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = {
        name: np.split(ids, np.cumsum(lengths)[:-1]) for name, (ids, lengths) in samples(3).items()
    }
    path = f"{tmp_path}/data.parquet"
    pq.write_table(pa.table({k: [b.tolist() for b in v] for k, v in data.items()}), path, 700)
    every = replay(plan, path, batches=batches)
    some = [replay(plan, path, steps=5, seed=seed, batches=batches) for seed in (0, 0, 1)]
    assert every.steps == SAMPLES // 200
    assert [found.steps for found in some] == [5, 5, 5]
    assert some[0].to_dict() == some[1].to_dict()
    assert some[0].lookups != some[2].lookups
    assert replay(plan, path, steps=1000, batches=batches).to_dict() == every.to_dict()


def test_the_result_does_not_depend_on_how_the_data_is_cut(plan: Plan) -> None:
    data = samples(4, 800)

    def chunks(size: int) -> list[dict[str, tuple[np.ndarray, np.ndarray]]]:
        cuts = []
        for at in range(0, 800, size):
            cut = {}
            for name, (ids, lengths) in data.items():
                first = int(lengths[:at].sum())
                taken = lengths[at : at + size]
                cut[name] = (ids[first : first + int(taken.sum())], taken)
            cuts.append(cut)
        return cuts

    for batches in ("shuffled", "in_time_order"):
        fine, coarse = (replay(plan, chunks(size), batches=batches) for size in (37, 800))
        ours, theirs = fine.to_dict(), coarse.to_dict()
        for one, other in zip(ours.pop("figures"), theirs.pop("figures"), strict=True):
            if one["unit"] == "s":  # seconds of work are added up in the order of the data
                for name in {name for name, value in one.items() if isinstance(value, float)}:
                    assert one.pop(name) == pytest.approx(other.pop(name), rel=1e-9, abs=1e-15)
            assert one == other
        assert ours == theirs


def test_a_batch_size_of_ones_own_is_predicted_too(plan: Plan) -> None:
    found = replay(plan, [samples(1)], batch_size=100)
    assert found.steps == SAMPLES // 400
    assert found.figure("step").predicted == rowtier.predict(plan, batch_size=100).step_s
    assert abs(found.figure("lookups", of="ta").error) < 0.02


def test_ids_become_rows_by_the_rule_of_the_table() -> None:
    data = samples(0)
    wide = {name: (ids + 7 * ROWS, lengths) for name, (ids, lengths) in data.items()}
    profile = rowtier.make_profile([wide], tables(ids="modulo"))
    plain = rowtier.make_profile([data], tables())
    folded = rowtier.make_plan(profile, machine(), "row-wise")
    direct = rowtier.make_plan(plain, machine(), "row-wise")
    new = samples(1, 400)
    new_wide = {name: (ids + 7 * ROWS, lengths) for name, (ids, lengths) in new.items()}
    assert replay(folded, [new_wide]).to_dict() == replay(direct, [new]).to_dict()
    hashed = rowtier.make_profile([data], tables(ids="hash"))
    assert replay(rowtier.make_plan(hashed, machine(), "row-wise"), [new]).lookups > 0


def test_an_id_without_a_row_is_named_or_treated_as_asked(plan: Plan) -> None:
    data = samples(1, 200)
    ids, lengths = data["b"]
    ids = ids.copy()
    ids[5] = ROWS
    broken = [{**data, "b": (ids, lengths)}]
    sample = int(np.searchsorted(np.cumsum(lengths), 5, side="right"))
    for batches in ("shuffled", "in_time_order"):
        said = rf"batches: feature 'b' has id {ROWS} in sample {sample}.*rows 0 to 399"
        with pytest.raises(UserError, match=said):
            replay(plan, broken, batches=batches)
    assert (
        replay(plan, broken, on_out_of_range="drop").lookups
        == sum(int(n.sum()) for _, n in data.values()) - 1
    )
    for policy in ("clip", "hash"):
        found = replay(plan, broken, on_out_of_range=policy)  # type: ignore[arg-type]
        assert found.lookups == sum(int(n.sum()) for _, n in data.values())


def test_a_plan_without_row_order_is_refused_with_the_way_to_one(plan: Plan) -> None:
    curve = rowtier.make_plan(plan.profile.to_curve(), plan.cluster, "row-wise")
    with pytest.raises(UserError, match="rowtier profile DATA"):
        replay(curve, [samples(1)])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch_size": 5000}, "for a step, which takes 20,000"),
        ({"batch_size": 0}, "batch_size 0"),
        ({"steps": 0}, "steps 0"),
        ({"batches": "sorted"}, "batches 'sorted': accepted are shuffled, in_time_order"),
        ({"after": 1.0}, "after 1: no sample lies there"),
        ({"after": 1.5}, "after 1.5: is not between 0 and 1"),
        ({"after": 0.98}, "in the window that was asked for 120 samples, too few"),
    ],
)
def test_what_cannot_be_replayed_says_why(plan: Plan, options: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        replay(plan, [samples(1)], **options)


def test_data_of_unknown_length_cannot_be_skipped_into(plan: Plan) -> None:
    with pytest.raises(UserError, match="only reading tells"):
        replay(plan, (batch for batch in [samples(1)]), after=0.5)
    for batches in ("shuffled", "in_time_order"):
        endless = (batch for _ in itertools.count() for batch in [samples(1)])
        assert replay(plan, endless, steps=33, batches=batches).steps == 33


def test_progress_reaches_the_end(plan: Plan) -> None:
    for batches in ("shuffled", "in_time_order"):
        told: list[float] = []
        replay(plan, [samples(1), samples(2)], progress=told.append, batches=batches)
        assert told == sorted(told)
        assert told[-1] == 1.0


def test_figures_are_found_by_name_and_listed_in_a_frame(plan: Plan) -> None:
    found = replay(plan, [samples(1)])
    frame = found.to_frame()
    assert frame.num_rows == len(found.figures)
    assert {"replayed", "predicted", "error", "p50", "p99", "worst"} <= set(frame.column_names)
    assert f"{found.lookups:,} lookups" in repr(found)
    with pytest.raises(KeyError, match="to_frame"):
        found.figure("luck")
    for figure in found.figures:
        assert math.isfinite(figure.low)
        assert figure.low <= figure.predicted <= figure.high
