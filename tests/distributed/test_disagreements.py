"""Ranks that do not do the same all say who differs, and in what; nobody waits for ever."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import habits
from fault_kinds.disagreement_kinds import KINDS, plan_of
from fault_kinds.disagreements import Pair, disagree, missed
from habits import Sharded

from rowtier import MismatchError, UserError
from rowtier.runtime.stamps import CallFacts, Stamps
from rowtier.runtime.troubles import difference
from rowtier.torch import ShardedEmbeddings


@pytest.mark.parametrize("odd", [0, 1])
def test_every_disagreement_is_named_on_both_ranks(workers: Any, odd: int) -> None:
    found = {}
    for number, kind in enumerate(KINDS):
        if number % 2 == odd and not kind.whole_job:  # each once
            found[kind.name] = missed(kind.name, odd, workers.run(2, disagree, kind.name, odd, 7))
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_disagreements_of_two_threads_are_named() -> None:
    (kind,) = (kind.name for kind in KINDS if kind.whole_job)
    pair = Pair()
    said = pair.run(kind, 1, 7)
    pair.stop()
    assert said is not None
    assert missed(kind, 1, said) == []


def of_four(rank: int, group: Any, what: str) -> str:
    """What a rank of four says while rank 2 does something else."""
    odd = rank == 2
    try:
        model = Sharded(habits.plan_of(4), group, lr=0.25 if what == "made" and odd else 0.5)
        for step in range(3):
            loss = model(habits.batch_of(step, rank))
            if what == "backward" and step == 1 and odd:
                continue
            loss.backward()
            if what == "lr" and step == 1 and odd:
                model.embeddings.optimizer.param_groups[0]["lr"] = 0.25
            model.embeddings.optimizer.step()
    except MismatchError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("made", "rank 2 has lr of table 'a' 0.25 and rank 0 has lr of table 'a' 0.5: give all"),
        ("lr", r"rank 2 has lr of table 'a' and 1 more 0.25|and rank 2 has lr of .* 0.25: give"),
        ("backward", r"rank 2 is in forward"),
    ],
)
def test_all_of_four_ranks_name_the_one_that_differs(workers: Any, what: str, says: str) -> None:
    for said in workers.run(4, of_four, what):
        assert re.search(says, said), said


def test_stamps_fit_only_those_of_the_same_call_with_the_same_numbers() -> None:
    facts = CallFacts(steps=3, passes=1, numbers=(0.1, 0.0))
    others = [
        facts._replace(steps=4), facts._replace(passes=0), facts._replace(clip=1.0),
        facts._replace(trains=False), facts._replace(records=False), facts._replace(factor=0.98),
        facts._replace(numbers=(0.1000001, 0.0)), facts._replace(weighted=True),
    ]  # fmt: skip
    mine = _stamps("forward", facts)
    assert mine.fits(_stamps("forward", facts).value)
    assert not mine.fits(_stamps("backward", facts).value)
    for other in others:
        assert not mine.fits(_stamps("forward", other).value), other
    twice = _stamps("forward", facts)
    twice.begin("forward", facts)
    assert not mine.fits(twice.value)


def test_a_factor_that_was_rounded_otherwise_fits() -> None:
    for factor in (1.0, 0.25, 0.3, 1e-6, 7.0):
        mine = _stamps("forward", CallFacts(factor=factor))
        for near in (factor * (1 - 1e-6), factor * (1 + 1e-6)):
            assert mine.fits(_stamps("forward", CallFacts(factor=near)).value)


def _stamps(kind: str, facts: CallFacts) -> Stamps:
    made = Stamps()
    made.begin(kind, facts)
    return made


@pytest.mark.parametrize("times", [(0.0, 600.0), (-1.0, 5.0), (60.0, 59.0), (float("nan"), 5.0)])
def test_times_of_the_watchdog_must_make_sense(times: tuple[float, float]) -> None:
    with pytest.raises(UserError, match=r"watchdog_s .* give seconds, above 0"):
        ShardedEmbeddings(plan_of(), watchdog_s=times[0], watchdog_abort_s=times[1])


def test_a_field_that_one_rank_does_not_have_is_named() -> None:
    for odd in (0, 1):
        said: dict[int, dict[str, Any]] = {odd: {"a": 1, "dtype": "fp16"}, 1 - odd: {"a": 1}}
        found = difference(said)
        assert found is not None
        assert f"rank {odd} has dtype fp16" in found
