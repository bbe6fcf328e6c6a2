"""A module as a value: what `copy.deepcopy`, `pickle` and `torch.save` keep of it.

That is what it was made of and the weights of logical tables, which can be loaded by any process;
not the remap tables, files and connections it holds. One process has them all. Of several, each
has a part, and a part is not a module: that is refused, with what to call in its place.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rowtier.errors import UserError
from rowtier.plan.plan import Plan
from rowtier.runtime.options import RunOptions

if TYPE_CHECKING:
    from rowtier.runtime.module import ShardedEmbeddings


class PackedModule(NamedTuple):
    """Everything that makes a module what it is."""

    kind: type[ShardedEmbeddings]
    plan: Plan
    optimizer: Any
    options: RunOptions
    facts: dict[str, Any]  # attributes that users may set
    weights: dict[str, Any]
    state: dict[str, Any]
    trains_rows: bool


def packed(module: ShardedEmbeddings) -> PackedModule:
    """What a copy of a module needs; only if one process has all of it."""
    world = module.engine.world
    if world.size > 1:
        raise UserError(
            f"a copy or pickle of embeddings on {world.size} ranks: rank {world.rank} has a part "
            "of the rows only; call save_checkpoint or state_dict(), on all ranks, or "
            "embeddings.unsharded() for a module that has them all"
        )
    return PackedModule(
        type(module),
        module.plan,
        module.given_optimizer,
        replace(module.engine.options, init=None),  # weights are set, and functions may not pickle
        {name: getattr(module, name) for name in module.copied},
        module.state_dict(),
        module.optimizer.state_dict(),
        module.row_handle.requires_grad,
    )


def unpacked(*parts: Any) -> ShardedEmbeddings:
    """The module that was packed, on one process."""
    pack = PackedModule(*parts)
    options = {field.name: getattr(pack.options, field.name) for field in fields(RunOptions)}
    made = pack.kind(pack.plan, pack.optimizer, **options)
    for name, value in pack.facts.items():
        setattr(made, name, value)
    made.load_state_dict(pack.weights)
    made.optimizer.load_state_dict(pack.state)
    made.row_handle.requires_grad_(pack.trains_rows)
    return made
