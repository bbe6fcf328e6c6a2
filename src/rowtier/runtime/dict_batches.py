"""Batches that come as dicts: which weights are trained, and the shapes of what is returned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rowtier.errors import UserError
from rowtier.plan.bags import keyed_bags
from rowtier.plan.remap import Addressed, Read
from rowtier.runtime.store.address import Piece
from rowtier.runtime.traced import Output
from rowtier.runtime.unsharded import JaggedRows

Outputs = Mapping[str, torch.Tensor]


def shaped_outputs(reads: Iterable[Read], outputs: Outputs, batch: Addressed) -> dict[str, Any]:
    """Sums as they are, rows in the shape of their ids or with lengths."""
    shaped: dict[str, Any] = {}
    for read in reads:
        output, jagged = outputs[read.key], batch[read.key]
        if read.table.pooling != "none":
            shaped[read.key] = output
        elif jagged.shape is not None:
            shaped[read.key] = output.reshape(*jagged.shape, output.shape[1])
        else:
            lengths = torch.from_numpy(jagged.lengths).to(output.device)
            shaped[read.key] = JaggedRows(output, lengths)
    return shaped


def traced_shapes(
    outputs: Iterable[Output], found: Outputs, batch: Mapping[str, Any]
) -> dict[str, Any]:
    """What `shaped_outputs` gives, made of what a compiler can follow."""
    shaped: dict[str, Any] = {}
    for key, feature, dim, pooled in outputs:
        entry = batch[feature]
        if pooled:
            shaped[key] = found[key]
        elif isinstance(entry, torch.Tensor):
            shaped[key] = found[key].reshape(*entry.shape, dim)
        else:
            lengths = entry[1] if isinstance(entry, (tuple, list)) else entry.lengths
            shaped[key] = JaggedRows(found[key], lengths)
    return shaped


def trained_weights(
    reads: Iterable[Read], batch: Any, *, weighted: bool
) -> dict[str, torch.Tensor]:
    """Weights of lookups that want a gradient, by the name of what reads them.

    Those of a KeyedJaggedTensor count if it is `weighted`.
    """
    found: dict[str, torch.Tensor] = {}
    if isinstance(batch, Addressed) or not (isinstance(batch, Mapping) or weighted):
        return found
    given = batch if isinstance(batch, Mapping) else keyed_bags(batch)
    for read in reads:
        entry: Any = given.get(read.feature)
        if isinstance(entry, (torch.Tensor, np.ndarray)):  # ids alone, as most features are
            continue
        weights = getattr(entry, "weights", None)
        if isinstance(entry, (tuple, list)) and len(entry) == 3:
            weights = entry[2]
        if isinstance(weights, torch.Tensor) and weights.requires_grad:
            found[read.key] = weights
    return found


def refuse_weights_of_sums(
    reads: Iterable[Read], pieces: Mapping[str, Sequence[Sequence[Piece]]], weighted: Iterable[str]
) -> None:
    """Refuse weights that want a gradient where the plan exchanges sums; `weighted` are keys."""
    tables = {read.key: read.table.name for read in reads}
    for key in weighted:
        for piece in (piece for layer in pieces[tables[key]] for piece in layer):
            if piece.pooled:
                raise UserError(
                    f"feature {key!r}: its weights want a gradient, and ranks "
                    f"{piece.band.start} to {piece.band.stop} of table {tables[key]!r} "
                    "exchange sums, so the reader never sees the rows: detach the "
                    "weights, say `weights: learned` for the table in tables.yaml and "
                    "profile and plan again, or plan again with a constraints file that "
                    f"says `tables: {{{tables[key]}: {{exchange: rows}}}}`"
                )
