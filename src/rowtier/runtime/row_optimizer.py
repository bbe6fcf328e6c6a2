"""`EmbeddingOptimizer`: torch's face of what updates the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch

from rowtier.errors import MismatchError, UserError
from rowtier.runtime.engine import STEP, Engine
from rowtier.runtime.groups import Group
from rowtier.runtime.optim import Optimizer
from rowtier.runtime.read_only import refuse_training
from rowtier.runtime.row_gradient import Waiting

_NO_NUMBERS = ("params", "tables", "kind")  # of a parameter group
_READ = itemgetter.__call__


class EmbeddingOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """Updates the rows of `ShardedEmbeddings`; a learning rate scheduler can drive it.

    A parameter group for every distinct optimizer that was given: its `tables` and `kind`, and
    all its numbers (`lr`, `weight_decay`, `eps`, ...), which every step reads anew.
    `initial_accumulator_value` is what state began with, and no step reads it. `zero_grad` drops
    gradients that wait; without it, or `step`, the gradients of several backward passes add up.
    Works with a `GradScaler`.
    """

    def __init__(self, engine: Engine, waiting: Waiting):
        self._engine, self._waiting = engine, waiting
        self._complete = False
        groups = [
            # One tensor each: torch allows it in one group only. The first is the handle.
            {"params": [torch.zeros(0) if index else waiting.handle], "tables": tables,
             "kind": optimizer.kind, **optimizer.numbers()}
            for index, (optimizer, tables) in enumerate(engine.groups)
        ]  # fmt: skip
        # What all groups have: schedulers look here whether there are betas, or a momentum.
        common = set.intersection(*(set(group) for group in groups)) - {*_NO_NUMBERS}
        super().__init__(groups, {name: groups[0][name] for name in common})
        self._complete = True
        self._readers = [itemgetter(*optimizer.numbers()) for optimizer, _ in engine.groups]
        self._read: list[Any] = []  # of which these were made:
        self._optimizers: list[Optimizer] = []
        engine.standing.number_names = tuple(_number_names(engine.groups))
        engine.standing.read_numbers = self._read_numbers
        self._read_numbers()

    def _read_numbers(self) -> None:
        """Take the numbers of all groups as they are now, for rows and for other ranks."""
        read = list(map(_READ, self._readers, self.param_groups))
        if read == self._read:
            return
        values = [value for group in read for value in group]
        pairs = zip(self._engine.groups, self.param_groups, strict=True)
        self._optimizers = [_as_of_now(made.optimizer, group) for made, group in pairs]
        self._engine.standing.takes(tuple(_floats(values)))
        # A tensor may change and stay the same object, so it is read every time.
        is_fixed = not any(isinstance(value, torch.Tensor) for value in values)
        self._read = read if is_fixed else []

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Groups are what was given when the module was made; there are no more of them."""
        if self._complete:
            raise UserError(
                "add_param_group: rows are grouped when the module is made; give optimizers by "
                "table there, optimizer={'a table': SGD(lr=0.1), '*': SGD(lr=0.01)}"
            )
        super().add_param_group(param_group)

    def step(self, closure: Any = None) -> Any:
        """Apply the gradients since the last step; all ranks must call this."""
        refuse_training(self._engine.plan, STEP)
        loss = closure() if closure is not None else None
        self._read_numbers()
        with self._engine.inside(STEP):
            self._engine.step(self._optimizers, self._waiting.take())
        if self._engine.dense_time is not None:
            self._engine.dense_time.end_step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002
        """Drop gradients that were not applied."""
        self._waiting.drop()

    def state_dict(self) -> dict[str, Any]:
        """State by the names of the logical tables; all ranks must call this."""
        from rowtier.runtime.logical import state_dict

        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.param_groups
        ]
        return {"state": state_dict(self._engine), "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take state that was saved under any plan and world size; all ranks must call this.

        Numbers are taken table by table, so tables may have been grouped otherwise.
        """
        from rowtier.runtime.logical import load_state

        saved = [_saved_numbers(group, state_dict["param_groups"]) for group in self.param_groups]
        load_state(self._engine, state_dict["state"])
        for group, numbers in zip(self.param_groups, saved, strict=True):
            group.update(numbers)


def _floats(values: Sequence[Any]) -> Iterator[float]:
    for value in values:  # betas are several
        yield from map(float, value if isinstance(value, (tuple, list)) else [value])


def _as_of_now(optimizer: Optimizer, group: Mapping[str, Any]) -> Optimizer:
    """An optimizer with the numbers that its group has by now; schedulers may set tensors."""
    values = {
        name: value.item() if isinstance(value, torch.Tensor) else value
        for name, value in group.items()
    }
    return optimizer.with_numbers(values)


def _number_names(groups: Sequence[Group]) -> Iterator[str]:
    """What people call each number, such as "lr of table 'a'"."""
    for optimizer, tables in groups:
        more = f" and {len(tables) - 1} more" if len(tables) > 1 else ""
        for name, value in optimizer.numbers().items():
            parts = len(value) if isinstance(value, tuple) else 0
            for place in [f"[{i}]" for i in range(parts)] or [""]:
                yield f"{name}{place} of table {tables[0]!r}{more}"


def _saved_numbers(
    group: Mapping[str, Any], saved: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any]:
    """The numbers that a checkpoint has for the tables of a group: the same for all of them."""
    found: dict[str, dict[str, Any]] = {}
    for table in group["tables"]:
        for entry in saved:
            # Old checkpoints have a group for each kind, and name no tables.
            if entry["kind"] == group["kind"] and table in entry.get("tables", (table,)):
                found[table] = {k: v for k, v in entry.items() if k not in _NO_NUMBERS}
    for table, numbers in found.items():
        first = next(iter(found))
        differing = {k: v for k, v in numbers.items() if found[first].get(k) != v}
        if differing:
            raise MismatchError(
                f"tables {first!r} and {table!r} are one parameter group here and were saved with "
                f"other numbers, {_shown(found[first], differing)} and "
                f"{_shown(numbers, differing)}: give them optimizers that differ, "
                f"optimizer={{{first!r}: …, {table!r}: …}}, or load a state dict without "
                "'param_groups' entries ([]) to keep the numbers that are here"
            )
    return next(iter(found.values()), {})


def _shown(numbers: Mapping[str, Any], names: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {numbers.get(name)}" for name in names)
