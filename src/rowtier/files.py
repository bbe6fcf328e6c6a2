"""Reading and writing rowtier's files: all mistakes at once, never a half-written file.

A *noun* (`Table`, `Cluster`, …) is a frozen pydantic model. Files are YAML where a
person writes them and JSON where a program does; both carry `format_version`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import xxhash
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, model_validator

from rowtier.errors import InvalidError, Mistake, UserError, VersionError
from rowtier.fields import in_file
from rowtier.sayings import mistake_from, type_inside

FORMAT_VERSION = 1

StrPath = str | os.PathLike[str]
N = TypeVar("N", bound="Noun")


class Noun(BaseModel):
    """A small frozen type that knows how to save itself and how to be read back."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, hide_input_in_errors=True
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
    noun: type[N], data: Mapping[str, Any], prefix: str = ""
) -> tuple[N | None, list[Mistake]]:
    """Build a noun from file data and list what is wrong with it; None if anything is."""
    body = {key: value for key, value in data.items() if key != "format_version"}
    result, mistakes = None, []
    try:
        result = noun.model_validate(body, by_alias=True, by_name=False, context={"in_file": True})
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


def read_mapping(path: StrPath) -> dict[str, Any]:
    """Read a YAML or JSON file whose top is a mapping; JSON is chosen by the `.json` ending."""
    text = read_text(path)
    try:
        data = _parse_json(text) if str(path).endswith(".json") else _parse_yaml(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        kind = "JSON" if str(path).endswith(".json") else "YAML"
        why = " ".join(str(error).split())
        raise _broken(
            path, f"is not valid {kind} ({why}); mend it or write the file anew"
        ) from None
    if not isinstance(data, dict):
        raise _broken(
            path, f"holds a {type(data).__name__}, not keys with values; see docs/files.md"
        )
    strange = [key for key in data if not isinstance(key, str)]
    if strange:
        raise InvalidError(path, [Mistake(repr(k), None, "keys must be words") for k in strange])
    return data


def read_text(path: StrPath) -> str:
    """Read a text file, or say why it is not one."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise _broken(path, "is not text (UTF-8); give a file that rowtier or you wrote") from None
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; check the path") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder where a file was expected") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if not text.strip():
        raise _broken(path, "is empty; see docs/files.md for what belongs into it")
    if "\0" in text:
        raise _broken(path, "holds binary data, not text; give a file that rowtier or you wrote")
    return text


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
    """Whether content is what it was when its fingerprint was written; no key, no question."""
    if sealed in (None, found):
        return []
    why = f"the content has {found}, so it changed after it was written; {again} again, or drop "
    return [Mistake("fingerprint", sealed, why + "the key to accept the content as it is")]


def duplicates(names: Iterable[object]) -> list[tuple[int, object]]:
    """Positions and values of entries that stood earlier in the same list."""
    seen: set[object] = set()
    found: list[tuple[int, object]] = []
    for index, name in enumerate(names):
        if isinstance(name, str) and name in seen:
            found.append((index, name))
        if isinstance(name, str):
            seen.add(name)
    return found


def mappings(data: Mapping[str, Any], key: str) -> list[tuple[int, Mapping[str, Any]]]:
    """The numbered mappings in the list at `key`; whatever else stands there is passed over."""
    listed = data.get(key)
    entries = listed if isinstance(listed, (list, tuple)) else ()
    return [(i, entry) for i, entry in enumerate(entries) if isinstance(entry, Mapping)]


def dump_json(data: object) -> str:
    """JSON for people and diffs: what fits on one line stays on one line."""
    return _layout(data, 0) + "\n"


def write_atomic(path: StrPath, content: str | bytes) -> None:
    """Write a file beside its place and rename it, so that it is never half there."""
    path = Path(path)
    raw = content.encode() if isinstance(content, str) else content
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(raw)
            Path(temporary).chmod(0o666 & ~_umask())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def replace_folder(path: StrPath, marker: str) -> Iterator[Path]:
    """Fill a temporary folder, then put it in the place of `path` in one rename.

    An existing folder is replaced only if it is empty or holds `marker`, the file
    that shows it is an earlier result of the same kind.
    """
    target = Path(path)
    check_replaceable(target, marker)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            temporary.chmod(0o777 & ~_umask())
            yield temporary
            if target.exists():
                old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
                target.replace(old / "was")
                temporary.replace(target)
                shutil.rmtree(old)
            else:
                temporary.replace(target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def check_replaceable(target: Path, marker: str) -> None:
    """Refuse to overwrite a file, or a folder that holds anything but an earlier result."""
    if target.is_dir():
        if any(target.iterdir()) and not (target / marker).exists():
            raise UserError(
                f"{target}: the folder is not empty and holds no {marker}, so it is left alone; "
                "give a new folder, or empty this one"
            )
    elif target.exists():
        raise UserError(f"{target}: is a file where a folder is to be written; give a new folder")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the operating system says about a write into an error for people."""
    try:
        yield
    except OSError as error:
        if isinstance(error, (BlockingIOError, ChildProcessError, ConnectionError)):
            raise
        raise UserError(
            f"{path}: cannot be written ({error.strerror or error}); nothing is half-written. "
            "Check the path, its permissions and the free space"
        ) from error


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _broken(path: StrPath, why: str) -> InvalidError:
    return InvalidError(path, [Mistake("", None, f"the file {why}")])


class _StrictLoader(yaml.SafeLoader):
    """YAML without silent surprises: a key that stands twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, name in duplicates(keys):
            line = node.value[index][0].start_mark.line + 1
            raise ValueError(f"line {line}: the key {name!r} stands twice")
        return super().construct_mapping(node, deep)


def _parse_yaml(text: str) -> object:
    return yaml.load(text, Loader=_StrictLoader)


def _parse_json(text: str) -> object:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for _, name in duplicates(key for key, _ in pairs):
            raise ValueError(f"the key {name!r} stands twice")
        return dict(pairs)

    return json.loads(text, object_pairs_hook=once)


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
