"""Human quantities in, SI base units inside: "24GiB", "25GB/s", "5us", "80M".

GB is 10⁹ bytes and GiB is 2³⁰. Links are often sold in bits, so "100Gbit/s" is read
too. Every `parse_*` has a `spell_*` that writes the value back so that parsing it
gives the same number; `show_*` rounds for people.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from rowtier.errors import UnitError

_SI = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_IEC = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}

# Factors are fractions, so that "5us" is the very number 5e-6.
Units = Mapping[str, Fraction]
COUNT: Units = {prefix: Fraction(factor) for prefix, factor in _SI.items()}
BYTES: Units = {f"{prefix}B": Fraction(factor) for prefix, factor in (_SI | _IEC).items()}
BANDWIDTH: Units = {f"{unit}/s": factor for unit, factor in BYTES.items()} | {
    f"{prefix}bit/s": Fraction(factor, 8) for prefix, factor in _SI.items()
}
SECONDS: Units = {"h": Fraction(3600), "min": Fraction(60), "s": Fraction(1)} | {
    unit: Fraction(1, 1000**power) for unit, power in (("ms", 1), ("us", 2), ("µs", 2), ("ns", 3))
}

_LARGEST = 2**63 - 1
_LONGEST = 100  # characters of a quantity
_QUANTITY = re.compile(
    r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([^\d\s].*?)?\s*"
)


def parse_bytes(text: str) -> int:
    """Read a size: "24GiB", "32B", "1.5TB"."""
    wanted = "a size such as 24GiB, 24GB or 32B"
    return _whole(text, _parse(text, BYTES, wanted), wanted)


def parse_bandwidth(text: str) -> float:
    """Read a bandwidth in bytes per second: "25GB/s", "100Gbit/s"."""
    return _float(text, _parse(text, BANDWIDTH, "a bandwidth such as 25GB/s or 200Gbit/s"))


def parse_seconds(text: str) -> float:
    """Read a duration: "5us", "1.5ms"."""
    return _float(text, _parse(text, SECONDS, "a duration such as 5us, 1.5ms or 2s"))


def parse_count(text: str) -> int:
    """Read a whole number: "80M", "1_000", "2.5k"."""
    wanted = "a whole number such as 4096, 80M or 2G"
    return _whole(text, _parse(text, COUNT, wanted), wanted)


def parse_share(text: str) -> float:
    """Read a share of a whole: "10%" or "0.1"."""
    shares = {"%": Fraction(1, 100), "": Fraction(1)}
    value = _parse(text, shares, "a share such as 10% or 0.1")
    if not 0 <= value <= 1:
        raise UnitError(text, "is not between 0% and 100%; write a share such as 10%")
    return float(value)


def spell_bytes(value: int) -> str:
    """Write a size exactly, in the largest unit that keeps it short."""
    return _spell(value, BYTES, ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "kB"), "B")


def spell_bandwidth(value: float) -> str:
    """Write a bandwidth exactly."""
    units = ("TB/s", "GiB/s", "GB/s", "MB/s", "kB/s")
    return _spell(value, BANDWIDTH, units, "B/s")


def spell_seconds(value: float) -> str:
    """Write a duration exactly."""
    return _spell(value, SECONDS, ("s", "ms", "us", "ns"), "s")


def show_seconds(value: float) -> str:
    """Round a duration for people: "12 ms"."""
    if not value:
        return "0"
    size = abs(value)
    if size >= 1:
        return f"{value:.4g} s"
    return f"{1e3 * value:.4g} ms" if size >= 1e-3 else f"{1e6 * value:.4g} µs"


def show_bytes(value: float) -> str:
    """Round a size for people: "24.0 GiB"."""
    for prefix in ("Pi", "Ti", "Gi", "Mi", "Ki"):
        if abs(value) >= _IEC[prefix]:
            return f"{value / _IEC[prefix]:.1f} {prefix}B"
    return f"{value:.0f} B"


def ask_bytes(value: float) -> str:
    """A size for people to type, never less than it is: 1548KiB, 24GiB."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= 100 * size:
            return f"{-int(-value // size)}{unit}"
    return f"{-int(-value // 1)}B"


def show_count(value: float) -> str:
    """Round a count for people: "1.33 G", "80.0 M", "412"."""
    for prefix in ("T", "G", "M", "k"):
        if abs(value) >= _SI[prefix]:
            return f"{value / _SI[prefix]:.3g} {prefix}"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"


def _parse(text: str, units: Units, wanted: str) -> Fraction:
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise UnitError(text[:_LONGEST], f"cannot be read; write {wanted}")
    unit = match[2] or ""
    if unit not in units:
        raise UnitError(text, f"{_unit_trouble(unit, units)}; write {wanted}")
    return Fraction(match[1].replace("_", "")) * units[unit]


def _unit_trouble(unit: str, units: Units) -> str:
    if not unit:
        return "has no unit"
    known = {u.lower(): u for u in units}
    if unit.lower() in known:
        return f"unit {unit!r} is unclear (did you mean {known[unit.lower()]!r}?)"
    return f"unknown unit {unit!r}"


def _whole(text: str, value: Fraction, wanted: str) -> int:
    if value.denominator != 1:
        raise UnitError(text, f"is not a whole number; write {wanted}")
    if abs(value) > _LARGEST:
        raise UnitError(text, f"is more than {_LARGEST}; write {wanted}")
    return int(value)


def _float(text: str, value: Fraction) -> float:
    if abs(value) > _LARGEST:
        raise UnitError(text, f"is more than {_LARGEST}; write a smaller quantity")
    return float(value)


def _spell(value: float, units: Units, order: tuple[str, ...], base: str) -> str:
    exact = []
    for unit in order:
        text = f"{float(Fraction(value) / units[unit]):.12g}"
        if (
            value >= units[unit]
            and "e" not in text
            and float(_parse(text + unit, units, "")) == value
        ):
            exact.append(text + unit)
    return min([*exact, f"{value!r}{base}"], key=len)
