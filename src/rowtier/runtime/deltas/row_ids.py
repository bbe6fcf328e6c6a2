"""Ids of growing tables beside their weights: what a delta makes of those that were there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from rowtier.errors import InvalidError, MismatchError, Mistake
from rowtier.profile.hashing import string_parts, strings_of
from rowtier.runtime.deltas.remedies import AGAIN
from rowtier.runtime.deltas.strips import read_strips
from rowtier.runtime.growing_names import INT_NAMES, NAME_STARTS, NAME_TEXT

if TYPE_CHECKING:
    from rowtier.runtime.deltas.delta import Delta

Array = NDArray[Any]
WEIGHT = ".weight"  # how names of weights end in an export
_PARTS = {"int": ("ids",), "string": ("id_starts", "id_text")}
_KINDS = {"int": "whole numbers", "string": "strings"}


def id_names(weight: str, kind: str) -> list[str]:
    """What ids are called beside a table's weights: one tensor of numbers, or two for strings."""
    return [f"{weight.removesuffix(WEIGHT)}.{part}" for part in _PARTS[kind]]


def check_ids(delta: Delta, name: str, here: str, there: Collection[str], what: str) -> None:
    """Refuse a base that has no ids of a growing table, or others; `here`: its name there."""
    kind = delta.index.tables[name].id_kind
    if kind is None or all(part in there for part in id_names(here, kind)):
        return
    wanted = " and ".join(id_names(here, kind))
    (other,) = _PARTS.keys() - {kind}
    why = f"has no {wanted} beside them"
    if all(part in there for part in id_names(here, other)):
        why = f"has {_KINDS[other]} there"
    raise MismatchError(
        f"{delta.path}: rows of {name} are those of ids that come and go ({_KINDS[kind]}), and "
        f"{what} {why}: give {wanted}, as an export of the checkpoint has them"
    )


def newer_ids(delta: Delta, name: str, ids: Mapping[str, Array]) -> dict[str, Array]:
    """The ids of a growing table after a delta; `ids` and the result by the parts' names."""
    table = delta.index.tables[name]
    size, strings = table.ids, table.id_kind == "string"
    known = strings_of(ids["id_starts"], ids["id_text"]) if strings else ids["ids"]
    try:
        rows, new = _named(delta, name, strings=strings)
    except (SafetensorError, KeyError, ValueError) as error:
        why = f"has no ids of {name} as embeddings.delta() writes them ({error}); {AGAIN} again"
        raise InvalidError(delta.path, [Mistake("", None, why)]) from None
    # By row: where its id is, among those that were there and those that came after them.
    place = np.full(max(size, len(known)), -1, dtype=np.int64)
    place[: len(known)] = np.arange(len(known))
    inside = np.flatnonzero((rows >= 0) & (rows < size))
    place[rows[inside]] = len(known) + inside
    place = place[:size]
    if (place < 0).any():
        missing = int(np.flatnonzero(place < 0)[0])
        why = f"has no id for row {missing} of {name}, which is new; {AGAIN} again"
        raise InvalidError(delta.path, [Mistake("", None, why)])
    if not strings:
        return {"ids": np.concatenate((known, new))[place]}
    starts, text = string_parts(pa.concat_arrays([known, new]).take(pa.array(place)))
    return {"id_starts": starts - starts[0], "id_text": text[starts[0] : starts[-1]]}


def put_ids(delta: Delta, tensors: Any, here: Mapping[str, str]) -> None:
    """Replace the ids beside tables by those that they have after a delta."""
    found = {}
    for name, weight in here.items():
        kind = delta.index.tables[name].id_kind
        if kind is None:
            continue
        names = dict(zip(_PARTS[kind], id_names(weight, kind), strict=True))
        before = {part: np.asarray(tensors[full]) for part, full in names.items()}
        for part, values in newer_ids(delta, name, before).items():
            is_tensor = isinstance(tensors[names[part]], torch.Tensor)
            found[names[part]] = torch.from_numpy(values.copy()) if is_tensor else values
    tensors.update(found)


def _named(delta: Delta, name: str, *, strings: bool) -> tuple[Array, Any]:
    """The rows of a table that a delta has, and their ids."""
    rows: list[Array] = [np.empty(0, dtype=np.int64)]
    ids: list[Any] = [pa.array([], pa.large_string()) if strings else np.empty(0, dtype=np.int64)]
    for file in delta.index.files:
        for strip in read_strips(delta.path / file):
            parts = {part: tensor.numpy() for part, tensor in strip.names.items()}
            if name not in strip.fields or not parts:
                continue
            rows.append(strip.ids.numpy())
            if strings:
                ids.append(strings_of(parts[NAME_STARTS], parts[NAME_TEXT]))
            else:
                ids.append(parts[INT_NAMES])
    whole = pa.concat_arrays(ids) if strings else np.concatenate(ids)
    return np.concatenate(rows), whole
