"""Weights and optimizer state by the names and shapes of logical tables, whatever the plan.

A value is a tensor of the whole table. With several ranks it is a DTensor cut by rows, so that
`torch.distributed.checkpoint` saves it once and cuts it anew for any other number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from rowtier.errors import MismatchError, UserError
from rowtier.runtime.blocks import block_of, gather, is_by_row, spread
from rowtier.runtime.engine import Engine
from rowtier.runtime.store.memory import TORCH_DTYPES
from rowtier.tables import Table

Array = NDArray[Any]
VOCABULARIES = "vocabularies"
_blank: ContextVar[bool] = ContextVar("blank", default=False)
_loads: ContextVar[bool] = ContextVar("loads", default=False)


class RowField(NamedTuple):
    """What a tensor of a state dict is."""

    engine: Engine
    table: Table
    field: str  # "weight" or a kind of state
    tensor: torch.Tensor


_noted: ContextVar[dict[int, RowField] | None] = ContextVar("noted", default=None)


@contextmanager
def noted() -> Iterator[dict[int, RowField]]:
    """Inside, the tensors of state dicts are noted, by the identity of each."""
    made: dict[int, RowField] = {}
    token = _noted.set(made)
    try:
        yield made
    finally:
        _noted.reset(token)


@contextmanager
def blank(*, loads: bool) -> Iterator[None]:
    """Inside, rows of state dicts have names and shapes but no values.

    With `loads` this is room for what is to be loaded, and growing vocabularies are left out.
    """
    tokens = _blank.set(True), _loads.set(loads)
    try:
        yield
    finally:
        _blank.reset(tokens[0])
        _loads.reset(tokens[1])


def weight_names(engine: Engine) -> dict[str, Table]:
    """The names of all weights, as TorchRec's collections have them, with their tables."""
    return {
        f"embedding{'s' if table.pooling == 'none' else '_bags'}.{table.name}.weight": table
        for table in engine.tables
    }


def weights_dict(engine: Engine) -> dict[str, torch.Tensor]:
    """All weights as logical tables, in their types; all ranks must call this."""
    _agree(engine, "state_dict()")
    return {
        name: _tensors(engine, table, ["weight"])["weight"]
        for name, table in weight_names(engine).items()
    }


def whole_weights(engine: Engine) -> dict[str, torch.Tensor]:
    """All weights as logical tables, each whole, on every rank; all ranks must call this."""
    return {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for name, tensor in weights_dict(engine).items()
    }


def every_tensor(engine: Engine) -> dict[str, torch.Tensor]:
    """What the state dict of a module has; all ranks must call this."""
    return weights_dict(engine) | vocabularies_dict(engine)


class Loaded(NamedTuple):
    """What became of a state dict."""

    missing: list[str]  # with their prefix, as they stand in the state dict
    unexpected: list[str]
    errors: list[str]


def load_all(engine: Engine, given: Mapping[str, Any], prefix: str) -> Loaded:
    """Take what `every_tensor` gave, behind a prefix; all ranks must call this."""
    weights, words = weight_names(engine), vocabulary_names(engine)
    wanted = [*weights, *words]
    found = {name: given[prefix + name] for name in wanted if prefix + name in given}
    missing = [prefix + name for name in wanted if name not in found]
    known = {prefix + name for name in wanted}
    unexpected = [key for key in given if key.startswith(prefix) and key not in known]
    try:
        load_weights(engine, {name: found[name] for name in weights if name in found})
        load_vocabularies(engine, found)
    except UserError as error:
        return Loaded(missing, unexpected, [str(error)])
    return Loaded(missing, unexpected, [])


def load_weights(engine: Engine, weights: Mapping[str, Any]) -> None:
    """Take weights of logical tables: whole tensors, or DTensors; all ranks must call this."""
    _agree(engine, "load_state_dict()")
    names = weight_names(engine)
    for name, tensor in weights.items():
        _check(name, names[name], "weight", tensor)
    engine.all_changed()
    for name, tensor in weights.items():
        _load(engine, names[name], {"weight": tensor})


def vocabularies_dict(engine: Engine) -> dict[str, torch.Tensor]:
    """What the vocabularies of growing tables are by now; all ranks must call this."""
    if engine.growing is None or _loads.get():
        return {}
    return {
        _vocabulary_name(table, key): torch.from_numpy(array)
        for table in engine.growing.tables
        for key, array in engine.growing.state(table).items()
    }


def vocabulary_names(engine: Engine) -> dict[str, tuple[str, str]]:
    """The names of all tensors of growing vocabularies, with table and key."""
    if engine.growing is None:
        return {}
    return {
        _vocabulary_name(table, key): (table, key)
        for table in engine.growing.tables
        for key in engine.growing.state_names(table)
    }


def load_vocabularies(engine: Engine, given: Mapping[str, Any]) -> None:
    """Take vocabularies that are whole; all ranks must call this."""
    states: dict[str, dict[str, Array]] = {}
    for name, (table, key) in vocabulary_names(engine).items():
        if name in given:
            states.setdefault(table, {})[key] = np.asarray(given[name].detach().cpu().numpy())
    for table, state in states.items():
        assert engine.growing is not None
        if len(state) == len(engine.growing.state_names(table)):
            engine.growing.load(table, state)


def _vocabulary_name(table: str, key: str) -> str:
    return f"{VOCABULARIES}.{table}.{key}"


def state_dict(engine: Engine) -> dict[str, dict[str, torch.Tensor]]:
    """Optimizer state per weight, and the number of steps; all ranks must call this."""
    _agree(engine, "state_dict() of the optimizer")
    return {name: state_of(engine, name) for name in weight_names(engine)}


def state_of(engine: Engine, name: str) -> dict[str, torch.Tensor]:
    """Optimizer state of one weight, and the number of steps; all ranks must call this."""
    table = weight_names(engine)[name]
    state = _tensors(engine, table, state_names(engine, table))
    return state | {"step": torch.tensor(engine.step_number)}


def load_state(engine: Engine, state: Mapping[str, Mapping[str, Any]]) -> None:
    """Take optimizer state of logical tables; all ranks must call this."""
    _agree(engine, "load_state_dict() of the optimizer")
    names = weight_names(engine)
    for name, table in names.items():
        found = state.get(name, {})
        for field in state_names(engine, table):
            if field not in found:
                raise MismatchError(
                    f"table {table.name!r} is trained with {table.optimizer}, which keeps "
                    f"{field!r}, and the optimizer state given has {_listed(found)} for {name}: "
                    "load the state of the same optimizer, or load the weights only"
                )
            _check(name, table, field, found[field])
    engine.all_changed()
    for name, table in names.items():
        fields = state_names(engine, table)
        if fields:
            _load(engine, table, {field: state[name][field] for field in fields})
    steps = [int(state[name]["step"]) for name in names if "step" in state.get(name, {})]
    if steps:
        engine.step_number = max(steps)


def _agree(engine: Engine, call: str) -> None:
    if not _blank.get():
        engine.refuse(call)
        engine.wire.agree(call)
        engine.begin(call)


def state_names(engine: Engine, table: Table) -> tuple[str, ...]:
    """The kinds of state that a table's optimizer keeps."""
    (optimizer,) = (group.optimizer for group in engine.groups if table.name in group.tables)
    return optimizer.state_names


def _listed(state: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, state)) or "nothing"


def _shape(table: Table, field: str) -> tuple[int, ...]:
    rows = table.num_embeddings
    return (rows,) if is_by_row(table, field) else (rows, table.embedding_dim)


def _check(name: str, table: Table, field: str, tensor: Any) -> None:
    """Refuse what is not the field of a table, before any rank sends anything."""
    what = name if field == "weight" else f"{field!r} of {name}"
    if not isinstance(tensor, torch.Tensor):
        raise UserError(
            f"table {table.name!r}: {what} is a {type(tensor).__name__}; give a tensor, or a "
            "DTensor (torch.distributed.checkpoint turns other kinds into these)"
        )
    wanted, given = _shape(table, field), tuple(tensor.shape)
    if wanted == given:
        return
    if field == "weight":
        out = (
            "plan again with num_embeddings and embedding_dim of the checkpoint in tables.yaml, "
            "or leave the weight out and load with strict=False"
        )
    else:
        out = f"load the state of a table of this shape trained with {table.optimizer}"
    raise MismatchError(
        f"table {table.name!r}: {what} has shape {list(given)}, and the plan wants "
        f"{list(wanted)}: {out}"
    )


def _tensors(engine: Engine, table: Table, fields: Any) -> dict[str, torch.Tensor]:
    world = engine.world
    first, last = block_of(table.num_embeddings, world.rank, world.size)
    blocks = {}
    for field in fields:
        wide = field == "weight" and table.dtype == "fp32"
        dtype = np.dtype("u2" if field == "weight" and not wide else "f4")
        width = 1 if is_by_row(table, field) else table.embedding_dim
        blocks[field] = np.empty((last - first, width), dtype=dtype)
    if blocks and not _blank.get():
        gather(engine, table, blocks)
    found = {field: _logical(engine, table, field, block) for field, block in blocks.items()}
    made = _noted.get()
    if made is not None:
        made.update({id(t): RowField(engine, table, field, t) for field, t in found.items()})
    return found


def _logical(engine: Engine, table: Table, field: str, block: Array) -> torch.Tensor:
    """A rank's block as (its part of) a tensor of the whole table."""
    tensor, shape = torch.from_numpy(block), torch.Size(_shape(table, field))
    if block.dtype == np.uint16:
        tensor = tensor.view(TORCH_DTYPES[table.dtype])
    tensor = tensor.reshape(-1, *shape[1:])
    if engine.world.size == 1:
        return tensor
    stride = torch.empty(shape, device="meta").stride()
    mesh = DeviceMesh.from_group(engine.world.group, "cpu")
    return DTensor.from_local(tensor, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)


def _load(engine: Engine, table: Table, fields: Mapping[str, torch.Tensor]) -> None:
    blocks = {}
    for field, tensor in fields.items():
        dtype = TORCH_DTYPES[table.dtype] if field == "weight" else torch.float32
        local = _local(engine, table, tensor).detach().cpu().to(dtype).contiguous()
        if dtype != torch.float32:
            local = local.view(torch.uint16)
        width = 1 if is_by_row(table, field) else table.embedding_dim
        blocks[field] = local.numpy().reshape(len(local), width)
    spread(engine, table, blocks)


def _local(engine: Engine, table: Table, tensor: torch.Tensor) -> torch.Tensor:
    """This rank's block of a tensor that all ranks have, whole or in parts."""
    world = engine.world
    if isinstance(tensor, DTensor):
        if _same_ranks(tensor.device_mesh, world.group):
            return tensor.redistribute(placements=[Shard(0)]).to_local()
        tensor = tensor.full_tensor()
    first, last = block_of(table.num_embeddings, world.rank, world.size)
    return tensor[first:last]


def _same_ranks(mesh: DeviceMesh, group: dist.ProcessGroup | None) -> bool:
    if group is None or mesh.ndim != 1:
        return False
    return bool(mesh.mesh.tolist() == dist.get_process_group_ranks(group))
