"""`.metadata` of torch.distributed.checkpoint, read without running what a pickle asks for.

The file is a pickle, and a pickle may call any function. Those that torch writes need a few
classes that hold data; everything else is refused by name before it is even imported.
"""

from __future__ import annotations

import importlib
import io
import pathlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from rowtier.errors import InvalidError, Mistake, UserError
from rowtier.runtime.checkpoint.checksums import WAY_OUT

_DCP = "torch.distributed.checkpoint."
_ALLOWED = {
    *((_DCP + "metadata", name) for name in (
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    )),
    (_DCP + "filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),  # a look-up by name
    ("collections", "OrderedDict"),
}  # fmt: skip
_PATHS = {"PosixPath": pathlib.PurePosixPath, "WindowsPath": pathlib.PureWindowsPath}


class _DataUnpickler(pickle.Unpickler):
    """Only what holds data."""

    def find_class(self, module: str, name: str) -> Any:
        """A class that may be made, or an error."""
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module in ("pathlib", "pathlib._local") and name in _PATHS:
            return _PATHS[name]
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no save needs")
        return getattr(importlib.import_module(module), name)


def parse_metadata(path: Path, raw: bytes, sizes: Mapping[str, int] | None) -> Metadata:
    """What `.metadata` says, if it speaks of nothing but the files of its save.

    `sizes`: the bytes of these files, if they are known.
    """
    try:
        found = _DataUnpickler(io.BytesIO(raw)).load()
    except Exception as error:  # a damaged pickle can fail in any way
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise _broken(path, f"is not what torch.distributed.checkpoint writes ({why})") from None
    if not isinstance(found, Metadata) or not isinstance(found.storage_data, dict):
        raise _broken(path, f"holds a {type(found).__name__}, not the places of tensors")
    for index, place in found.storage_data.items():
        _check_place(path, index, place, sizes)
    return found


def tensor_at(path: Path, found: Metadata, key: str) -> TensorStorageMetadata:
    """The shape and type of a saved tensor."""
    stored = found.state_dict_metadata.get(key)
    if not isinstance(stored, TensorStorageMetadata):
        raise InvalidError(path, [Mistake(key, None, f"no such tensor was saved; {WAY_OUT}")])
    return stored


def _check_place(path: Path, index: Any, place: Any, sizes: Mapping[str, int] | None) -> None:
    try:
        name, start, stop = place.relative_path, int(place.offset), place.offset + place.length
        fits = isinstance(index, MetadataIndex) and 0 <= start <= stop
        fits = fits and name not in ("", ".", "..") and pathlib.PurePath(name).name == name
    except (AttributeError, TypeError, ValueError):
        fits, name, stop = False, None, 0
    if not fits or (sizes is not None and stop > sizes.get(name, -1)):
        raise _broken(path, f"places {getattr(index, 'fqn', index)!r} outside of the save's files")


def _broken(path: Path, why: str) -> UserError:
    return InvalidError(path, [Mistake("", None, f"the file {why}; {WAY_OUT}")])
