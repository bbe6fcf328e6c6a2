"""What each workload can be asked for: one small class per workload, checked when it is made.

The field declarations below are the only list of options: their help texts, defaults and
limits are what `options_of` in `make.py` hands to the command line.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from rowtier.errors import UserError

OptionValue = int | float | bool | None


@dataclass(frozen=True)
class Option:
    """One thing a workload can be asked for."""

    name: str
    kind: Literal["whole", "number", "switch"]
    default: OptionValue  # None: the help text says what is taken then
    help: str
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[int, ...] = ()

    def read(self, value: object) -> OptionValue:
        """The value in its proper type, or an error that names it and what is accepted."""
        if value is None and self.default is None:
            return None
        number = self._typed(value)
        if self.choices:
            fits = number in self.choices
        else:
            fits = (
                (self.least is None or number >= self.least)
                and (self.above is None or number > self.above)
                and (self.most is None or number <= self.most)
            )
        if not fits:
            raise self.refusal(value)
        return number

    def refusal(self, value: object) -> UserError:
        """The error for a value that is not accepted."""
        hint = "" if self.default is None else f" (default: {self.default})"
        return UserError(f"{self.name}={value!r}: give {self.accepted}{hint}")

    @property
    def accepted(self) -> str:
        """The values that are accepted, in words."""
        if self.kind == "switch":
            return "True or False"
        if self.choices:
            return " or ".join(map(str, self.choices))
        limits = [
            f"{words} {limit:g}" if limit < 1e6 else f"{words} {int(limit):,}"
            for words, limit in (
                ("at least", self.least), ("above", self.above), ("at most", self.most)
            )
            if limit is not None
        ]  # fmt: skip
        noun = "a whole number" if self.kind == "whole" else "a number"
        return f"{noun} {' and '.join(limits)}"

    def _typed(self, value: object) -> int | float | bool:
        flag = isinstance(value, bool)
        try:
            if self.kind == "switch" and flag:
                return bool(value)
            if self.kind == "whole" and not flag:
                return operator.index(value)  # type: ignore[arg-type]
            if self.kind == "number" and not flag and not isinstance(value, str):
                number = float(value)  # type: ignore[arg-type]
                if math.isfinite(number):
                    return number
        except (TypeError, ValueError, OverflowError):
            pass
        raise self.refusal(value)


def _whole(default: int | None, text: str, **limits: Any) -> Any:
    return field(default=default, metadata={"kind": "whole", "help": text, **limits})


def _number(default: float | None, text: str, **limits: Any) -> Any:
    return field(default=default, metadata={"kind": "number", "help": text, **limits})


def _switch(default: bool, text: str) -> Any:
    return field(default=default, metadata={"kind": "switch", "help": text})


def _samples(default: int) -> Any:
    return _whole(default, "samples to write", least=1, most=10**12)


def _rows(default: int, noun: str) -> Any:
    # Ranks are computed in double precision, which is exact to 2⁵³.
    return _whole(default, f"{noun}, rows of the table", least=1, most=10**12)


def _dim() -> Any:
    return _whole(128, "numbers in a row of every table", least=1, most=65536)


def _batch() -> Any:
    return _whole(4096, "samples per device and step, noted in tables.yaml", least=1, most=10**9)


def _zipf(default: float | None, text: str) -> Any:
    return _number(default, text, least=0, most=10)


@dataclass(frozen=True)
class Options:
    """What all workloads share: values are checked and put into their type."""

    def __post_init__(self) -> None:
        for option in self.described():
            object.__setattr__(self, option.name, option.read(getattr(self, option.name)))

    @classmethod
    def described(cls) -> Iterator[Option]:
        """Every option of this workload, in order."""
        for entry in fields(cls):
            default: Any = entry.default
            yield Option(entry.name, default=default, **entry.metadata)

    def to_data(self) -> dict[str, OptionValue]:
        """The options by name, as `workload.json` holds them."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}


@dataclass(frozen=True)
class CriteoOptions(Options):
    """Options of `criteo`."""

    samples: int = _samples(1_000_000)
    scale: float = _number(
        0.01, "shrinks rows and ids per sample; 1 is MLPerf's size", above=0, most=100
    )
    zipf: float | None = _zipf(None, "one skew for all features instead of Criteo's own")
    hashed: bool = _switch(False, "hash as many values as rows, so 1/e of the rows stay untouched")
    embedding_dim: int = _dim()
    batch_size: int = _batch()


@dataclass(frozen=True)
class SequenceOptions(Options):
    """Options of `sequence`."""

    samples: int = _samples(200_000)
    rows: int = _rows(1_000_000, "items")
    users: int = _rows(100_000, "users")
    zipf: float = _zipf(1.05, "skew of the items")
    mean_length: float = _number(50.0, "mean items per session", least=1, most=10**6)
    max_length: int = _whole(200, "items in the longest session", least=1, most=10**6)
    spread: float = _number(0.8, "sigma of the log-normal length", least=0, most=5)
    embedding_dim: int = _dim()
    batch_size: int = _batch()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mean_length > self.max_length:
            raise UserError(
                f"mean_length={self.mean_length:g} is above max_length={self.max_length}: "
                "raise max_length or lower mean_length"
            )


@dataclass(frozen=True)
class DriftOptions(Options):
    """Options of `drift`."""

    samples: int = _samples(1_000_000)
    rows: int = _rows(100_000, "items")
    zipf: float = _zipf(1.05, "skew of the items")
    rate: float = _number(
        0.2, "share of the ranks that change owner over the dataset", least=0, most=1
    )
    embedding_dim: int = _dim()
    batch_size: int = _batch()


@dataclass(frozen=True)
class MetaOptions(Options):
    """Options of `meta`."""

    year: int = _whole(2021, "which of Meta's published histograms", choices=(2021, 2022))
    tables: int | None = _whole(
        None, "how many tables (the published 856 or 788 if left out)", least=1, most=100_000
    )
    scale: float = _number(
        0.001, "share of every table's rows to keep, with their accesses", above=0, most=1
    )
    batches: int = _whole(2, "batches of the published size to write", least=1, most=10**6)
    embedding_dim: int = _dim()


@dataclass(frozen=True)
class RmOptions(Options):
    """Options of `rm1`, `rm2` and `rm3`."""

    fat: bool = _switch(False, "nearly all rows are used and 45 % of the tables near uniform")
