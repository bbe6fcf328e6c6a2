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
from rowtier.errors import UnitError, UserError

Number = TypeVar("Number", int, float)

# The most of everything, so that no product of two of them leaves 64 bits and no list of them
# leaves memory. Each is far above what anybody has.
MOST_ROWS = 2**46  # of a table: 7·10¹³
MOST_COLUMNS = 2**16  # of a table; a row and its optimizer state then take 2²⁰ bytes at most
MOST_TABLES = 2**16
MOST_FEATURES = 2**12  # of a table
MOST_BATCH = 2**30  # samples of a device and step; those of all devices are 2⁴⁶
MOST_OCCURRENCES = 2**16 - 1  # that a counter of a sketch can hold
MOST_COUNT = 2**53  # of samples, lookups and the like: as far as floats are exact
MOST_SEED = 2**63 - 1
MOST_DEVICES = 2**16
MOST_SERVERS = 2**16
MOST_LEVELS = 16
MOST_TIERS = 16  # of a device, or of a server
MOST_BYTES = 2**60  # of a memory, and of a table: an exbibyte
MOST_GRANULARITY_BYTES = 2**30
MOST_BYTES_PER_S = 1e18
MOST_SECONDS = 1e9  # thirty years
MOST_HORIZON = 1e6  # lengths of the data


def _reader(
    parse: Callable[[str], Number],
    least: float,
    wanted: str,
    bare_in_file: bool = False,
    most: float = MOST_COUNT,
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
        if number > most:
            limit = f"{most}" if isinstance(most, int) else f"{most:.15g}"
            raise _refusal(f"must be at most {limit}; write {wanted}")
        return number

    def _number(value: Any, info: ValidationInfo) -> Number:
        if isinstance(value, str):
            return parse(value)
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise UnitError(value, f"is a {type(value).__name__}; write {wanted}")
        if in_file(info) and not bare_in_file and value != 0:
            raise UnitError(value, f"has no unit; write {wanted}")
        number = int(value) if isinstance(value, numbers.Integral) else float(value)  # numpy's too
        if isinstance(number, int) and abs(number) >= 2**64:
            raise UnitError("", f"has more than 64 bits; write {wanted}")
        return parse(repr(number)) if bare_in_file else number  # type: ignore[return-value]

    return read


def in_file(info: ValidationInfo) -> bool:
    """Whether a value is being read from a file, where quantities must carry their unit."""
    return bool(info.context and info.context.get("in_file"))


def whole_number(value: object) -> int | None:
    """A whole number as a file may hold it; None if it is none, which its field reports."""
    if isinstance(value, str) or type(value) is int:
        try:
            return units.parse_count(value if isinstance(value, str) else repr(value))
        except ValueError:
            return None
    return None


def check_text(said: str, text: str) -> str:
    """A text that a caller gave, or an error if it is none: bytes that are not Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{said} {text!a}: is not Unicode text; check it") from None
    return text


def check_batch_size(batch_size: int) -> int:
    """A batch size that a caller gave, or an error that says what is accepted."""
    if not 1 <= batch_size <= MOST_BATCH:
        accepted = f"give a whole number, 1 or more and at most {MOST_BATCH}"
        raise UserError(f"batch_size={batch_size}: {accepted}")
    return batch_size


def check_horizon(horizon: float, named: str = "horizon") -> float:
    """How far ahead a caller wants to look, or an error that says what is accepted."""
    if not 0 < horizon <= MOST_HORIZON:
        accepted = f"give a number above 0 and at most {MOST_HORIZON:g}, such as 0.5"
        raise UserError(f"{named} {horizon:g}: {accepted}")
    return horizon


def _refusal(message: str) -> PydanticCustomError:
    # Braces would be taken as placeholders by pydantic.
    return PydanticCustomError("rowtier", "{message}", {"message": message})


def _bytes(most: int) -> Any:
    read = _reader(units.parse_bytes, 1, "a size such as 24GiB, 24GB or 32B", most=most)
    return BeforeValidator(read)


def _count(least: int, most: int, example: str) -> Any:
    wanted = f"a whole number such as {example}"
    return BeforeValidator(_reader(units.parse_count, least, wanted, True, most))


_SPELLED_BYTES = PlainSerializer(units.spell_bytes, when_used="json")
Bytes = Annotated[int, _bytes(MOST_BYTES), _SPELLED_BYTES]
Granularity = Annotated[int, _bytes(MOST_GRANULARITY_BYTES), _SPELLED_BYTES]
BytesPerSecond = Annotated[
    float,
    BeforeValidator(
        _reader(
            units.parse_bandwidth,
            1,
            "a bandwidth such as 25GB/s or 200Gbit/s",
            most=MOST_BYTES_PER_S,
        ),
    ),
    PlainSerializer(units.spell_bandwidth, when_used="json"),
]
Seconds = Annotated[
    float,
    BeforeValidator(
        _reader(units.parse_seconds, 0, "a duration such as 5us, 1.5ms or 2s", most=MOST_SECONDS)
    ),
    PlainSerializer(units.spell_seconds, when_used="json"),
]
Count = Annotated[int, _count(0, MOST_COUNT, "0, 4096 or 80M")]
Occurrences = Annotated[int, _count(1, MOST_OCCURRENCES, "3 or 100")]
PositiveCount = Annotated[int, _count(1, MOST_COUNT, "4096 or 80M")]
Seed = Annotated[int, _count(0, MOST_SEED, "0 or 4096")]
Rows = Annotated[int, _count(0, MOST_ROWS, "0, 4096 or 80M")]
PositiveRows = Annotated[int, _count(1, MOST_ROWS, "4096 or 80M")]
Columns = Annotated[int, _count(1, MOST_COLUMNS, "64 or 128")]
BatchSize = Annotated[int, _count(1, MOST_BATCH, "4096 or 64k")]
DeviceCount = Annotated[int, _count(1, MOST_DEVICES, "8 or 1024")]
ServerCount = Annotated[int, _count(1, MOST_SERVERS, "1 or 16")]
Name = Annotated[
    str,
    # No control characters, neither ASCII's nor Unicode's, and no other ends of lines.
    StringConstraints(
        strict=True,
        min_length=1,
        max_length=200,
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$",
    ),
]
