"""Counts while training: a profile of what ranks looked up, as if the data had been profiled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import rowtier
from rowtier import MismatchError, Plan, Profile, Table, Tables, UserError
from rowtier.profile import slices, step_counts
from rowtier.profile.forecast import knows_neighbours
from rowtier.runtime import heat
from rowtier.torch import RowwiseAdagrad, ShardedEmbeddings

SAMPLES, STEPS = 8, 40  # of the global batch
TABLES = Tables(
    batch_size=4,
    tables=(
        Table(name="a", num_embeddings=300, embedding_dim=2, features=("a", "seen")),
        Table(name="hashed", num_embeddings=50, embedding_dim=2, features=("url",), ids="hash"),
        Table(
            name="words",
            num_embeddings=30,
            embedding_dim=2,
            features=("word",),
            ids="vocabulary",
            num_shared=2,
        ),
        Table(
            name="rows", num_embeddings=40, embedding_dim=3, features=("last",), pooling="none",
            on_out_of_range="drop",
        ),
    ),
)  # fmt: skip
Batch = dict[str, Any]


def batches_of(seed: int = 0, steps: int = STEPS, shift: int = 0) -> list[Batch]:
    """Global batches: one id a sample, bags that repeat ids, strings, ids without a row."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(steps):
        lengths, few = rng.integers(0, 6, SAMPLES), rng.integers(0, 3, SAMPLES)
        words = np.array([f"w{n}" for n in rng.zipf(1.3, SAMPLES) % 60])
        found.append(
            {
                "a": (rng.zipf(1.3, SAMPLES) + shift) % 300,
                "seen": ((rng.zipf(1.5, lengths.sum()) + shift) % 300, lengths),
                "url": rng.zipf(1.3, SAMPLES) * 7919,
                "word": words.tolist(),
                "last": (rng.integers(0, 45, few.sum()), few),
            }
        )
    return found


def part_of(batch: Batch, rank: int, size: int) -> Batch:
    """What one rank has of a global batch; ranks have different numbers of samples."""
    edges = np.linspace(0, SAMPLES, size + 1).round().astype(int)
    start, stop = int(edges[rank]), int(edges[rank + 1])
    found: Batch = {}
    for name, entry in batch.items():
        if isinstance(entry, tuple):
            ids, lengths = entry
            ends = np.concatenate(([0], np.cumsum(lengths)))
            found[name] = (ids[ends[start] : ends[stop]], lengths[start:stop])
        else:
            found[name] = entry[start:stop]
    return found


def whole(batches: Sequence[Batch]) -> Profile:
    return rowtier.make_profile(batches, TABLES)


def plan_of(profile: Profile, ranks: int) -> Plan:
    return rowtier.make_plan(profile, rowtier.Cluster.local(ranks), "row-wise")


def look_up(module: ShardedEmbeddings, batch: Batch) -> None:
    found = module(batch)
    values = [one if isinstance(one, torch.Tensor) else one.values for one in found.values()]
    torch.stack([value.sum() for value in values]).sum().backward()
    module.optimizer.step()


def counted(
    rank: int, group: Any, plan: Plan, batches: list[Batch], every: int, few: bool
) -> list[Profile]:
    """The profile after all batches and once more; and that of the second half alone."""
    size = group.size()
    waiting, many = (40, 8) if few else (heat._WAITING, step_counts._MANY)
    with patch.object(heat, "_WAITING", waiting), patch.object(step_counts, "_MANY", many):
        module = ShardedEmbeddings(plan, RowwiseAdagrad(lr=0.5), group, heat_counts=every, seed=3)
        with torch.no_grad():
            module(part_of(batches[0], rank, size))  # does not train
        for batch in batches[: len(batches) // 2]:
            look_up(module, part_of(batch, rank, size))
        first = module.profile(reset=True)
        for batch in batches[len(batches) // 2 :]:
            look_up(module, part_of(batch, rank, size))
        return [first, module.profile(), module.profile(reset=True)]


@pytest.mark.parametrize("few", [False, True])
def test_a_profile_of_training_is_that_of_the_data_on_any_number_of_ranks(
    workers: Any, few: bool
) -> None:
    batches = batches_of()
    profile = whole(batches)
    half = STEPS // 2
    vocabularies = {s.table.name: s.vocabulary for s in profile.stats if s.vocabulary is not None}
    options = rowtier.ProfileOptions(vocabulary=vocabularies)
    first, second = (
        rowtier.make_profile(part, TABLES, options) for part in (batches[:half], batches[half:])
    )
    for size in (1, 2, 3):
        found = workers.run(size, counted, plan_of(profile, size), batches, 1, few)
        assert len({tuple(one.fingerprint for one in ranks) for ranks in found}) == 1
        for got, data in ((found[0][0], first), (found[0][1], second), (found[0][2], second)):
            _check_counts(got, data)
        for got, data in zip(found[0][0].stats, first.stats, strict=True):
            assert got.slices is not None
            assert data.slices is not None
            for mine, theirs in zip(got.slices.arrays(), data.slices.arrays(), strict=True):
                np.testing.assert_array_equal(mine, theirs)
        _check_counts(found[0][0].merge(found[0][1]), profile)


def _check_counts(got: Profile, data: Profile) -> None:
    """The same in all respects but what nobody can know while training."""
    assert got.tables == data.tables
    for mine, theirs in zip(got.stats, data.stats, strict=True):
        assert mine.facts() == {k: v for k, v in theirs.facts().items() if "distinct" not in k}
        assert mine.counts is not None
        assert theirs.counts is not None
        for name in ("rows", "counts", "samples"):
            np.testing.assert_array_equal(
                getattr(mine.counts, name), getattr(theirs.counts, name), err_msg=name
            )
        assert list(mine.mistakes()) == []
        assert not knows_neighbours(mine)


def test_one_step_in_every_n_is_counted_by_seed_and_all_ranks_choose_the_same(
    workers: Any,
) -> None:
    batches = batches_of(steps=60)
    for index, batch in enumerate(batches):
        batch["a"] = np.full(SAMPLES, index)
        batch["seen"] = (np.empty(0, dtype=np.int64), np.zeros(SAMPLES, dtype=np.int64))
    plan = plan_of(whole(batches), 2)
    found = [profiles[:2] for profiles in workers.run(2, counted, plan, batches, 3, False)]
    for mine, theirs in zip(*found, strict=True):
        assert mine.fingerprint == theirs.fingerprint
        counts = mine["a"].counts
        assert counts is not None
        assert set(counts.counts.tolist()) == {SAMPLES}
        steps = np.sort(counts.rows)
        assert (steps // 3).tolist() == list(range(steps[0] // 3, steps[0] // 3 + 10))
        assert len({*(steps % 3)}) > 1


def test_a_profile_of_training_serves_as_any_other(workers: Any, tmp_path: Path) -> None:
    batches = batches_of()
    plan = plan_of(whole(batches), 2)
    moved = batches_of(1, shift=100)
    found = workers.run(2, counted, plan, moved, 2, False)[0][0]
    found.save(tmp_path / "profile")
    assert Profile.load(tmp_path / "profile").fingerprint == found.fingerprint
    better = rowtier.make_plan(found, plan.cluster)
    assert rowtier.predict(better).step_s > 0
    assert better.order is not None
    assert int(better.order["a"][0]) == int(found["a"].counts.rows[0])
    assert rowtier.diff(plan, better).tables
    assert found["a"].drift is not None
    assert found["a"].drift.unknown is None  # ten slices
    with pytest.raises(UserError, match="does not know which samples of table 'a' are neighbours"):
        found.with_batches("in_time_order")


def test_addresses_and_rows_count_as_ids_do() -> None:
    batches = batches_of(steps=9)
    plan = plan_of(whole(batches), 1)
    by_id, by_row, by_address = (
        ShardedEmbeddings(plan, RowwiseAdagrad(lr=0.5), heat_counts=1, rows=rows)
        for rows in (False, True, False)
    )
    remap = plan.remapper()
    for batch in batches:
        ids, lengths = batch["last"]
        batch["last"] = (ids % 40, lengths)  # none is dropped, as rows cannot be
        look_up(by_id, batch)
        look_up(by_address, remap(batch))
        rows: Batch = {}
        for read in by_id.remapper.reads:
            entry = batch[read.feature]
            ids, *lengths = entry if isinstance(entry, tuple) else (entry,)
            found = plan.rows_of(read.table.name, ids)
            rows[read.feature] = (found, *lengths) if lengths else found
        look_up(by_row, rows)
    expected = by_id.profile()
    for other in (by_row, by_address):
        assert other.profile().fingerprint == expected.fingerprint


def test_counts_follow_rows_when_addresses_change() -> None:
    batches = batches_of(steps=20)
    plan, other = plan_of(whole(batches), 1), plan_of(whole(batches_of(5, shift=50)), 1)
    kept = {s.table.name: plan.vocabularies.get(s.table.name) for s in plan.profile.stats}
    assert kept["words"] is not None
    counts = heat.HeatCounts(plan, 1, 0)
    first, second = plan.remapper(), rowtier.make_plan(
        rowtier.make_profile(
            batches_of(5, shift=50), TABLES,
            rowtier.ProfileOptions(vocabulary={"words": kept["words"]}),
        ), other.cluster, "row-wise",
    ).remapper()  # fmt: skip
    for number, batch in enumerate(batches):
        remap = second if number % 5 > 2 else first
        counts.note(remap(batch), remap)
    wire = ShardedEmbeddings(plan, None).engine.wire
    _check_counts(counts.gathered(wire, {}, reset=True), whole(batches))


def test_many_rows_keep_their_counts_and_some_their_periods() -> None:
    table = Table(name="t", num_embeddings=5000, embedding_dim=1, features=("f",))
    rng, tables = np.random.default_rng(0), Tables(batch_size=64, tables=(table,))
    batches = [{"f": rng.integers(0, 5000, 64)} for _ in range(40)]
    with patch.object(slices, "MOST_ROWS", 200), patch("rowtier.profile.counters.MOST_ROWS", 200):
        data = rowtier.make_profile(batches, tables)
        plan = rowtier.make_plan(data, rowtier.Cluster.local(1), "row-wise")
        counts, remap = heat.HeatCounts(plan, 1, 0), plan.remapper()
        with patch.object(heat, "_WAITING", 200), patch.object(step_counts, "_MANY", 100):
            for batch in batches:
                counts.note(remap(batch), remap)
            wire = ShardedEmbeddings(plan, None).engine.wire
            found = counts.gathered(wire, {}, reset=False)
    _check_counts(found, data)
    mine, theirs = found["t"].slices, data["t"].slices
    assert mine is not None
    assert theirs is not None
    assert mine.thinning > 1
    for ours, of_data in zip(mine.arrays(), theirs.arrays(), strict=True):
        np.testing.assert_array_equal(ours, of_data)


def test_counts_that_are_not_there_are_refused_with_the_remedy() -> None:
    plan = plan_of(whole(batches_of(steps=2)), 1)
    with pytest.raises(UserError, match="count nothing: make them with heat_counts=True"):
        ShardedEmbeddings(plan).profile()
    with pytest.raises(UserError, match=r"none of which was counted .* one in 64"):
        ShardedEmbeddings(plan, heat_counts=True).profile()
    for bad in (-1, 0.5, "often"):
        with pytest.raises(UserError, match=r"heat_counts .*: give of how many steps"):
            ShardedEmbeddings(plan, heat_counts=bad)  # type: ignore[arg-type]
    assert ShardedEmbeddings(plan, heat_counts=0).heat is None


def test_ranks_that_count_otherwise_are_named(workers: Any) -> None:
    plan = plan_of(whole(batches_of(steps=2)), 2)
    said = workers.run(2, _differently, plan)
    assert all("heat_counts" in one and "rank 1" in one for one in said), said


def _differently(rank: int, group: Any, plan: Plan) -> str:
    try:
        ShardedEmbeddings(plan, None, group, heat_counts=2 + rank)
    except MismatchError as error:
        return str(error)
    return "made"


def test_a_compiled_model_counts_too() -> None:
    batches = batches_of(steps=9)
    tables = Tables(batch_size=8, tables=TABLES.tables[:1])
    data = rowtier.make_profile(batches, tables)
    plan = rowtier.make_plan(data, rowtier.Cluster.local(1), "row-wise")
    module = ShardedEmbeddings(plan, RowwiseAdagrad(lr=0.5), heat_counts=1)
    compiled = torch.compile(module, backend="eager", dynamic=True)
    for batch in batches:
        ids, lengths = batch["seen"]
        found = compiled(
            {
                "a": torch.from_numpy(batch["a"]),
                "seen": (torch.from_numpy(ids), torch.from_numpy(lengths)),
            }
        )
        (found["a"].sum() + found["seen"].sum()).backward()
        module.optimizer.step()
    _check_counts(module.profile(), data)
