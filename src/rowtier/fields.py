"""Field types of rowtier's files: human units outside, SI numbers inside.

In a file a quantity is a string with its unit. In Python the field's name carries
the unit (`capacity_bytes`), so a bare number is taken as that; a string works too.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, PlainSerializer, StringConstraints, ValidationInfo
from pydantic_core import PydanticCustomError

from rowtier import units
from rowtier.errors import UnitError

Number = TypeVar("Number", int, float)


def _reader(
    parse: Callable[[str], Number],
    least: float,
    wanted: str,
    bare_in_file: bool = False,
) -> Callable[[Any, ValidationInfo], Number]:
    def read(value: Any, info: ValidationInfo) -> Number:
        try:
            number = _number(value, info)
        except UnitError as error:
            raise _refusal(error.why) from None
        if not math.isfinite(number):
            raise _refusal(f"is not finite; write {wanted}")
        if number < least:
            limit = "zero or more" if least == 0 else f"at least {least:g}"
            raise _refusal(f"must be {limit}; write {wanted}")
        return number

    def _number(value: Any, info: ValidationInfo) -> Number:
        if isinstance(value, str):
            return parse(value)
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise UnitError(value, f"is a {type(value).__name__}; write {wanted}")
        if in_file(info) and not bare_in_file and value != 0:
            raise UnitError(value, f"has no unit; write {wanted}")
        number = int(value) if isinstance(value, numbers.Integral) else float(value)  # numpy's too
        return parse(repr(number)) if bare_in_file else number  # type: ignore[return-value]

    return read


def in_file(info: ValidationInfo) -> bool:
    """Whether a value is being read from a file, where quantities must carry their unit."""
    return bool(info.context and info.context.get("in_file"))


def _refusal(message: str) -> PydanticCustomError:
    # Braces would be taken as placeholders by pydantic.
    return PydanticCustomError("rowtier", "{message}", {"message": message})


Bytes = Annotated[
    int,
    BeforeValidator(_reader(units.parse_bytes, 1, "a size such as 24GiB, 24GB or 32B")),
    PlainSerializer(units.spell_bytes, when_used="json"),
]
BytesPerSecond = Annotated[
    float,
    BeforeValidator(
        _reader(units.parse_bandwidth, 1, "a bandwidth such as 25GB/s or 200Gbit/s"),
    ),
    PlainSerializer(units.spell_bandwidth, when_used="json"),
]
Seconds = Annotated[
    float,
    BeforeValidator(_reader(units.parse_seconds, 0, "a duration such as 5us, 1.5ms or 2s")),
    PlainSerializer(units.spell_seconds, when_used="json"),
]
Count = Annotated[
    int,
    BeforeValidator(
        _reader(units.parse_count, 0, "a whole number such as 0, 4096 or 80M", bare_in_file=True),
    ),
]
PositiveCount = Annotated[
    int,
    BeforeValidator(
        _reader(units.parse_count, 1, "a whole number such as 4096 or 80M", bare_in_file=True),
    ),
]
Name = Annotated[
    str,
    StringConstraints(strict=True, min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$"),
]
