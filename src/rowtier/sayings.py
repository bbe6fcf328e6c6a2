"""What pydantic found wrong, said so that a person knows what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from rowtier.errors import Mistake

_SAYINGS = {
    "missing": "this key is required and missing; add it",
    "tuple_type": "a list is needed, as in [a, b]",
    "list_type": "a list is needed, as in [a, b]",
    "model_type": "keys with values are needed here, as in {name: …}",
    "dict_type": "keys with values are needed here, as in {name: …}",
    "string_type": "a word is needed; put it in quotes if it looks like a number",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must be one line without control characters",
    "too_short": "must hold at least one entry",
    **dict.fromkeys(("float_type", "float_parsing"), "a number is needed, as in 0.5"),
    **dict.fromkeys(
        ("int_type", "int_parsing", "int_from_float"), "a whole number is needed, as in 8"
    ),
    **dict.fromkeys(("bool_type", "bool_parsing"), "accepted: true, false"),
}


def mistake_from(noun: type[BaseModel], detail: Mapping[str, Any]) -> Mistake:
    """Turn one of pydantic's error details into a key, a value and what is accepted."""
    location = tuple(detail["loc"])
    if detail["type"] == "extra_forbidden":
        accepted = _unknown_key(noun, location)
    elif detail["type"] == "literal_error":
        accepted = f"accepted: {detail['ctx']['expected']}"
    else:
        said = str(detail["msg"]).removeprefix("Value error, ")
        accepted = _SAYINGS.get(detail["type"], said)
    if detail["type"] == "too_long":
        accepted = f"must hold at most {detail['ctx']['max_length']} entries"
    value = None if detail["type"] == "missing" else detail.get("input")
    return Mistake(_key(location), value, accepted)


def _unknown_key(noun: type[BaseModel], location: tuple[Any, ...]) -> str:
    known = _known_keys(noun, location[:-1])
    near = difflib.get_close_matches(str(location[-1]), known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown key; {hint}accepted here: {', '.join(known)}"


def _key(location: tuple[Any, ...]) -> str:
    key = ""
    for part in location:
        key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else str(part)
    return key


def _known_keys(noun: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """The keys a file may hold at a place, found by walking the field types to it."""
    here: Any = noun
    for part in location:
        here = type_inside(here, part)
    return list(fields_by_key(here)) if is_model(here) else []


def is_model(annotation: Any) -> bool:
    """Whether a type annotation is a model class."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def fields_by_key(noun: type[BaseModel]) -> dict[str, Any]:
    """The type annotations of a model's fields, by the key a file uses."""
    return {field.alias or name: field.annotation for name, field in noun.model_fields.items()}


def type_inside(annotation: Any, part: str | int) -> Any:
    """The type of what stands at a key or position of something of a type; None if unknown."""
    if is_model(annotation):
        return fields_by_key(annotation).get(str(part))
    arguments = get_args(annotation)
    if get_origin(annotation) in (dict, tuple, list):
        return arguments[1] if get_origin(annotation) is dict else arguments[0]
    for option in arguments:  # a union: the first part that holds anything
        if is_model(option) or get_args(option):
            return type_inside(option, part)
    return None
