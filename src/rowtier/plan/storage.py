"""The plan folder.

plan.json       what people read and compare: bands, cluster, certificate, fingerprints
curve/          the tables and bucketed statistics the plan was made from (a curve profile)
order.bin       rank → row of the touched rows, one array per table; absent without rows
vocabulary/     TABLE.parquet with row, id and count, where ids become rows by a vocabulary
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.errors import InvalidError, Mistake, UserError
from rowtier.fields import Count, Name
from rowtier.files import (
    FORMAT_VERSION,
    Noun,
    StrPath,
    check_version,
    dump_json,
    parse,
    read_mapping,
    replace_folder,
    seal_mistakes,
    write_atomic,
)
from rowtier.plan.check import find_mistakes
from rowtier.plan.constraints import Constraints
from rowtier.plan.plan import Certificate, MadeFor, Plan
from rowtier.profile.order import NarrowInts, RowOrder, narrow
from rowtier.profile.profile import Profile

if TYPE_CHECKING:
    from rowtier.profile.vocabulary import Vocabulary

MARKER = "plan.json"
ORDER = "order.bin"
CURVE = "curve"


class _Slice(Noun):
    """Where one table's rows stand in `order.bin`."""

    offset: Count
    rows: Count
    dtype: Literal["uint32", "int64"]


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
    """Write the folder beside its place, then rename it."""
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
        write_atomic(path / MARKER, dump_json(data))
        plan.profile.save(path / CURVE)


def load(folder: StrPath) -> Plan:
    """Read a folder; every mistake in it is listed in one error."""
    path = Path(folder)
    if not path.is_dir():
        raise UserError(f"{path}: there is no such plan folder; make one with rowtier plan")
    data = read_mapping(path / MARKER)
    check_version(path / MARKER, data)
    file = parse(_PlanFile, data, path / MARKER)
    profile = Profile.load(path / CURVE)
    order = None if file.order is None else _read_order(path / ORDER, file.order)
    plan = Plan(
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
    mistakes = list(find_mistakes(plan))
    if file.cluster.fingerprint != file.made_for.cluster:
        mistakes.append(
            Mistake(
                "made_for.cluster",
                file.made_for.cluster,
                f"the cluster in the file is {file.cluster.fingerprint}, not the one the plan was "
                "made for; plan again",
            )
        )
    mistakes = mistakes or seal_mistakes(file.sealed, plan.fingerprint, "plan")
    if mistakes:
        raise InvalidError(path / MARKER, mistakes)
    return plan


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
    needed = [t for t in known.values() if t.ids == "vocabulary" and file.order is not None]
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
            slices[stats.table.name] = {"offset": offset, "rows": len(rows), "dtype": dtype}
            offset += file.write(rows.astype(f"<{np.dtype(dtype).str[1:]}").data)
    return slices


def _read_order(path: Path, slices: dict[str, _Slice]) -> RowOrder:
    try:
        size = path.stat().st_size
    except OSError:
        raise UserError(f"{path}: the row order is missing; plan again") from None
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
