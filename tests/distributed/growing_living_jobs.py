"""What ranks do with growing tables while plans, saves and deltas come in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from growing_jobs import Samples, facts_of, features_of, first_values, part_of, train_step

import rowtier
from rowtier import Plan
from rowtier.runtime.checkpoint import row_parts
from rowtier.torch import SGD, ShardedEmbeddings, load_checkpoint, save_checkpoint


class GrowingRun:
    """A module of one rank that trains on its part of global batches."""

    def __init__(self, rank: int, group: Any, plan: Plan, optimizer: Any = None, **options: Any):
        optimizer = optimizer or SGD(lr=0.125)
        self.module = ShardedEmbeddings(
            plan, optimizer, group, gradients="sum", init=first_values, **options
        )
        self.rank, self.group = rank, group
        self.parts = {"model": self.module, "rows": self.module.optimizer}

    def train(self, batches: list[Samples]) -> None:
        """A step for each batch."""
        for samples in batches:
            train_step(self.module, part_of(samples, self.rank, self.group.size()))

    def save(self, folder: Path, **how: Any) -> Any:
        """Save everything."""
        with patch.object(row_parts, "MOST_CHANGED", 2.0):  # small tables change all over
            return save_checkpoint(folder, process_group=self.group, **how, **self.parts)


def growing_deltas(
    rank: int, group: Any, plans: list[Plan], batches: list[Samples], folder: Path
) -> list[list[Any]]:
    """Deltas with a migration between them; saves of the same moments, and the ids of each."""
    run = GrowingRun(rank, group, plans[0], deltas=True)
    run.train(batches[:2])
    run.save(folder / "base")
    ids = [facts_of(run.module)["ids"]]
    for number in (1, 2, 3):
        if number == 2:
            run.module.migrate(plans[1])
        run.train(batches[2 * number : 2 * number + 2])
        run.module.delta(folder / f"delta-{number}")
        pending = run.save(folder / f"save-{number}", wait=False)
        ids.append(facts_of(run.module)["ids"])
        pending.wait()
    return ids


def migrated_and_reloaded(
    rank: int, group: Any, plans: list[Plan], batches: list[Samples], optimizer: Any, folder: Path
) -> list[int]:
    """Migrate in the middle of training; beside it the same through a save. Counts of ids."""
    middle, sizes = len(batches) // 2, []
    run = GrowingRun(rank, group, plans[0], optimizer)
    run.train(batches[:middle])
    run.save(folder)
    other = GrowingRun(rank, group, plans[1], optimizer)
    load_checkpoint(folder, process_group=group, **other.parts)
    run.module.migrate(plans[1])
    pending = []
    for one in (run, other):
        held = one.module.engine.growing
        assert one.module.remapper.growing is held
        # Two lookups before a step: rows of the first stay, whoever asks for rows in the second.
        first, second = (
            one.module(features_of(part_of(batches[at], rank, group.size())))
            for at in (middle, middle + 1)
        )
        (sum(out.sum() for out in first.values()) + 2 * second["b"].sum()).backward()
        one.module.optimizer.step()
        one.train(batches[middle + 2 :])
        pending.append(state_of(one.module))
        sizes.append(held.tables["t"].vocabulary.size)
    same_state(*pending)
    return sizes


def state_of(module: ShardedEmbeddings) -> dict[str, Any]:
    """Everything that training goes on from: rows, their state, and what decides on ids."""
    growing = module.engine.growing
    assert growing is not None
    return {**facts_of(module), "growing": growing.state("t")}


def same_state(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Two states are the same in every bit."""
    assert one["ids"] == other["ids"]
    assert torch.equal(one["weights"], other["weights"])
    for part in ("state", "growing"):
        assert one[part].keys() == other[part].keys()
        for name, values in one[part].items():
            assert np.array_equal(np.asarray(values), np.asarray(other[part][name])), name


def saved_by_rows(
    rank: int, group: Any, plan: Plan, batches: list[Samples], folder: Path
) -> list[str]:
    """A save of what changed and one behind training load as a full save does."""
    run = GrowingRun(rank, group, plan, deltas=True)
    run.train(batches[:2])
    run.save(folder / "run")
    run.train(batches[2:4])
    names = []
    for how in ({"delta_of": True}, {"delta_of": True, "wait": False}, {"wait": False}):
        saved = run.save(folder / "run", **how)
        full = run.save(folder / "full")
        run.train(batches[4:5])
        saved = saved if isinstance(saved, Path) else saved.wait()
        states = []
        for save in (saved, full):
            other = GrowingRun(rank, group, plan)
            load_checkpoint(save, process_group=group, **other.parts)
            other.train(batches[5:])
            states.append(state_of(other.module))
        same_state(*states)
        names.append(saved.name)
    return names


def replanned(
    rank: int, group: Any, plan: Plan, batches: list[Samples]
) -> tuple[dict[str, Any], Plan, list[Any]]:
    """Count, plan anew for the vocabulary of now, migrate, train on; the state, plan and ids."""
    run, kept = (GrowingRun(rank, group, plan, heat_counts=1) for _ in range(2))
    run.train(batches[:4])
    profile = run.module.profile(reset=True)
    ids = facts_of(run.module)["ids"]
    words = profile["t"].vocabulary
    assert words is not None
    assert words.ids.tolist() == ids
    new = rowtier.make_plan(profile, plan.cluster)
    run.module.migrate(new)
    run.train(batches[4:])
    kept.train(batches)
    same_state(state_of(run.module), state_of(kept.module))
    again = run.module.profile()["t"]
    assert again.vocabulary is not None
    assert again.vocabulary.ids.tolist() == facts_of(run.module)["ids"]
    counted = sum(len(bag) for samples in batches[4:] for sample in samples for bag in sample)
    assert again.counts is not None
    assert int(again.counts.counts.sum()) == counted
    return state_of(run.module), new, ids
