"""Weights of modules that are not sharded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from rowtier.errors import MismatchError, UserError
from rowtier.plan.plan import Plan
from rowtier.runtime.store.memory import TORCH_DTYPES
from rowtier.tables import Table

_REFUSED = {
    "padding_idx": "a row that is never trained or pooled is not supported: leave the padding "
    "out of the batch by its lengths, and make the module without padding_idx",
    "max_norm": "rows are not rescaled at lookup: make the module without max_norm",
    "scale_grad_by_freq": "gradients are not divided by how often a row occurs: make the module "
    "without scale_grad_by_freq",
}


def weights_of(module: nn.Module, plan: Plan) -> dict[str, torch.Tensor]:
    """The weights of every table of a plan, out of a module that has them all.

    None of any if the module is on the meta device.
    """
    tables = {table.name: table for table, _ in plan}
    found = _tables_in(module, tables)
    _check_names(found, tables)
    for name, entry in found.items():
        _check_table(entry, tables[name])
    on_meta = [name for name, entry in found.items() if entry.weight.is_meta]
    if on_meta and len(on_meta) < len(found):
        raise UserError(
            f"table {on_meta[0]!r} is on the meta device and has no weights, and others have: make "
            "all of them on the meta device, or none"
        )
    return {} if on_meta else {n: entry.weight.detach().cpu() for n, entry in found.items()}


def is_frozen(module: nn.Module, plan: Plan) -> bool:
    """Whether the tables of a module do not train; all of them, or none."""
    tables = _tables_in(module, {table.name: table for table, _ in plan})
    frozen = [name for name, entry in tables.items() if not entry.weight.requires_grad]
    if frozen and len(frozen) < len(tables):
        raise UserError(
            f"{_some(frozen)} of the module's tables do not train (requires_grad=False), and "
            "others do: make all of them trainable, and give these a learning rate of 0, "
            f"optimizer={{{frozen[0]!r}: SGD(lr=0), '*': …}}"
        )
    return bool(frozen)


def check_draws(module: nn.Module) -> None:
    """Refuse TorchRec tables on the meta device that want first weights which we do not draw."""
    configs = getattr(module, "embedding_bag_configs", getattr(module, "embedding_configs", list))
    for config in configs():
        limit, draws = config.num_embeddings**-0.5, config.init_fn
        found = getattr(draws, "keywords", {}) if isinstance(draws, partial) else {}
        if not (math.isclose(found.get("b", 0), limit) and math.isclose(-found.get("a", 0), limit)):
            raise UserError(
                f"table {config.name!r} is on the meta device and has an init_fn, weight_init_min "
                "or weight_init_max of its own, which fills whole tables: make the collection on "
                "the cpu, or give init=, a function of a table and some of its rows"
            )


def is_weighted(module: nn.Module) -> bool:
    """Whether a module weighs the ids of a KeyedJaggedTensor; only TorchRec's are asked."""
    return _says(module, "is_weighted")


def returns_ids(module: nn.Module) -> bool:
    """Whether a module returns ids beside their rows; only TorchRec's are asked."""
    return _says(module, "need_indices")


def _says(module: nn.Module, what: str) -> bool:
    said = getattr(module, what, None)
    return bool(said()) if callable(said) else False


def _tables_in(module: nn.Module, tables: Mapping[str, Table]) -> dict[str, Any]:
    if isinstance(module, (nn.EmbeddingBag, nn.Embedding)):
        if len(tables) != 1:
            raise MismatchError(
                f"one {type(module).__name__} was given, and the plan has {len(tables)} tables "
                f"({_some(tables)}): give an nn.ModuleDict with a module per table name"
            )
        return {next(iter(tables)): module}
    if isinstance(module, nn.ModuleDict):
        return dict(module.items())
    # TorchRec's collections, known by what they offer, so that TorchRec is not imported.
    for inside, configs in (
        ("embedding_bags", "embedding_bag_configs"),
        ("embeddings", "embedding_configs"),
    ):
        if isinstance(getattr(module, inside, None), nn.ModuleDict) and hasattr(module, configs):
            _check_configs(getattr(module, configs)(), tables)
            return dict(getattr(module, inside).items())
    raise UserError(
        f"from_module cannot take a {type(module).__name__}: give an nn.EmbeddingBag, an "
        "nn.Embedding, an nn.ModuleDict of those by table name, or TorchRec's "
        "EmbeddingBagCollection or EmbeddingCollection, unsharded"
    )


def _check_names(found: Iterable[str], tables: Iterable[str]) -> None:
    given, wanted = set(found), set(tables)
    if given != wanted:
        missing, strange = sorted(wanted - given), sorted(given - wanted)
        parts = [f"lacks {_some(missing)}"] if missing else []
        parts += [f"has {_some(strange)}, unknown to the plan"] if strange else []
        raise MismatchError(
            f"the module {' and '.join(parts)}: name the modules as the plan's tables, or plan for "
            "the module's tables"
        )


def _check_configs(configs: Iterable[Any], tables: Mapping[str, Table]) -> None:
    """Features, and the order of tables, decide where outputs stand."""
    configs = list(configs)
    for config in configs:
        table = tables.get(config.name)
        if table is not None and tuple(config.feature_names) != table.features:
            raise MismatchError(
                f"table {table.name!r} reads {', '.join(config.feature_names)} in the module and "
                f"{', '.join(table.features)} in the plan: fix `features` in tables.yaml and plan "
                "again"
            )
    order = [config.name for config in configs if config.name in tables]
    planned = [name for name in tables if name in order]
    if order != planned:
        raise MismatchError(
            f"the module has its tables in the order {_some(order)}, and the plan in the order "
            f"{_some(planned)}: outputs would stand in other columns; list them in the module's "
            "order in tables.yaml and plan again"
        )


def _check_table(module: Any, table: Table) -> None:
    name = f"table {table.name!r}"
    if not isinstance(module, (nn.EmbeddingBag, nn.Embedding)):
        raise UserError(
            f"{name}: a {type(module).__name__}; give an nn.EmbeddingBag or nn.Embedding"
        )
    _check_kind(module, table)
    for option, why in _REFUSED.items():
        value = getattr(module, option, None)
        if value is not None and value is not False:
            raise UserError(f"{name}: {option}={value}: {why}")
    wanted, given = (table.num_embeddings, table.embedding_dim), tuple(module.weight.shape)
    if wanted != given:
        raise MismatchError(
            f"{name}: the module's weight has shape {list(given)}, and the plan wants "
            f"{list(wanted)}: fix num_embeddings and embedding_dim in tables.yaml and plan again, "
            "or resize the module"
        )
    dtype, stored = module.weight.dtype, TORCH_DTYPES[table.dtype]
    if torch.promote_types(dtype, stored) != stored:
        raise MismatchError(
            f"{name}: the module's weight is {dtype}, and the plan's table {table.dtype}, which "
            f"would round it: call module.to({stored}) if that is meant, or fix `dtype` in "
            "tables.yaml and plan again"
        )


def _check_kind(module: Any, table: Table) -> None:
    given = module.mode if isinstance(module, nn.EmbeddingBag) else "none"
    if given == "max":
        raise UserError(
            f"table {table.name!r}: mode='max' is not supported, since partial results of several "
            "ranks are added up: use 'sum' or 'mean'"
        )
    if given != table.pooling:
        raise MismatchError(
            f"table {table.name!r} has pooling: {table.pooling} in the plan, and the module is an "
            f"{type(module).__name__}" + (f" with mode={given!r}" if given != "none" else "")
            + f": say `pooling: {given}` in tables.yaml and plan again"
        )  # fmt: skip


def _some(names: Iterable[str]) -> str:
    listed = [repr(name) for name in names]
    return ", ".join(listed[:6]) + (f" and {len(listed) - 6} more" if len(listed) > 6 else "")
