"""Nested state as named tensors and what is left of it: the form that is saved.

Any nesting of dicts, lists and tuples may hold tensors, so that models, ordinary torch
optimizers, schedulers and plain values are all saved in the same way, and read back without
asking the object first what it expects (a fresh torch optimizer has no state yet).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from rowtier.errors import UserError

Path = tuple[Any, ...]  # keys and positions, from the outside in


class Flat(NamedTuple):
    """A part of a checkpoint."""

    tensors: dict[str, torch.Tensor]  # by the names they are saved under
    rest: bytes  # the value without its tensors, and the paths of those
    originals: dict[str, torch.Tensor]  # the tensors as they were given


def flatten(name: str, value: Any) -> Flat:
    """Take nested state apart."""
    found = dict(_tensors(value, ()))
    originals: dict[str, torch.Tensor] = {}
    for path, tensor in found.items():
        key = key_of(name, path)
        if key in originals:
            raise UserError(
                f"checkpoint part {name!r}: two of its tensors would both be saved as {key!r}: "
                "rename one"
            )
        originals[key] = tensor
    tensors = {key: tensor.detach() for key, tensor in originals.items()}
    # Pickled here: torch.distributed.checkpoint would turn keys that are numbers into strings.
    return Flat(tensors, pickle.dumps((_without(value), list(found))), originals)


def key_of(name: str, path: Path) -> str:
    """What a tensor is saved as."""
    return ".".join(map(str, (name, *path))) if path else f"{name}."


def restore(name: str, rest: bytes, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Put nested state together again."""
    value, paths = pickle.loads(rest)
    return _filled(value, (), {path: tensors[key_of(name, path)] for path in paths})


def _inside(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)


def _tensors(value: Any, path: Path) -> Iterator[tuple[Path, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    for key, entry in _inside(value):
        yield from _tensors(entry, (*path, key))


def _without(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return None
    if isinstance(value, Mapping):
        return {key: _without(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_without(entry) for entry in value)
    # A named tuple: only its own class could be rebuilt, and nobody would miss it here.
    return tuple(map(_without, value)) if isinstance(value, tuple) else value


def _filled(value: Any, path: Path, at: Mapping[Path, torch.Tensor]) -> Any:
    if path in at:
        return at[path]
    if isinstance(value, dict):
        return {key: _filled(entry, (*path, key), at) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_filled(entry, (*path, i), at) for i, entry in enumerate(value))
    return value
