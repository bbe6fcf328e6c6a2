"""The optimizer of rows in TorchRec's form: parameters, state and groups by the names of weights.

TorchRec combines optimizers that name their parameters (`CombinedOptimizer`) and reads and writes
their state tensor by tensor. Rows have no parameters, so a placeholder on the meta device stands
for each table; its state is gathered from all ranks when it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any
from weakref import WeakValueDictionary

import torch
from torchrec.optim.keyed import KeyedOptimizer

from rowtier.errors import UserError
from rowtier.runtime import logical
from rowtier.runtime.engine import Engine
from rowtier.runtime.row_optimizer import EmbeddingOptimizer
from rowtier.runtime.store.memory import TORCH_DTYPES

_HANDLE = "row_gradients"  # not the name it has in the model, where other optimizers may have it


class KeyedRowOptimizer(KeyedOptimizer):  # type: ignore[misc]
    """Steps the rows of a collection; learning rates are those of `embeddings.optimizer`.

    All ranks must step, and read or load its state, together.
    """

    def __init__(self, optimizer: EmbeddingOptimizer, engine: Engine):
        self._rows = optimizer
        tables = logical.weight_names(engine)
        params = {
            name: torch.empty(
                table.num_embeddings, table.embedding_dim, device="meta",
                dtype=TORCH_DTYPES[table.dtype],
            )
            for name, table in tables.items()
        }  # fmt: skip
        by_table = {table.name: params[name] for name, table in tables.items()}
        groups = [
            _Group(group, [by_table[name] for name in group["tables"]])
            for group in optimizer.param_groups
        ]
        # Whoever scales gradients, as GradScaler does, finds those of all rows here.
        handle = optimizer.param_groups[0]["params"][0]
        groups[0]["params"].append(handle)
        super().__init__({**params, _HANDLE: handle}, _State(engine, params), groups)

    def step(self, closure: Any = None) -> Any:
        """Apply the gradients since the last step; all ranks must call this."""
        return self._rows.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop gradients that were not applied."""
        self._rows.zero_grad(set_to_none)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take state that was saved under any plan; all ranks must call this."""
        held = list(self.state.values())  # what is read while these are held is written back
        super().load_state_dict(state_dict)
        del held

    def post_load_state_dict(self) -> None:
        """Give the rows the state that was copied into what was read of it."""
        self.state.write_back()

    def add_param_group(self, param_group: Any) -> None:
        """Refused: the tables are those of the plan."""
        raise UserError(
            "the optimizer of rows has the tables of its plan: give other parameters an optimizer "
            f"of their own, and combine the two ({len(param_group.get('params', ()))} were given)"
        )


class _Group(MutableMapping[str, Any]):
    """A parameter group of the rows' optimizer, with placeholders for its tables."""

    def __init__(self, group: dict[str, Any], params: list[torch.Tensor]):
        self._group, self._params = group, params

    def __getitem__(self, key: str) -> Any:
        return self._params if key == "params" else self._group[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._group[key] = value

    def __delitem__(self, key: str) -> None:
        del self._group[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._group)

    def __len__(self) -> int:
        return len(self._group)


class _Fields(dict[str, Any]):
    """State of one table; a class of its own because plain dicts cannot be held weakly."""


class _State(Mapping[torch.Tensor, _Fields]):
    """State by placeholder, gathered when it is read, and kept only while somebody holds it."""

    def __init__(self, engine: Engine, params: Mapping[str, torch.Tensor]):
        self._engine = engine
        self._names = {weight: name for name, weight in params.items()}
        self._held: WeakValueDictionary[str, _Fields] = WeakValueDictionary()

    def __getitem__(self, weight: torch.Tensor) -> _Fields:
        name = self._names[weight]
        found = self._held.get(name)
        if found is None:
            found = _Fields(logical.state_of(self._engine, name))
            self._held[name] = found
        return found

    def __contains__(self, weight: object) -> bool:
        return weight in self._names  # without gathering it

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def write_back(self) -> None:
        """Give the rows what is held, if it is all of it."""
        held = dict(self._held)
        if len(held) == len(self._names):
            logical.load_state(self._engine, held)
