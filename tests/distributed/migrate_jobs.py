"""What the worker processes do when a plan is changed in the middle of training."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from cases import cluster_of
from jobs import embeddings_of, look_up, shards_of
from strategies import counted

import rowtier
from rowtier import Band, Plan, Profile, Table
from rowtier.runtime import migrate
from rowtier.torch import Pipeline, ShardedEmbeddings

Steps = list[list[dict[str, Any]]]


def step(module: ShardedEmbeddings, batch: dict[str, Any], grads: dict[str, Any]) -> dict[str, Any]:
    """Train one step; what was looked up."""
    found = look_up(module, tensors(batch))
    outputs = list(found.values())
    back = [torch.from_numpy(grads[k]) + 0.125 * v.detach() for k, v in found.items()]
    torch.autograd.backward(outputs, back)
    module.optimizer.step()
    return {name: value.detach().numpy().copy() for name, value in found.items()}


def tensors(batch: dict[str, Any]) -> dict[str, Any]:
    """Arrays of a batch as torch has them."""
    return {
        name: tuple(None if a is None else torch.from_numpy(a) for a in entry)
        for name, entry in batch.items()
    }


def moved_and_reloaded(
    rank: int, group: Any, old: rowtier.Plan, new: rowtier.Plan, weights: dict[str, Any],
    steps: Steps, grads: Steps, options: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Train under a plan, migrate, train on; beside it the same through state that is loaded.

    Everything is compared here, bit for bit, as it is on one rank.
    """
    extra = options.pop("extra_memory", "1MiB")
    module = embeddings_of(old, group, weights, **dict(options))
    middle = len(steps) // 2
    for at in range(middle):
        step(module, steps[at][rank], grads[at][rank])
    for numbers in module.optimizer.param_groups:
        numbers["lr"] *= 0.5
    saved, state = module.state_dict(), module.optimizer.state_dict()
    loaded = embeddings_of(new, group, weights, **dict(options))
    loaded.load_state_dict(saved)
    loaded.optimizer.load_state_dict(state)
    shares: list[float] = []
    held = (module.optimizer, module.row_handle, module.engine, module.outputs, module.counters)
    with patch.object(migrate, "LEAST_EXTRA_BYTES", 1):  # so that small tables take many rounds
        migration = module.migrate(new, extra_memory=extra, progress=shares.append)
    now = (module.optimizer, module.row_handle, module.engine, module.outputs, module.counters)
    assert all(a is b for a, b in zip(held, now, strict=True))
    assert module.plan is new
    assert module.engine.step_number == loaded.engine.step_number == middle
    same_shards(module, loaded)
    for at in range(middle, len(steps)):
        mine, theirs = (step(m, steps[at][rank], grads[at][rank]) for m in (module, loaded))
        for name, values in theirs.items():
            assert np.array_equal(mine[name], values), name
    same_shards(module, loaded)
    counted = [one.count().links[:, :-1] for one in (module, loaded)]  # without headers
    assert np.array_equal(*counted)
    assert not shares or shares[-1] == 1.0
    return migration.to_dict()


def same_shards(one: ShardedEmbeddings, other: ShardedEmbeddings) -> None:
    """Weights and state of all shards, bit for bit."""
    for mine, theirs in zip(shards_of(one), shards_of(other), strict=True):
        assert mine[0] == theirs[0]
        assert np.array_equal(mine[1], theirs[1])
        assert mine[2] == theirs[2]
        assert np.array_equal(mine[3], theirs[3]), mine[0]
        assert mine[4].keys() == theirs[4].keys()
        for name, values in theirs[4].items():
            assert np.array_equal(mine[4][name], values), (mine[0], name)


def two_plans(size: int, seed: int = 0) -> tuple[rowtier.Plan, rowtier.Plan]:
    """Plans of two tables on some ranks: whole blocks first, then copies of other hot rows."""
    return plan_of(size, "blocks", seed), plan_of(size, "copies", seed + 1)


def plan_of(size: int, how: str, seed: int, rows: int = 40) -> rowtier.Plan:
    """Tables "t0" (adam) and "t1" (rowwise_adagrad)."""
    cluster, random = cluster_of((size,)), np.random.default_rng(seed)
    kinds = {"t0": "adam", "t1": "rowwise_adagrad"}
    stats = [
        counted(
            Table(
                name=name, num_embeddings=rows, embedding_dim=4, features=(name,), optimizer=kind
            ),
            random.integers(0, 9, rows),
        )
        for name, kind in kinds.items()
    ]
    scopes = cluster.scopes
    bands = {
        "blocks": (Band(start=0, stop=rows, scope=scopes[-1], tier="ram", order="blocks"),),
        "copies": (
            Band(start=0, stop=9, scope=scopes[0], tier="ram"),
            Band(start=9, stop=rows, scope=scopes[-1], tier="ram", exchange="rows"),
        ),
    }[how]
    return Plan.build("made", Profile(4, tuple(stats)), cluster, dict.fromkeys(kinds, bands))


def batch_of(rank: int, number: int) -> dict[str, Any]:
    """Ids for both tables."""
    random = np.random.default_rng((rank, number))
    return {name: torch.from_numpy(random.integers(0, 40, (3, 2))) for name in ("t0", "t1")}


def trained(module: ShardedEmbeddings, batch: Any) -> None:
    """One step."""
    sum(output.square().sum() for output in module(batch).values()).backward()
    module.optimizer.step()


def refused(rank: int, group: Any) -> dict[str, str]:
    """What is said to plans and moments that do not fit; the module is good all the while."""
    size = dist.get_world_size(group)
    old, new = two_plans(size)
    module = ShardedEmbeddings(old, None, group)
    twin = ShardedEmbeddings(old, None, group)
    said = {}

    def refuse(what: str, *args: Any, **options: Any) -> None:
        try:
            module.migrate(*args, **options)
            said[what] = "migrated"
        except rowtier.UserError as error:
            said[what] = f"{type(error).__name__}: {error}"
        for one in (module, twin):
            one.optimizer.zero_grad()
            trained(one, batch_of(rank, len(said)))
        same_shards(module, twin)

    refuse("other model", plan_of(size, "copies", 1, rows=41))
    refuse("other size", plan_of(size + 1, "copies", 1))
    refuse("no plan", "plan/")
    refuse("little memory", new, extra_memory=10)
    refuse("ranks differ", plan_of(size, "copies", 5 if rank else 1))
    refuse("one refuses", plan_of(size, "copies", 1, rows=41) if rank else new)
    module(batch_of(rank, 9))["t0"].sum().backward()
    refuse("gradients wait", new)
    module(batch_of(rank, 9))["t0"].sum().backward()
    torch.optim.SGD(module.parameters(), lr=1.0).zero_grad()  # they are dropped
    module.migrate(new)
    assert module.plan is new
    return said


def other_batches(rank: int, group: Any) -> dict[str, Any]:
    """Batches of before a migration, and what they give or say after it."""
    old, new = two_plans(dist.get_world_size(group))
    module = ShardedEmbeddings(old, None, group)
    before, batch = old.remapper(), batch_of(rank, 0)
    said, addressed = {}, before(batch)
    asked, made = module.ask_ahead(batch), module(batch)["t0"]
    module.migrate(new)
    for what, call in {
        "addressed": lambda: module(addressed),
        "asked of addressed": lambda: module.ask_ahead(addressed),
        "backward": lambda: made.sum().backward(),
    }.items():
        try:
            call()
            said[what] = "taken"
        except rowtier.UserError as error:
            said[what] = str(error)
    module.optimizer.zero_grad()
    with torch.no_grad():
        found = [module(given) for given in (batch, asked, new.remapper()(batch))]
    for one in found[1:]:
        assert all(torch.equal(one[name], values) for name, values in found[0].items())
    return said


def piped(rank: int, group: Any) -> None:
    """A pipeline goes on over a migration as a plain loop does."""
    old, new = two_plans(dist.get_world_size(group))
    batches = [batch_of(rank, number) for number in range(6)]
    one, other = (ShardedEmbeddings(old, None, group) for _ in range(2))
    for number, (_, outputs) in enumerate(Pipeline(one, batches)):
        sum(output.square().sum() for output in outputs.values()).backward()
        one.optimizer.step()
        if number == 2:
            one.migrate(new)
    for number, batch in enumerate(batches):
        trained(other, batch)
        if number == 2:
            other.migrate(new)
    same_shards(one, other)


def other_calls(rank: int, group: Any) -> str:
    """What ranks say of one that trains while the others migrate."""
    old, new = two_plans(dist.get_world_size(group))
    module = ShardedEmbeddings(old, None, group)
    trained(module, batch_of(rank, 0))
    try:
        module(batch_of(rank, 1)) if rank else module.migrate(new)
    except rowtier.MismatchError as error:
        return str(error)
    return "nothing"
