"""Reading and writing rowtier's files: all mistakes at once, never a half-written file.

A *noun* (`Table`, `Cluster`, …) is a frozen pydantic model. Files are YAML where a
person writes them and JSON where a program does; both carry `format_version`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import xxhash
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, model_validator

from rowtier.errors import InvalidError, Mistake, VersionError
from rowtier.fields import in_file
from rowtier.reading import StrPath, read_mapping
from rowtier.sayings import mistake_from, type_inside
from rowtier.writing import write_atomic

FORMAT_VERSION = 1

N = TypeVar("N", bound="Noun")


class Noun(BaseModel):
    """A small frozen type that knows how to save itself and how to be read back."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        hide_input_in_errors=True,
        allow_inf_nan=False,
    )

    @classmethod
    def cross_mistakes(cls, data: Mapping[str, Any]) -> Iterator[Mistake]:  # noqa: ARG003
        """Mistakes that no single field can see, found on unvalidated file data."""
        yield from ()

    @model_validator(mode="after")
    def _refuse_cross_mistakes(self, info: ValidationInfo) -> Noun:
        if not in_file(info):  # a file's are collected by `parse`, beside all others
            mistakes = list(self.cross_mistakes(self.to_data()))
            if mistakes:
                raise ValueError("; ".join(map(str, mistakes)))
        return self

    def to_data(self) -> dict[str, Any]:
        """The plain dictionary that a file holds, in human units, defaults left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    @property
    def fingerprint(self) -> str:
        """A short hash of the content; equal content has equal fingerprints."""
        # Defaults are left out, so that a field added later leaves old fingerprints as they are.
        return fingerprint_of(self.model_dump(mode="python", exclude_defaults=True))

    def save(self, path: StrPath) -> None:
        """Write to a YAML file, beside it first and then renamed into place."""
        data = {"format_version": FORMAT_VERSION, **self.to_data()}
        write_atomic(path, yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100))

    @classmethod
    def load(cls: type[N], path: StrPath) -> N:
        """Read and fully validate a YAML file; raises one error that lists every mistake."""
        data = read_mapping(path)
        check_version(path, data)
        return parse(cls, data, path)


def parse(noun: type[N], data: Mapping[str, Any], source: StrPath, prefix: str = "") -> N:
    """Build a noun from file data, or raise `InvalidError` with all mistakes in it."""
    found, mistakes = try_parse(noun, data, prefix)
    if found is None:
        raise InvalidError(source, mistakes)
    return found


def try_parse(
    noun: type[N], data: Mapping[str, Any], prefix: str = "", *, units: bool = True
) -> tuple[N | None, list[Mistake]]:
    """Build a noun from file data and list what is wrong with it; None if anything is.

    Without `units` quantities are plain numbers, as their fields' names say.
    """
    body = {key: value for key, value in data.items() if key != "format_version"}
    result, mistakes = None, []
    context = {"in_file": units}
    try:
        result = noun.model_validate(body, by_alias=True, by_name=False, context=context)
    except ValidationError as error:
        details = error.errors(include_url=False)
        # A list whose entries are wrong is reported as too short as well: say it once.
        mistakes = [
            mistake_from(noun, d) for d in details if d["type"] != "too_short" or not d["input"]
        ]
    mistakes += _cross_mistakes(noun, body)
    if prefix:
        mistakes = [mistake.below(prefix) for mistake in mistakes]
    return (None if mistakes else result), mistakes


def _cross_mistakes(kind: Any, data: object) -> Iterator[Mistake]:
    """The cross mistakes of a noun in file data, and of all nouns inside it."""
    if isinstance(data, Mapping):
        if isinstance(kind, type) and issubclass(kind, Noun):
            yield from kind.cross_mistakes(data)
        for key, value in data.items():
            for mistake in _cross_mistakes(type_inside(kind, str(key)), value):
                yield mistake.below(str(key))
    elif isinstance(data, (list, tuple)):
        for index, value in enumerate(data):
            for mistake in _cross_mistakes(type_inside(kind, index), value):
                yield mistake.below(f"[{index}]")


def check_version(path: StrPath, data: Mapping[str, Any]) -> None:
    """Refuse a file of another format version; a hand-written file may leave it out."""
    found = data.get("format_version", FORMAT_VERSION)
    if found != FORMAT_VERSION or isinstance(found, bool):
        raise VersionError(
            path,
            [
                Mistake(
                    "format_version",
                    found,
                    f"this rowtier reads format_version {FORMAT_VERSION} and the file has "
                    f"{found!r}: use the rowtier that wrote it, or write it anew with this one",
                )
            ],
        )


def fingerprint_of(data: object, *arrays: Any) -> str:
    """Hash plain data (and numpy arrays) into a short hexadecimal name for the content."""
    digest = xxhash.xxh3_64()
    digest.update(json.dumps(data, sort_keys=True, separators=(",", ":")).encode())
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(memoryview(array).cast("B") if array.size else b"")
    return digest.hexdigest()


def seal_mistakes(sealed: str | None, found: str, again: str) -> list[Mistake]:
    """Whether content is what it was when its fingerprint was written.

    Without the key nothing is asked here, for people edit files; `rowtier verify` misses it.
    """
    if sealed in (None, found):
        return []
    why = f"the content has {found}, so it changed after it was written; {again} again, or drop "
    return [Mistake("fingerprint", sealed, why + "the key to accept the content as it is")]


def mappings(data: Mapping[str, Any], key: str) -> list[tuple[int, Mapping[str, Any]]]:
    """The numbered mappings in the list at `key`; whatever else stands there is passed over."""
    listed = data.get(key)
    entries = listed if isinstance(listed, (list, tuple)) else ()
    return [(i, entry) for i, entry in enumerate(entries) if isinstance(entry, Mapping)]


def dump_json(data: object) -> str:
    """JSON for people and diffs: what fits on one line stays on one line."""
    return _layout(data, 0) + "\n"


def _layout(data: object, indent: int, width: int = 120) -> str:
    flat = json.dumps(data, ensure_ascii=False)
    if len(flat) + indent <= width or not isinstance(data, (dict, list)) or not data:
        return flat
    pad = " " * (indent + 2)
    if isinstance(data, dict):
        lines = [
            f"{pad}{json.dumps(key, ensure_ascii=False)}: {_layout(value, indent + 2)}"
            for key, value in data.items()
        ]
        return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"
    lines = [pad + _layout(value, indent + 2) for value in data]
    return "[\n" + ",\n".join(lines) + "\n" + " " * indent + "]"
