"""Ranks that do not do the same all say who differs, and in what; nobody waits for ever."""

from __future__ import annotations

import os
import re
import subprocess
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
from rowtier.runtime.engine import BACKWARD, STEP
from rowtier.runtime.exchange.stamps import CallFacts, CallKind, Settings, Stamps, Standing
from rowtier.runtime.exchange.troubles import difference
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
    now = Settings(numbers=(0.1, 0.0))
    others = [
        (4, 1, now), (3, 0, now),
        (3, 1, now._replace(clip=1.0)), (3, 1, now._replace(last_clip=1.0)),
        (3, 1, now._replace(trains=False)), (3, 1, now._replace(records=False)),
        (3, 1, now._replace(factor=0.98)), (3, 1, now._replace(weighted=True)),
        (3, 1, now._replace(numbers=(0.1000001, 0.0))),
    ]  # fmt: skip
    mine = _stamps("forward", (3, 1, now))
    assert mine.fits(_stamps("forward", (3, 1, Settings(numbers=(0.1, 0.0)))).value)
    assert not mine.fits(_stamps("backward", (3, 1, now)).value)
    for other in others:
        assert not mine.fits(_stamps("forward", other).value), other
    twice = _stamps("forward", (3, 1, now))
    twice.begin(CallKind("forward"), (3, 1, now))
    assert not mine.fits(twice.value)


def test_a_call_that_goes_on_fits_only_what_goes_on_alike() -> None:
    facts = (3, 1, Settings(numbers=(0.1, 0.0), factor=0.5))
    first, second, other = (_stamps("forward", facts) for _ in range(3))
    for stamps, kind in ((first, "backward"), (second, "backward"), (other, "step")):
        stamps.go_on(CallKind(kind), facts[2])
    assert first.fits(second.value)
    assert not first.fits(other.value)
    assert not first.fits(_stamps("forward", facts).value)
    assert [(call.kind, call.number, call.facts) for call in first.calls] == [
        ("forward", 1, facts), ("backward", 2, facts),
    ]  # fmt: skip


def test_a_call_that_goes_on_with_other_numbers_does_not_fit() -> None:
    now = Settings(numbers=(0.1, 0.0), factor=0.5)
    others = [now._replace(numbers=(0.2, 0.0)), now._replace(last_clip=1.0)]
    mine, *theirs = (_stamps("forward", (3, 1, now)) for _ in range(3))
    mine.go_on(STEP, now)
    for stamps, settings in zip(theirs, others, strict=True):
        stamps.go_on(STEP, settings)
        assert not mine.fits(stamps.value), settings
        assert stamps.calls[-1].facts == (3, 1, settings)


@pytest.mark.parametrize("first", [1.0, 0.25])
def test_a_factor_that_only_one_rank_rounds_otherwise_fits(first: float) -> None:
    before = Settings(factor=first)
    mine, other, far = (_stamps("forward", (3, 1, before)) for _ in range(3))
    mine.go_on(STEP, before)
    other.go_on(STEP, before._replace(factor=first * (1 + 1e-6)))
    far.go_on(STEP, before._replace(factor=first * 1.1))
    assert mine.fits(other.value)
    assert not mine.fits(far.value)


def test_backward_passes_that_one_rank_makes_more_do_not_cancel() -> None:
    now = Settings()
    mine, other = (_stamps("forward", (3, 1, now)) for _ in range(2))
    for kind in (BACKWARD, BACKWARD, STEP):
        mine.go_on(kind, now)
    other.go_on(STEP, now)
    assert not mine.fits(other.value)


def test_stamps_are_the_same_in_every_process() -> None:
    code = (
        "from rowtier.runtime.exchange.stamps import *; s = Stamps();"
        "now = Settings(numbers=(0.1, 1e-8));"
        "s.begin(CallKind('forward'), (3, 1, now)); s.go_on(CallKind('backward'), now);"
        "print(s.value)"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1")
    }  # fmt: skip
    assert len(seen) == 1


def test_standing_gives_the_same_settings_until_one_changes() -> None:
    standing = Standing()
    standing.takes((0.1,))
    first = standing.facts(0)[2]
    standing.looks_up(trains=True, records=True, weighted=False)
    standing.step(1.0)
    assert standing.facts(1)[2] is first
    standing.clips(2.0)
    standing.step(0.5)
    assert standing.facts(2)[2] == first._replace(last_clip=2.0, factor=0.5)
    standing.step(0.5)
    assert standing.facts(3)[2] == first._replace(factor=0.5)
    standing.looks_up(trains=False, records=True, weighted=True)
    assert standing.facts(3)[2] == first._replace(factor=0.5, trains=False, weighted=True)
    standing.passes = 2
    assert standing.facts(3)[1] == 2
    standing.are_dropped = lambda: True
    assert standing.facts(3)[1] == 0


def test_numbers_of_the_optimizer_are_seen_when_they_change() -> None:
    module = ShardedEmbeddings(habits.plan_of(1))
    (group, *_) = module.optimizer.param_groups
    numbers = module.engine.standing.settings.numbers
    group["lr"] = torch.tensor(0.25)
    module.optimizer._read_numbers()
    assert module.engine.standing.settings.numbers == (0.25, *numbers[1:])
    group["lr"].fill_(0.125)  # the same object
    module.optimizer._read_numbers()
    assert module.engine.standing.settings.numbers == (0.125, *numbers[1:])
    assert module.optimizer._optimizers[0].lr == 0.125


def test_a_factor_that_was_rounded_otherwise_fits() -> None:
    for factor in (1.0, 0.25, 0.3, 1e-6, 7.0):
        mine = _stamps("forward", (0, 0, Settings(factor=factor)))
        for near in (factor * (1 - 1e-6), factor * (1 + 1e-6)):
            assert mine.fits(_stamps("forward", (0, 0, Settings(factor=near))).value)


def _stamps(kind: str, facts: CallFacts) -> Stamps:
    made = Stamps()
    made.begin(CallKind(kind), facts)
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
