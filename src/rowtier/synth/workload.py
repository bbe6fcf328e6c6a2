"""The nouns of this folder: a dataset that could be written, and one that was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rowtier.tables import Tables

if TYPE_CHECKING:
    from rowtier.synth.columns import Column


@dataclass(frozen=True)
class Dataset:
    """A dataset as a recipe: any range of its samples can be drawn at any time."""

    tables: Tables
    samples: int
    columns: tuple[Column, ...]
    facts: Mapping[str, Any]  # what workload.json states beside the options


@dataclass(frozen=True)
class Written:
    """What was written where. For rm1–rm3, samples and ids are those the profile stands for."""

    workload: str
    folder: Path
    tables: int
    samples: int
    ids: int
    files: int
    bytes: int

    def to_dict(self) -> dict[str, str | int]:
        """The same as plain data, for JSON."""
        return {**asdict(self), "folder": str(self.folder)}
