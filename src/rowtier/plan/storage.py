"""The plan folder.

plan.json       what people read and compare: bands, cluster, certificate, fingerprints
curve/          the tables and bucketed statistics the plan was made from (a curve profile)
order.bin       position → row of the touched rows, one array per table; absent without rows
vocabulary/     TABLE.parquet with row, id and count, where ids become rows by a vocabulary
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xxhash
from pydantic import Field

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.errors import InvalidError, Mistake, UserError
from rowtier.fields import Count, Name, Rows
from rowtier.files import (
    FORMAT_VERSION,
    Noun,
    check_version,
    dump_json,
    parse,
    seal_mistakes,
    try_parse,
)
from rowtier.folders import replace_folder
from rowtier.manifest import read_manifest
from rowtier.plan.certificate import Certificate, MadeFor
from rowtier.plan.check import find_mistakes, refuse_mistakes, stamp_mistakes
from rowtier.plan.constraints import Constraints
from rowtier.plan.options import PlanOptions
from rowtier.profile.order import NarrowInts, RowOrder, narrow
from rowtier.profile.profile import Profile
from rowtier.profile.storage import save_inside
from rowtier.reading import StrPath, read_mapping

if TYPE_CHECKING:
    from rowtier.plan.plan import Plan
    from rowtier.profile.vocabulary import Vocabulary

MARKER = "plan.json"
ORDER = "order.bin"
CURVE = "curve"


class _Slice(Noun):
    """Where one table's rows stand in `order.bin`."""

    offset: Count
    rows: Rows
    dtype: Literal["uint32", "int64"]
    xxh3: str | None = None  # of its bytes: says which table is hit if the file is damaged

    @property
    def size_bytes(self) -> int:
        return self.rows * np.dtype(self.dtype).itemsize


class _PlanFile(Noun):
    method: Name
    sealed: str | None = Field(default=None, alias="fingerprint")
    made_for: MadeFor
    certificate: Certificate | None = None
    tables: dict[str, tuple[Band, ...]]
    order: dict[str, _Slice] | None = None
    cluster: Cluster
    origin: dict[str, Any] = Field(default_factory=dict)
    constraints: Constraints | None = None
    vocabularies: dict[str, str] = Field(default_factory=dict)  # table → fingerprint


def save(plan: Plan, folder: StrPath) -> None:
    """Write the folder beside its place, then let it take its place; not what `load` refuses."""
    refuse_mistakes(plan, f"plan {plan.method!r}")
    with replace_folder(folder, MARKER) as path:
        slices = None if plan.order is None else _write_order(path / ORDER, plan)
        data = {
            "format_version": FORMAT_VERSION,
            "method": plan.method,
            "fingerprint": plan.fingerprint,
            "made_for": plan.made_for.to_data(),
            "certificate": plan.certificate.to_data() if plan.certificate else None,
            "tables": {name: [b.to_data() for b in bands] for name, bands in plan.bands.items()},
            "order": slices,
            "cluster": plan.cluster.to_data(),
            "origin": dict(plan.origin),
        }
        if plan.constraints is not None:
            data["constraints"] = plan.constraints.to_data()
        if plan.vocabularies:
            data["vocabularies"] = _write_vocabularies(path, plan)
        (path / MARKER).write_text(dump_json(data), encoding="utf-8")
        save_inside(plan.profile, path / CURVE)


def load(kind: type[Plan], folder: StrPath) -> Plan:
    """Read a folder; every mistake in it is listed in one error."""
    path = Path(folder)
    if not path.is_dir():
        what = "is a file, not a" if path.exists() else "there is no such"
        raise UserError(f"{path}: {what} plan folder; make one with rowtier plan")
    if not (path / MARKER).exists():
        raise UserError(f"{path}: holds no {MARKER}, so it is no plan; make one with rowtier plan")
    data = read_mapping(path / MARKER)
    check_version(path / MARKER, data)
    file = parse(_PlanFile, data, path / MARKER)
    _check_options(path / MARKER, file.origin)
    profile = Profile.load(path / CURVE)
    order = None
    if file.order is not None:
        _check_order(path, file.order)
        order = _read_order(path / ORDER, file.order)
    plan = kind(
        file.method,
        file.tables,
        file.cluster,
        profile,
        file.made_for,
        order,
        file.certificate,
        file.origin,
        file.constraints,
        _read_vocabularies(path, profile, file),
    )
    mistakes = [*find_mistakes(plan), *stamp_mistakes(plan)]
    mistakes = mistakes or seal_mistakes(file.sealed, plan.fingerprint, "plan")
    if mistakes:
        raise InvalidError(path / MARKER, mistakes)
    return plan


def missing_seals(folder: StrPath) -> list[Mistake]:
    """Fingerprints that a plan folder was written with, and that it has no more.

    Who edits a plan by hand may drop them to load it; what such a plan claims is nobody's word.
    """
    path = Path(folder)
    data, curve = read_mapping(path / MARKER), read_mapping(path / CURVE / "profile.json")
    why = "the key is missing, so nothing says whether the content is as it was written; plan again"
    found = [Mistake("fingerprint", None, why)] if data.get("fingerprint") is None else []
    if curve.get("fingerprint") is None:
        found.append(Mistake(f"{CURVE}.fingerprint", None, why))
    for key, value in data["made_for"].items():
        if re.fullmatch("[0-9a-f]{16}", value) is None:
            found.append(Mistake(f"made_for.{key}", value, "is no fingerprint; plan again"))
    sealed = data.get("vocabularies") or {}
    tables = curve.get("tables", ()) if data.get("order") is not None else ()
    needed = [table["name"] for table in tables if table.get("ids") in ("vocabulary", "grow")]
    return found + [Mistake(f"vocabularies.{n}", None, why) for n in needed if n not in sealed]


def _check_options(path: Path, origin: dict[str, Any]) -> None:
    """What a plan was made with is read back from here, so it must be what can be asked for."""
    options = origin.get("options", {})
    mistakes = [Mistake("origin.options", options, "keys with values are needed here")]
    if isinstance(options, dict):
        _, mistakes = try_parse(PlanOptions, options, "origin.options", units=False)
    if mistakes:
        raise InvalidError(path, mistakes)


def _write_vocabularies(path: Path, plan: Plan) -> dict[str, str]:
    from rowtier.profile.vocabulary import vocabulary_file

    for name, words in plan.vocabularies.items():
        words.save(vocabulary_file(path, plan.profile[name].table))
    return {name: words.fingerprint for name, words in plan.vocabularies.items()}


def _read_vocabularies(path: Path, profile: Profile, file: _PlanFile) -> dict[str, Vocabulary]:
    """The vocabularies of all tables that need one; a plan without rows needs none."""
    known = {stats.table.name: stats.table for stats in profile.stats}
    unknown = sorted(set(file.vocabularies) - set(known))
    if unknown:
        hint = "the profile has no such table; drop it"
        raise InvalidError(path / MARKER, [Mistake(f"vocabularies.{unknown[0]}", None, hint)])
    needed = [t for t in known.values() if t.has_vocabulary and file.order is not None]
    if not needed:
        return {}
    from rowtier.profile.vocabulary import read_vocabulary

    return {t.name: read_vocabulary(path, t, file.vocabularies.get(t.name)) for t in needed}


def _write_order(path: Path, plan: Plan) -> dict[str, Any]:
    assert plan.order is not None
    slices, offset = {}, 0
    with path.open("wb") as file:
        for stats in plan.profile.stats:
            rows = plan.order[stats.table.name]
            dtype = "uint32" if stats.table.num_embeddings <= 2**32 else "int64"
            offset += file.write(b"\0" * (-offset % 8))
            stored = rows.astype(f"<{np.dtype(dtype).str[1:]}")
            hashed = xxhash.xxh3_64_hexdigest(stored.data)
            piece = _Slice(offset=offset, rows=len(rows), dtype=dtype, xxh3=hashed)
            slices[stats.table.name] = piece.to_data()
            offset += file.write(stored.data)
    return slices


def _check_order(folder: Path, slices: dict[str, _Slice]) -> None:
    """Refuse a row order that is not what was written, and name the tables it is wrong for."""
    written = read_manifest(folder, "plan")
    if not written.difference(folder, ORDER):
        return
    hit = [repr(name) for name, piece in slices.items() if not _is_there(folder / ORDER, piece)]
    more = f" and {len(hit) - 3} more" if len(hit) > 3 else ""
    of = f"rows of table {', '.join(hit[:3])}{more}" if hit else "the row order"
    written.check(folder, ORDER, of, "plan")


def _is_there(path: Path, piece: _Slice) -> bool:
    try:
        found = np.fromfile(path, np.uint8, piece.size_bytes, offset=piece.offset)
    except OSError:
        return False
    return piece.xxh3 in (None, xxhash.xxh3_64_hexdigest(found.data))


def _read_order(path: Path, slices: dict[str, _Slice]) -> RowOrder:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
    except OSError:
        raise UserError(f"{path}: the row order is missing, or no file; plan again") from None
    order: dict[str, NarrowInts] = {}
    for name, piece in slices.items():
        dtype = np.dtype(piece.dtype).newbyteorder("<")
        end = piece.offset + piece.rows * dtype.itemsize
        if end > size:
            mistake = Mistake(
                f"order.{name}", end, f"the file ends at byte {size}: it was cut off; plan again"
            )
            raise InvalidError(path, [mistake])
        rows = np.fromfile(path, dtype, piece.rows, offset=piece.offset)
        order[name] = narrow(rows)
    return order
