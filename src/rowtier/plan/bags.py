"""Batches as users have them, brought into one form: ids, lengths and weights per feature.

Arrays may be numpy's, torch's (on the host) or Arrow's; ids are whole numbers or strings. A
column has one id a sample or a list of them, and a null is no lookup. A TorchRec KeyedJaggedTensor
is read by its methods. Nothing here imports torch, so data loader workers stay light.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.profile.ids import Mask, Where, as_arrow, flat_ids, lengths_of
from rowtier.profile.readers.arrays import flatten_lists, is_list

Ints = NDArray[np.int64]
Edges = Callable[[int], Ints]  # of so many ids


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
    """The same with everything known: `values[edges[i]:edges[i + 1]]` is sample i.

    Lookups that were dropped, such as nulls, are in none of these.
    """

    values: Any  # whole numbers in a numpy array, or strings in an Arrow one
    edges: Ints
    weights: NDArray[np.float32] | None
    shape: tuple[int, ...] | None  # of values that came as a rectangle
    kept: Mask | None = None  # of the lookups as they came; None: all of them

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return len(self.edges) - 1

    @property
    def lengths(self) -> Ints:
        """Ids per sample."""
        return np.diff(self.edges)

    def with_values(self, values: Any, kept: Mask | None = None) -> Jagged:
        """Other values for the same lookups, or for those that are `kept`."""
        if kept is None:
            return Jagged(values, self.edges, self.weights, self.shape, self.kept)
        edges = edges_of(lengths_of(self.lengths, kept))
        weights = None if self.weights is None else self.weights[kept]
        before = kept
        if self.kept is not None:
            before = self.kept.copy()
            before[before] = kept
        return Jagged(values, edges, weights, self.shape, before)


@dataclass(frozen=True, eq=False)
class Origin:
    """How a batch came, as far as what is found for it depends on that."""

    device: Any = None  # where its tensors lie; None: it has none
    keyed: bool = False  # as a KeyedJaggedTensor
    # Of a KeyedJaggedTensor by feature: per sample of the output which of its samples it is.
    inverse: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Bags] | None = None  # what a KeyedJaggedTensor held, while at hand
    resolved: Any = None  # of growing tables: when ids were turned into rows


def origin_of(batch: Any) -> Origin:
    """How a batch came."""
    if not _is_keyed(batch):
        return Origin(_device_of(batch.values()) if isinstance(batch, Mapping) else None)
    indices = batch.inverse_indices_or_none()
    if indices is None or not indices[1].numel():
        return Origin(batch.device(), keyed=True)
    return Origin(batch.device(), True, dict(zip(*indices, strict=True)))


def _device_of(entries: Iterable[Any]) -> Any:
    """The device of the first tensor among the ids of all features."""
    for entry in entries:
        ids = entry.values if isinstance(entry, Bags) else entry
        ids = ids[0] if isinstance(ids, (tuple, list)) and len(ids) else ids
        if hasattr(ids, "detach"):
            return ids.device
    return None


def _is_keyed(batch: Any) -> bool:
    """Whether a batch is a KeyedJaggedTensor, by what it offers: TorchRec is not imported."""
    return not isinstance(batch, Mapping) and hasattr(batch, "keys") and hasattr(batch, "to_dict")


def jagged_batch(batch: Any, features: Iterable[str]) -> dict[str, Jagged]:
    """All `features` of a batch; every one of them must be there, with as many samples.

    Only a KeyedJaggedTensor may say that its features have different numbers of samples.
    """
    given = _by_name(batch)
    found: dict[str, Jagged] = {}
    for name in features:
        if name not in given:
            raise UserError(
                f"the batch has no feature {name!r}, which a table of the plan reads; it has "
                f"{', '.join(map(repr, given)) or 'none'}"
            )
        found[name] = _jagged(name, given[name])
    if _is_keyed(batch) and batch.variable_stride_per_key():
        return found
    if len({len(jagged.edges) for jagged in found.values()}) > 1:
        raise _different_samples({name: jagged.samples for name, jagged in found.items()})
    return found


def _by_name(batch: Any) -> Mapping[str, Any]:
    if isinstance(batch, Mapping):
        return batch
    if _is_keyed(batch):
        return keyed_bags(batch)
    raise UserError(
        f"a batch of type {type(batch).__name__}: give a KeyedJaggedTensor, or a dict of feature "
        "→ values, (values, lengths) or (values, lengths, weights)"
    )


def keyed_bags(batch: Any) -> dict[str, Bags]:
    """The features of a KeyedJaggedTensor."""
    if not batch.lengths().numel():  # no samples, which its own to_dict cannot bear
        empty = Bags(batch.values(), batch.lengths(), weights=batch.weights_or_none())
        return dict.fromkeys(batch.keys(), empty)
    return {
        name: Bags(entry.values(), entry.lengths(), weights=entry.weights_or_none())
        for name, entry in batch.to_dict().items()
    }


def _different_samples(samples: Mapping[str, int]) -> UserError:
    listed = ", ".join(f"{name!r} {count}" for name, count in list(samples.items())[:6])
    return UserError(f"the features of a batch have different numbers of samples: {listed}")


def _jagged(name: str, entry: Any) -> Jagged:
    if isinstance(entry, Jagged):
        return entry
    if (found := _rectangle(entry)) is not None:
        return found
    if _is_parts(entry):
        entry = Bags(entry[0], entry[1], weights=entry[2] if len(entry) == 3 else None)
    if not isinstance(entry, Bags):
        entry = Bags(entry)
    values, edges, shape = _divided(name, entry)
    ids, valid = flat_ids(values, Where(name))
    count = len(ids) if valid is None else len(valid)
    weights = None if entry.weights is None else host_array(entry.weights).reshape(-1)
    if weights is not None and len(weights) != count:
        raise UserError(f"feature {name!r}: {count} ids and {len(weights)} weights")
    narrow = None if weights is None else np.ascontiguousarray(weights, dtype=np.float32)
    jagged = Jagged(ids, edges(count), narrow, shape)
    return jagged if valid is None else jagged.with_values(ids, valid)


def _rectangle(entry: Any) -> Jagged | None:
    """Whole numbers in a tensor or an array, as most batches have them; None: something else."""
    if hasattr(entry, "detach"):
        entry = host_array(entry)
    if not isinstance(entry, np.ndarray) or entry.dtype.kind not in "iu" or not entry.ndim:
        return None
    ids = np.ascontiguousarray(entry.reshape(-1))
    return Jagged(ids, _equal_edges(len(entry), len(ids)), None, entry.shape)


def _is_parts(entry: Any) -> bool:
    """Whether an entry is values and lengths: a tuple, or a list, as collating makes of tuples.

    A list of numbers, of strings or of lists is a column, with one entry a sample.
    """
    if isinstance(entry, tuple):
        return 1 < len(entry) < 4
    if not isinstance(entry, list) or not 1 < len(entry) < 4:
        return False
    return all(len(getattr(part, "shape", ())) == 1 for part in entry[1:]) and not isinstance(
        entry[0], (int, str)
    )


def _divided(name: str, entry: Bags) -> tuple[Any, Edges, tuple[int, ...] | None]:
    """Flat values, how they are divided among samples, and their shape if that is a rectangle."""
    values = entry.values
    if entry.lengths is None and entry.offsets is None:
        return _column(name, values)
    shape = getattr(values, "shape", ())
    if len(shape) > 1:
        raise UserError(
            f"feature {name!r}: values of shape {tuple(shape)} beside lengths or offsets; give "
            "them flat, or leave the lengths away"
        )
    if entry.lengths is not None:
        lengths = host_array(entry.lengths).astype(np.int64)
        return values, lambda count: _from_lengths(name, lengths, count), None
    offsets = host_array(entry.offsets).astype(np.int64)
    return values, lambda count: _from_offsets(name, offsets, count), None


def _column(name: str, values: Any) -> tuple[Any, Edges, tuple[int, ...] | None]:
    """A column with one entry a sample: an id, a list of them, or a row of a rectangle."""
    if not isinstance(values, (list, pa.Array, pa.ChunkedArray)):
        values = host_array(values)
    if isinstance(values, np.ndarray) and not _holds_lists(values):
        shape = values.shape
        return values, lambda count: _equal_edges(shape[0] if shape else 1, count), shape
    array = as_arrow([_on_host(v) for v in values] if isinstance(values, list) else values,
                     Where(name))  # fmt: skip
    if not is_list(array.type):
        size = len(array)
        return array, lambda count: _equal_edges(size, count), (size,)
    flat, found = flatten_lists(array)
    lengths = np.ones(len(array), dtype=np.int64) if found is None else found
    return flat, lambda count: _from_lengths(name, lengths, count), None


def _holds_lists(values: NDArray[Any]) -> bool:
    if values.dtype != object or values.ndim != 1:
        return False
    return any(isinstance(value, (list, tuple, np.ndarray)) for value in values)


def _on_host(value: Any) -> Any:
    """An entry of a list; tensors become numbers or arrays."""
    if not hasattr(value, "detach"):
        return value
    array = host_array(value)
    return array if array.ndim else array.item()


@lru_cache(maxsize=256)  # all features of all batches have a few
def _equal_edges(samples: int, count: int) -> Ints:
    each = count // samples if samples else 0
    return np.arange(samples + 1, dtype=np.int64) * each


def _from_lengths(name: str, lengths: Ints, count: int) -> Ints:
    edges = edges_of(lengths)
    if len(lengths) and lengths.min() < 0:
        raise UserError(f"feature {name!r}: a length of {lengths.min()}; lengths are 0 or more")
    if edges[-1] != count:
        raise UserError(f"feature {name!r}: lengths add up to {edges[-1]}, ids are {count}")
    return edges


def _from_offsets(name: str, offsets: Ints, count: int) -> Ints:
    if not len(offsets) or offsets[0] != 0 or (np.diff(offsets) < 0).any() or offsets[-1] != count:
        raise UserError(
            f"feature {name!r}: offsets must begin with 0, never fall, and end with the number of "
            f"ids, {count}: one entry more than samples, as with include_last_offset=True"
        )
    return offsets


def edges_of(lengths: Ints) -> Ints:
    """Where each sample begins, and where the last one ends."""
    edges = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=edges[1:])
    return edges


def host_array(values: Any) -> NDArray[Any]:
    """An array or tensor as numpy's, without a copy if it lies on the host."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values)
