"""What a mutation does to a folder of files, as plain data that a YAML file can keep.

A change is a mapping with `op`, the `file` it is about, and what the operation needs. Applying one
to a folder where it makes no sense (the file is gone, the path leads nowhere) does nothing.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
import yaml

Change = Mapping[str, Any]


def apply(folder: Path, change: Change) -> None:
    """Change a file of a folder."""
    path = folder / str(change.get("file", ""))
    if change["op"] in _OF_FILES:
        with contextlib.suppress(OSError):
            _OF_FILES[change["op"]](path, change)
    elif path.is_file():
        with contextlib.suppress(Exception):  # the place is gone, or takes no such value
            _INSIDE[change["op"]](path, change)


def read_tree(path: Path) -> Any:
    """The content of a JSON or YAML file; None if there is none to be had."""
    try:
        text = path.read_text()
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None


def write_tree(path: Path, data: Any) -> None:
    """Write a JSON or YAML file, with whatever in it."""
    if path.suffix == ".json":
        path.write_text(json.dumps(data, indent=1))
    else:
        path.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def _remove(path: Path, _: Change) -> None:
    path.unlink() if path.is_file() else shutil.rmtree(path)


def _empty(path: Path, _: Change) -> None:
    path.write_bytes(b"")


def _folder(path: Path, _: Change) -> None:
    path.unlink()
    path.mkdir()


def _swap(path: Path, change: Change) -> None:
    other = path.parents[len(Path(change["file"]).parts) - 1] / change["other"]
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def _seal(path: Path, _: Change) -> None:
    """Make the checksums of a folder right again, so that what is behind them is tried."""
    for marker in [*path.rglob("plan.json"), *path.rglob("profile.json")]:
        data = read_tree(marker)
        if isinstance(data, dict):
            data.pop("fingerprint", None)
            _seal_cluster(data)
            write_tree(marker, data)
    for manifest in sorted(path.rglob("manifest.json"), key=lambda p: -len(p.parts)):
        data = read_tree(manifest)
        entries = data.get("files") if isinstance(data, dict) else None
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            file = manifest.parent / name
            if file.is_file() and isinstance(entry, dict):
                raw = file.read_bytes()
                entry |= {"bytes": len(raw), "xxh3": xxhash.xxh3_64(raw).hexdigest()}
        write_tree(manifest, data)


def _seal_cluster(data: dict[str, Any]) -> None:
    from rowtier.cluster import Cluster
    from rowtier.files import try_parse

    cluster, made_for = data.get("cluster"), data.get("made_for")
    if isinstance(cluster, dict) and isinstance(made_for, dict):
        with contextlib.suppress(Exception):  # a cluster that breaks rowtier is found by loading it
            found, _ = try_parse(Cluster, cluster)
            made_for["cluster"] = found.fingerprint if found else made_for["cluster"]


def _flip(path: Path, change: Change) -> None:
    raw = bytearray(path.read_bytes())
    for bit in change["bits"]:
        raw[bit // 8 % len(raw)] ^= 1 << bit % 8
    path.write_bytes(raw)


def _splice(path: Path, change: Change) -> None:
    """Put bytes in the place of others."""
    raw = path.read_bytes()
    at = change["at"] % (len(raw) + 1)
    put = bytes.fromhex(change["hex"])
    path.write_bytes(raw[:at] + put + raw[at + change.get("delete", 0) :])


def _cut(path: Path, change: Change) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: change["at"] % len(raw)])


def _repeat(path: Path, change: Change) -> None:
    raw = path.read_bytes()
    at = change["at"] % len(raw)
    piece = raw[at : at + change["size"]]
    path.write_bytes(raw[:at] + piece * change["times"] + raw[at:])


def _lines(path: Path, change: Change) -> None:
    """A line several times, or not at all."""
    lines = path.read_bytes().splitlines(keepends=True)
    at = change["at"] % len(lines)
    path.write_bytes(b"".join([*lines[:at], *[lines[at]] * change["times"], *lines[at + 1 :]]))


def _insert(path: Path, change: Change) -> None:
    """Text at a place, as it is."""
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    at = change["at"] % (len(text) + 1)
    raw = text[:at] + change["text"] * change.get("times", 1) + text[at:]
    path.write_bytes(raw.encode("utf-8", "surrogatepass"))


def _parent(data: Any, path: list[Any]) -> Any:
    for key in path[:-1]:
        data = data[key]
    return data


def _tree(change_tree: Callable[[Any, list[Any], Change], Any]) -> Callable[[Path, Change], None]:
    def apply_to(path: Path, change: Change) -> None:
        data = read_tree(path)
        if not change["path"]:
            data = change.get("value")
        else:
            change_tree(_parent(data, change["path"]), change["path"], change)
        write_tree(path, data)

    return apply_to


def _put(inside: Any, path: list[Any], change: Change) -> None:
    inside[path[-1]] = change["value"]


def _drop(inside: Any, path: list[Any], _: Change) -> None:
    del inside[path[-1]]


def _rename(inside: Any, path: list[Any], change: Change) -> None:
    inside[change["value"]] = inside.pop(path[-1])


def _again(inside: Any, path: list[Any], change: Change) -> None:
    """An entry of a list, or a key's value as a list, several times."""
    if isinstance(inside, list):
        inside += [inside[path[-1]]] * change["times"]
    else:
        inside[path[-1]] = [inside[path[-1]]] * change["times"]


def _wrap(inside: Any, path: list[Any], change: Change) -> None:
    """A value inside many lists."""
    for _ in range(change["times"]):
        inside[path[-1]] = [inside[path[-1]]]


def _column(path: Path, change: Change) -> None:
    """Another type, value or length of one column of a Parquet file."""
    table = pq.read_table(path)
    name = table.column_names[change["column"] % table.num_columns]
    at = table.column_names.index(name)
    do: str = change["do"]
    value: Any = change.get("value")
    values = table[name].to_pylist()
    if do == "drop":
        table = table.drop_columns([name])
    elif do == "rename":
        names = [value if each == name else each for each in table.column_names]
        table = table.rename_columns(names)
    elif do == "cast":
        table = table.set_column(at, name, table[name].cast(_type(value), safe=False))
    elif do == "list":
        table = table.set_column(at, name, pa.array([[each] for each in values]))
    elif do == "put":
        values[change["at"] % len(values)] = value
        table = table.set_column(at, name, _array(values, table[name].type))
    elif do == "all":
        table = table.set_column(at, name, _array([value] * len(values), table[name].type))
    elif do == "rows":
        table = pa.concat_tables([table.slice(change["at"] % len(values))] * change["times"])
    pq.write_table(table, path)


def _type(name: str) -> pa.DataType:
    return pa.large_string() if name == "large_string" else pa.type_for_alias(name)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return pa.array(values)


def _member(path: Path, change: Change) -> None:
    """One array of an npz file: its bytes, its header, its type."""
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    name = sorted(parts)[change["column"] % len(parts)]
    do: str = change["do"]
    value: Any = change.get("value")
    array = np.load(io.BytesIO(parts[name])) if do in ("cast", "put", "cut") else None
    if do == "drop":
        del parts[name]
    elif do == "rename":
        parts[value] = parts.pop(name)
    elif do == "header":
        parts[name] = _npy_header(value) + parts[name][128:]
    elif do == "cast" and array is not None:
        parts[name] = _npy(array.astype(value))
    elif do == "put" and array is not None:
        array.reshape(-1)[change["at"] % array.size] = value
        parts[name] = _npy(array)
    elif do == "cut" and array is not None:
        parts[name] = _npy(array[: change["at"] % (len(array) + 1)])
    elif do == "flip":
        raw = bytearray(parts[name])
        raw[change["at"] % len(raw)] ^= 1 << change["at"] % 8
        parts[name] = bytes(raw)
    packing = zipfile.ZIP_DEFLATED if change.get("packed") else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", packing) as file:
        for each, raw_bytes in parts.items():
            file.writestr(each, raw_bytes)


def _npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def _npy_header(text: str) -> bytes:
    """A header of version 1 that says whatever it is told to say."""
    padded = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded


_OF_FILES: dict[str, Callable[[Path, Change], None]] = {
    "remove": _remove,
    "empty": _empty,
    "folder": _folder,
    "swap": _swap,
    "seal": _seal,
}
_INSIDE: dict[str, Callable[[Path, Change], None]] = {
    "flip": _flip,
    "splice": _splice,
    "cut": _cut,
    "repeat": _repeat,
    "lines": _lines,
    "insert": _insert,
    "put": _tree(_put),
    "drop": _tree(_drop),
    "rename": _tree(_rename),
    "again": _tree(_again),
    "wrap": _tree(_wrap),
    "column": _column,
    "member": _member,
}
