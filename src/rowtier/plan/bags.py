"""Batches as users have them, brought into one form: ids, lengths and weights per feature.

Arrays may be numpy's or torch's (on the host); a TorchRec KeyedJaggedTensor is read by its
methods. Nothing here imports torch, so data loader workers stay light.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import UserError

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Bags:
    """One feature of a batch: the ids of all samples one after the other, and where each ends.

    Give `lengths` (one number a sample), or `offsets` (where each sample begins, and where the
    last one ends). `weights` are one number per id.
    """

    values: Any
    lengths: Any = None
    offsets: Any = None
    weights: Any = None


@dataclass(frozen=True, eq=False)
class Jagged:
    """The same with everything known: `values[edges[i]:edges[i + 1]]` is sample i."""

    values: NDArray[Any]
    edges: Ints
    weights: NDArray[np.float32] | None
    shape: tuple[int, ...] | None  # of values that came as a rectangle

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return len(self.edges) - 1

    @property
    def lengths(self) -> Ints:
        """Ids per sample."""
        return np.diff(self.edges)


def jagged_batch(batch: Any, features: Iterable[str]) -> dict[str, Jagged]:
    """All `features` of a batch; every one of them must be there, with as many samples."""
    given = _by_name(batch)
    found: dict[str, Jagged] = {}
    for name in features:
        if name not in given:
            raise UserError(
                f"the batch has no feature {name!r}, which a table of the plan reads; it has "
                f"{', '.join(map(repr, given)) or 'none'}"
            )
        found[name] = _jagged(name, given[name])
    _check_samples({name: jagged.samples for name, jagged in found.items()})
    return found


def _by_name(batch: Any) -> Mapping[str, Any]:
    if isinstance(batch, Mapping):
        return batch
    if hasattr(batch, "keys") and hasattr(batch, "to_dict"):  # a KeyedJaggedTensor
        return {
            name: Bags(entry.values(), entry.lengths(), weights=entry.weights_or_none())
            for name, entry in batch.to_dict().items()
        }
    raise UserError(
        f"a batch of type {type(batch).__name__}: give a KeyedJaggedTensor, or a dict of feature "
        "→ values, (values, lengths) or (values, lengths, weights)"
    )


def _check_samples(samples: Mapping[str, int]) -> None:
    if len(set(samples.values())) > 1:
        listed = ", ".join(f"{name!r} {count}" for name, count in list(samples.items())[:6])
        raise UserError(f"the features of a batch have different numbers of samples: {listed}")


def _jagged(name: str, entry: Any) -> Jagged:
    if isinstance(entry, Jagged):
        return entry
    if isinstance(entry, (tuple, list)) and 1 < len(entry) < 4:
        entry = Bags(entry[0], entry[1], weights=entry[2] if len(entry) == 3 else None)
    if not isinstance(entry, Bags):
        entry = Bags(entry)
    values = host_array(entry.values)
    shape = values.shape if entry.lengths is None and entry.offsets is None else None
    if values.ndim > 1 and shape is None:
        raise UserError(
            f"feature {name!r}: values of shape {values.shape} beside lengths or offsets; give "
            "them flat, or leave the lengths away"
        )
    if values.dtype.kind not in "iu":
        raise UserError(f"feature {name!r}: ids must be whole numbers, these are {values.dtype}")
    flat = values.reshape(-1)
    weights = None if entry.weights is None else host_array(entry.weights).reshape(-1)
    if weights is not None and len(weights) != len(flat):
        raise UserError(f"feature {name!r}: {len(flat)} ids and {len(weights)} weights")
    edges = _edges(name, entry, values)
    narrow = None if weights is None else np.ascontiguousarray(weights, dtype=np.float32)
    return Jagged(np.ascontiguousarray(flat), edges, narrow, shape)


def _edges(name: str, entry: Bags, values: NDArray[Any]) -> Ints:
    count = values.size
    if entry.lengths is not None:
        lengths = host_array(entry.lengths).astype(np.int64)
        edges = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=edges[1:])
        if len(lengths) and lengths.min() < 0:
            raise UserError(f"feature {name!r}: a length of {lengths.min()}; lengths are 0 or more")
        if edges[-1] != count:
            raise UserError(f"feature {name!r}: lengths add up to {edges[-1]}, ids are {count}")
        return edges
    if entry.offsets is not None:
        return _from_offsets(name, host_array(entry.offsets).astype(np.int64), count)
    samples = values.shape[0] if values.ndim else 1
    each = count // samples if samples else 0
    return np.arange(samples + 1, dtype=np.int64) * each


def _from_offsets(name: str, offsets: Ints, count: int) -> Ints:
    if not len(offsets) or offsets[0] != 0 or (np.diff(offsets) < 0).any() or offsets[-1] != count:
        raise UserError(
            f"feature {name!r}: offsets must begin with 0, never fall, and end with the number of "
            f"ids, {count}: one entry more than samples, as with include_last_offset=True"
        )
    return offsets


def host_array(values: Any) -> NDArray[Any]:
    """An array or tensor as numpy's, without a copy if it lies on the host."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values)
