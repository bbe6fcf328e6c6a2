"""Batches that come as TorchRec's KeyedJaggedTensor, and outputs as its modules return them.

TorchRec is known by what its types offer, and imported only to make outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from rowtier.errors import UserError
from rowtier.plan.bags import keyed_bags
from rowtier.plan.remap import Addressed, Read
from rowtier.runtime.traced import Output

Outputs = Mapping[str, torch.Tensor]


def keyed_batch(
    batch: Any, found: Addressed, reads: Sequence[Read], *, weighted: bool
) -> Addressed:
    """A batch that came as a KeyedJaggedTensor, checked, with weights only if they count."""
    _check_samples(found, reads)
    if weighted:
        _check_weights(found)
    parts = {key: part if weighted else replace(part, weights=None) for key, part in found.items()}
    given = None if isinstance(batch, Addressed) else keyed_bags(batch)
    return Addressed(parts, replace(found.origin, given=given), found.mark)


def keyed_outputs(
    reads: Sequence[Read], outputs: Outputs, batch: Addressed, *, with_ids: bool = False
) -> Any:
    """What TorchRec's modules return for a KeyedJaggedTensor.

    A KeyedTensor if all tables are pooled, a dict of JaggedTensor if none is; otherwise a dict
    that has `[batch, dim]` tensors for the pooled ones. `with_ids`: JaggedTensors have the ids as
    their weights.
    """
    found = {
        read.key: _jagged(read, outputs[read.key], batch, with_ids)
        if read.table.pooling == "none"
        else _expanded(read, outputs[read.key], batch)
        for read in reads
    }
    if any(read.table.pooling == "none" for read in reads):
        return found
    from torchrec.sparse.jagged_tensor import KeyedTensor

    return KeyedTensor(
        keys=list(found),
        length_per_key=[read.table.embedding_dim for read in reads],
        values=torch.cat(list(found.values()), dim=1),
    )


def _expanded(read: Read, output: torch.Tensor, batch: Addressed) -> torch.Tensor:
    """A line for every sample of the output, where a feature has each of its own only once."""
    samples = batch.origin.inverse.get(read.feature)
    if samples is None:
        return output
    return output.index_select(0, samples.to(output.device))


def _jagged(read: Read, output: torch.Tensor, batch: Addressed, with_ids: bool) -> Any:
    from torchrec.sparse.jagged_tensor import JaggedTensor

    part, given = batch[read.key], (batch.origin.given or {}).get(read.feature)
    lengths = torch.from_numpy(part.lengths).to(output.device)
    if given is not None:
        lengths = lengths.to(given.lengths.dtype)
    if not with_ids:
        return JaggedTensor(values=output, lengths=lengths)
    if given is None:
        raise UserError(
            f"feature {read.feature!r}: need_indices wants the ids, and the batch holds addresses: "
            "call the module with the KeyedJaggedTensor itself"
        )
    ids = given.values
    if part.kept is not None:
        ids = ids[torch.from_numpy(part.kept).to(ids.device)]
    return JaggedTensor(values=output, lengths=lengths, weights=ids)


def _check_samples(found: Addressed, reads: Sequence[Read]) -> None:
    """Pooled features become columns of one tensor, so they need as many lines."""
    if any(read.table.pooling == "none" for read in reads):
        return
    inverse = found.origin.inverse
    if inverse:
        missing = [read.feature for read in reads if read.feature not in inverse]
        if missing:
            raise UserError(
                f"inverse_indices of the KeyedJaggedTensor lack feature {missing[0]!r}; they have "
                f"{', '.join(map(repr, inverse))}: give a line for every feature"
            )
        return
    samples = {read.feature: found[read.key].samples for read in reads}
    if len(set(samples.values())) > 1:
        listed = ", ".join(f"{name!r} {count}" for name, count in list(samples.items())[:6])
        raise UserError(
            f"the features of the KeyedJaggedTensor have different strides ({listed}) and no "
            "inverse_indices, so nobody knows which of them make a sample: give inverse_indices"
        )


def _check_weights(found: Addressed) -> None:
    for key, part in found.items():
        if part.weights is None:
            raise UserError(
                f"feature {key!r} has no weights, and the lookups are weighted (is_weighted): give "
                "the KeyedJaggedTensor weights, or make the collection without is_weighted"
            )


def traced_outputs(outputs: Iterable[Output], found: Outputs, batch: Any) -> Any:
    """What `keyed_outputs` gives, made of what a compiler can follow."""
    from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedTensor

    outputs, keys = list(outputs), batch.keys()
    if all(output.pooled for output in outputs):
        return KeyedTensor(
            keys=[output.key for output in outputs],
            length_per_key=[output.dim for output in outputs],
            values=torch.cat([found[output.key] for output in outputs], dim=1),
        )
    lengths = batch.lengths().reshape(len(keys), -1)
    given: dict[str, Any] = {}
    for key, feature, _, pooled in outputs:
        each = lengths[keys.index(feature)]
        given[key] = found[key] if pooled else JaggedTensor(values=found[key], lengths=each)
    return given
