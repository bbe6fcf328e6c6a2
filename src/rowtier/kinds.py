"""Open whatever rowtier wrote or reads, by looking at what it holds."""

from __future__ import annotations

from pathlib import Path

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.errors import InvalidError, Mistake, UserError
from rowtier.files import Noun, check_version, parse
from rowtier.plan.constraints import Constraints
from rowtier.plan.plan import Plan
from rowtier.profile.profile import Profile
from rowtier.reading import StrPath, read_mapping
from rowtier.tables import Table, Tables

_FOLDERS: dict[str, type[Plan] | type[Profile]] = {"plan.json": Plan, "profile.json": Profile}
_FILES: tuple[type[Noun], ...] = (Cluster, Tables, Table, Band, Constraints)


def load(path: StrPath) -> Plan | Profile | Noun:
    """Read and fully validate a folder that rowtier wrote, or a file that it reads."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path}: there is no such file or folder; check the path")
    if path.is_dir():
        return _load_folder(path)
    if path.name in _FOLDERS:
        return _FOLDERS[path.name].load(path.parent)
    data = read_mapping(path)
    check_version(path, data)
    kind = max(_FILES, key=lambda noun: len(_keys(noun) & set(data)))
    if isinstance(data.get("tables"), dict):  # by name, where a tables file has a list
        kind = Constraints
    if not _keys(kind) & set(data):
        accepted = "; ".join(f"a {n.__name__.lower()} file has {_listed(n)}" for n in _FILES[:2])
        raise InvalidError(path, [Mistake(", ".join(data), None, f"unknown keys: {accepted}")])
    return parse(kind, data, path)


def _load_folder(path: Path) -> Plan | Profile | Noun:
    for marker, kind in _FOLDERS.items():
        if (path / marker).exists():
            return kind.load(path)
    if (path / "tables.yaml").exists():
        tables = Tables.load(path / "tables.yaml")
        if (path / "data").is_dir():
            from rowtier.profile.readers import open_source

            open_source(path / "data", [name for table in tables for name in table.features])
        return tables
    raise UserError(
        f"{path}: the folder holds none of {', '.join([*_FOLDERS, 'tables.yaml'])}; "
        "give a folder that rowtier wrote"
    )


def _keys(noun: type[Noun]) -> set[str]:
    return {field.alias or name for name, field in noun.model_fields.items()}


def _listed(noun: type[Noun]) -> str:
    return ", ".join(field.alias or name for name, field in noun.model_fields.items())
