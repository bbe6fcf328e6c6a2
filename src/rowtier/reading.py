"""Reading text files that people or programs wrote: YAML and JSON, without surprises.

All text that rowtier reads comes from here, and nobody vouches for it. So there are limits, far
above what a file of rowtier holds: a file beyond them is refused before memory is spent on it.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from rowtier.errors import InvalidError, Mistake, UserError
from rowtier.special import refuse_special

StrPath = str | os.PathLike[str]

# A plan.json of 5,000 tables in two bands each on 1,024 devices has 1 MB and 75,000 values; if
# every band named 1,023 of them, 154 MB and 10 million. A value takes up to 70 bytes of memory.
MOST_JSON_BYTES = 2**28
MOST_JSON_VALUES = 2**24
# People write YAML: 5,000 tables are 0.7 MB and 90,000 values. PyYAML reads 200,000 a second.
MOST_YAML_BYTES = 2**24
MOST_YAML_VALUES = 2**20  # with every alias counted as often as it is used
# The deepest file of rowtier, plan.json, has 8 levels.
MOST_DEPTH = 64
# Names have up to 200 characters, sentences of certificates a few hundred.
MOST_CHARACTERS = 2**16
MOST_DIGITS = 400  # of a number: no float has more before its point, and 64 bits have 20

_NUMBER = re.compile(r"[-+]?[0-9][0-9_.:eE+-]*")
_LONG = re.compile(r"\d{19}")  # digits that may be more than 64 bits
_SURROGATE = re.compile(r"\\[uU](?:0000)?[dD][89a-fA-F]")
_PLAIN_TAGS = (None, "!", *(f"tag:yaml.org,2002:{name}" for name in ("str", "seq", "map")))


def read_mapping(path: StrPath) -> dict[str, Any]:
    """Read a YAML or JSON file whose top is a mapping; JSON is chosen by the `.json` ending."""
    is_json = str(path).endswith(".json")
    text = read_text(path, MOST_JSON_BYTES if is_json else MOST_YAML_BYTES)
    try:
        data = _parse_json(text) if is_json else _parse_yaml(text)
        if _SURROGATE.search(text):
            _refuse_surrogates(data)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        why = " ".join(str(error).split())
        kind = "JSON" if is_json else "YAML"
        raise _broken(path, f"is not valid {kind} ({why}); fix it or write the file anew") from None
    if not isinstance(data, dict):
        raise _broken(
            path, f"holds a {type(data).__name__}, not keys with values; see docs/files.md"
        )
    strange = [key for key in data if not isinstance(key, str)]
    if strange:
        raise InvalidError(path, [Mistake(repr(k), None, "keys must be words") for k in strange])
    return data


def read_text(path: StrPath, most_bytes: int = MOST_JSON_BYTES) -> str:
    """Read a text file, or say why it is not one."""
    refuse_special(path)
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(most_bytes + 1)  # not by its size: pipes and devices have none
        text = "" if len(raw) > most_bytes else raw.decode("utf-8")
    except UnicodeDecodeError:
        raise _broken(path, "is not text (UTF-8); give a file that rowtier or you wrote") from None
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; check the path") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder where a file was expected") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:  # a path with a null byte
        raise UserError(f"{str(path)!r}: is no path; check it") from None
    if len(raw) > most_bytes:
        raise _broken(path, f"is larger than {most_bytes >> 20} MiB, the most that is read")
    if not text.strip():
        raise _broken(path, "is empty; see docs/files.md for what belongs into it")
    if "\0" in text:
        raise _broken(path, "holds binary data, not text; give a file that rowtier or you wrote")
    return text


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


def _broken(path: StrPath, why: str) -> InvalidError:
    return InvalidError(path, [Mistake("", None, f"the file {why}")])


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML without silent surprises: a duplicate key is an error, and dates are words."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as PyYAML has it
        first: [(tag, pattern) for tag, pattern in known if not tag.endswith(":timestamp")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, name in duplicates(keys):
            line = node.value[index][0].start_mark.line + 1
            raise ValueError(f"line {line}: the key {name!r} is there twice")
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def _parse_yaml(text: str) -> object:
    limits = _Limits()
    for event in yaml.parse(text, Loader=_StrictLoader):
        limits.check(event)
    return yaml.load(text, Loader=_StrictLoader)


class _Limits:
    """What a YAML file would be once its aliases are expanded, found without doing so."""

    def __init__(self) -> None:
        self._values = 0  # so far, expanded
        self._open: list[tuple[str | None, int]] = []  # anchor, and values before it
        self._sizes: dict[str, int] = {}  # values of what each anchor stands for

    def check(self, event: yaml.Event) -> None:
        """Count an event, or raise a ValueError that says what is too much."""
        line = 0 if event.start_mark is None else event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in self._open):
                raise ValueError(f"line {line}: the alias {event.anchor!r} holds itself")
            self._values += self._sizes.get(str(event.anchor), 1)
        elif isinstance(event, yaml.NodeEvent):
            _check_tag(event, line)
            if isinstance(event, yaml.ScalarEvent):
                _check_scalar(event, line)
                self._values += 1
                self._note(event.anchor, 1)
            else:
                self._open.append((event.anchor, self._values))
                self._values += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = self._open.pop()
            self._note(anchor, self._values - before)
        if len(self._open) > MOST_DEPTH:
            raise ValueError(f"line {line}: more than {MOST_DEPTH} levels inside each other")
        if self._values > MOST_YAML_VALUES:
            raise ValueError(f"line {line}: more than {MOST_YAML_VALUES} values, aliases expanded")

    def _note(self, anchor: str | None, values: int) -> None:
        if anchor is not None:
            self._sizes[anchor] = values


def _check_tag(event: yaml.NodeEvent, line: int) -> None:
    tag: Any = getattr(event, "tag", None)
    if tag not in _PLAIN_TAGS:
        raise ValueError(f"line {line}: the tag {tag[:100]!r} is not for plain data; drop it")


def _check_scalar(event: yaml.ScalarEvent, line: int) -> None:
    if len(event.value) > MOST_CHARACTERS:
        raise ValueError(f"line {line}: a text of more than {MOST_CHARACTERS} characters")
    if len(event.value) > MOST_DIGITS and _NUMBER.fullmatch(event.value):
        raise ValueError(f"line {line}: a number of more than {MOST_DIGITS} digits")


def _parse_json(text: str) -> object:
    values = 1 + text.count(",") + text.count("[") + text.count("{")
    if values > MOST_JSON_VALUES:
        raise ValueError(f"about {values} values, and {MOST_JSON_VALUES} is the most")
    data = json.loads(
        text,
        object_pairs_hook=_unique_keys,
        parse_int=_whole if _LONG.search(text) else None,
        parse_float=_finite,
        parse_constant=_finite,
    )
    for depth, entry in _nested(data):
        if depth > MOST_DEPTH:
            raise ValueError(f"more than {MOST_DEPTH} levels inside each other")
        for value in (*entry, *entry.values()) if isinstance(entry, dict) else entry:
            if isinstance(value, str) and len(value) > MOST_CHARACTERS:
                raise ValueError(f"a text of more than {MOST_CHARACTERS} characters")
    return data


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for _, name in duplicates(key for key, _ in pairs):
        raise ValueError(f"the key {name!r} is there twice")
    return dict(pairs)


def _whole(text: str) -> int:
    value = int(text) if len(text) <= MOST_DIGITS else 2**64
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"the number {text[:40]} has more than 64 bits")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is no finite number")
    return value


def _nested(data: object) -> Iterator[tuple[int, dict[str, Any] | list[Any]]]:
    """All mappings and lists inside data, and how deep each is."""
    waiting = [(1, data)]
    while waiting:
        depth, entry = waiting.pop()
        if isinstance(entry, (dict, list)):
            yield depth, entry
            inside = entry.values() if isinstance(entry, dict) else entry
            waiting += [(depth + 1, each) for each in inside if isinstance(each, (dict, list))]


def _refuse_surrogates(data: object) -> None:
    """Half a character, which JSON can spell and no text can hold."""
    for _, entry in _nested(data):
        for value in (*entry, *entry.values()) if isinstance(entry, dict) else entry:
            if isinstance(value, str):
                try:
                    value.encode()
                except UnicodeEncodeError:
                    raise ValueError(f"{value[:40]!a} is no text: half a character") from None
