"""TorchRec models and our tables: what a model holds, and a model that holds some tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torchrec
from torch import nn
from torchrec import optim

from rowtier.errors import MismatchError, UserError
from rowtier.runtime.groups import OTHERS
from rowtier.runtime.optim import KINDS
from rowtier.runtime.optim import Optimizer as RowOptimizer
from rowtier.runtime.torch_optimizers import instead_of
from rowtier.tables import Optimizer, Table, Tables

BATCH_SIZE = 512  # what TorchRec's planner takes if it is told nothing
POOLED = "pooled"  # where `model_of` puts tables that are pooled
SEQUENCE = "sequence"  # and those that are not, with their width behind

_OPTIMIZERS: dict[Any, Optimizer] = {
    torch.optim.SGD: "sgd",
    optim.SGD: "sgd",
    torch.optim.Adagrad: "adagrad",
    optim.Adagrad: "adagrad",
    optim.RowWiseAdagrad: "rowwise_adagrad",
    torch.optim.Adam: "adam",
    torch.optim.SparseAdam: "adam",
    optim.Adam: "adam",
}
_CLASSES: dict[Optimizer, Any] = {  # those of equal state, where TorchRec has not the same
    "sgd": optim.SGD,
    "momentum": optim.LarsSGD,
    "adagrad": optim.Adagrad,
    "rowwise_adagrad": optim.RowWiseAdagrad,
    "adam": optim.Adam,
    "adamw": optim.Adam,
}
_DTYPES = {"fp32": "FP32", "fp16": "FP16", "bf16": "BF16"}


def tables(
    module: Any, batch_size: int = BATCH_SIZE, optimizer: Optimizer = "rowwise_adagrad"
) -> Tables:
    """All embedding tables of a model, by walking it.

    `optimizer` is for tables that do not say theirs by `apply_optimizer_in_backward`. There a
    class means what TorchRec makes of it, fbgemm's kind: Adam with weight decay is `adamw`.
    """
    found: list[Table] = []
    for _, collection in collections(module):
        weights = dict(collection.named_parameters())
        for config in configs(collection):
            found.append(Table.from_torchrec(config, _optimizer(weights, config.name, optimizer)))
    if not found:
        raise UserError(
            f"{type(module).__name__} holds no EmbeddingBagCollection and no EmbeddingCollection; "
            "pass the model as it is before DistributedModelParallel"
        )
    _check_names(module)
    return Tables(batch_size=batch_size, tables=tuple(found))


def paths(module: Any) -> dict[str, str]:
    """Which module of a model holds each table, by its path."""
    return {
        config.name: path
        for path, collection in collections(module)
        for config in configs(collection)
    }


def collections(module: Any) -> Iterator[tuple[str, Any]]:
    """Every collection of embedding tables in a model, with its path."""
    kinds = (torchrec.EmbeddingBagCollection, torchrec.EmbeddingCollection)
    for path, part in module.named_modules():
        if isinstance(part, kinds):
            yield path, part


def configs(collection: Any) -> list[Any]:
    """The configs of a collection's tables."""
    if isinstance(collection, torchrec.EmbeddingBagCollection):
        return list(collection.embedding_bag_configs())
    return list(collection.embedding_configs())


def optimizers(collection: Any) -> dict[str, RowOptimizer | None] | None:
    """What `apply_optimizer_in_backward` gave each table, as ours; None if nothing was given."""
    found: dict[str, RowOptimizer | None] = {}
    for path, weight in collection.named_parameters():
        classes, name = getattr(weight, "_optimizer_classes", []), path.split(".")[-2]
        if not classes:
            continue
        if classes[0] not in _OPTIMIZERS or len(classes) > 1:
            given, known = (sorted({c.__name__ for c in kinds}) for kinds in (classes, _OPTIMIZERS))
            raise UserError(
                f"{path} has {', '.join(given)} by apply_optimizer_in_backward; rows have one of "
                f"{', '.join(known)}"
            )
        kind = _optimizer({path: weight}, name, "sgd")
        found[name] = _made(path, kind, weight._optimizer_kwargs[0])
    return {**found, OTHERS: None} if found else None


def _made(path: str, kind: Optimizer, settings: dict[str, Any]) -> RowOptimizer:
    known = KINDS[kind]().numbers()
    strange = {k: v for k, v in settings.items() if v and k not in {*known, "optimizer"}}
    if strange:
        raise UserError(
            f"{path} has {strange} by apply_optimizer_in_backward, and rows are trained with "
            f"{', '.join(sorted(known))} only: leave the others out"
        )
    return KINDS[kind](**{key: value for key, value in settings.items() if key in known})


def check_same(found: Tables, known: Tables) -> None:
    """Raise unless every table of a model is known with the same shape and kind."""
    names = {table.name: table for table in known}
    for table in found:
        other = names.get(table.name)
        if other is None:
            raise MismatchError(
                f"the model has a table {table.name!r} and the profile has none of that name: "
                "profile the data of this model"
            )
        for what in ("num_embeddings", "embedding_dim", "dtype", "pooling", "features"):
            mine, theirs = getattr(table, what), getattr(other, what)
            if mine != theirs:
                raise MismatchError(
                    f"table {table.name!r}: {what} is {mine!r} in the model and {theirs!r} in the "
                    "profile; profile the data of this model"
                )


def model_of(wanted: Tables) -> Any:
    """A model without weights (`meta`) that holds the tables, for TorchRec's planner to see."""
    model, meta = nn.Module(), torch.device("meta")
    pooled = [table for table in wanted if table.pooling != "none"]
    if pooled:
        bags = [bag_config(table) for table in pooled]
        model.add_module(POOLED, torchrec.EmbeddingBagCollection(tables=bags, device=meta))
    for width in sorted({t.embedding_dim for t in wanted if t.pooling == "none"}):
        rows = [t for t in wanted if t.pooling == "none" and t.embedding_dim == width]
        part = torchrec.EmbeddingCollection(tables=[row_config(t) for t in rows], device=meta)
        model.add_module(f"{SEQUENCE}_{width}", part)
    for _, collection in collections(model):
        for name, weight in collection.named_parameters():
            # TorchRec's storage estimate counts the state of the optimizer that stands here.
            weight._optimizer_classes = [_CLASSES[wanted[name.split(".")[-2]].optimizer]]
    return model


def bag_config(table: Table) -> Any:
    """A pooled table as TorchRec has it."""
    pooling = {"sum": torchrec.PoolingType.SUM, "mean": torchrec.PoolingType.MEAN}
    return torchrec.EmbeddingBagConfig(**_facts(table), pooling=pooling[table.pooling])


def row_config(table: Table) -> Any:
    """A table that is not pooled as TorchRec has it."""
    return torchrec.EmbeddingConfig(**_facts(table))


def _facts(table: Table) -> dict[str, Any]:
    return {
        "name": table.name,
        "num_embeddings": table.num_embeddings,
        "embedding_dim": table.embedding_dim,
        "feature_names": list(table.features),
        "data_type": getattr(torchrec.DataType, _DTYPES[table.dtype]),
    }


def _optimizer(weights: dict[str, Any], name: str, default: Optimizer) -> Optimizer:
    for path, weight in weights.items():
        if path.split(".")[-2:] == [name, "weight"]:
            chosen = getattr(weight, "_optimizer_classes", [None])[0]
            numbers = getattr(weight, "_optimizer_kwargs", [{}])[0]
            _refuse_dense(name, chosen, numbers)
            if _OPTIMIZERS.get(chosen) == "adam" and numbers.get("weight_decay"):
                return "adamw"  # fbgemm's Adam decays weights, not gradients
            return _OPTIMIZERS.get(chosen, default)
    return default


def _refuse_dense(name: str, chosen: Any, numbers: Mapping[str, Any]) -> None:
    """Refuse what no table is trained with: TorchRec has no such kind, and torch's is dense."""
    if chosen is torch.optim.SGD and numbers.get("momentum"):
        out = "TorchRec trains it without momentum, so leave that away there"
    elif chosen is torch.optim.AdamW:
        out = "TorchRec has none, and decays as AdamW does if it is given Adam with weight_decay"
    else:
        return
    raise UserError(
        f"table {name!r}, as apply_optimizer_in_backward has it: {instead_of(chosen, numbers)}. "
        f"{out}"
    )


def _check_names(module: Any) -> None:
    seen: dict[str, str] = {}
    for path, collection in collections(module):
        for config in configs(collection):
            if config.name in seen:
                raise UserError(
                    f"table {config.name!r} stands in {seen[config.name]!r} and in {path!r}; "
                    "TorchRec's constraints go by table name, so give each its own"
                )
            seen[config.name] = path
