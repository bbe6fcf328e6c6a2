"""The parts of a checkpoint taken apart, and what of them is rows of `ShardedEmbeddings`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rowtier.errors import RowtierError, UserError
from rowtier.reading import StrPath
from rowtier.runtime import logical
from rowtier.runtime.checkpoint import saves
from rowtier.runtime.checkpoint.about import About, FollowedSave, SavedRows
from rowtier.runtime.checkpoint.flat import Flat, flatten
from rowtier.runtime.deltas.job import RankJob
from rowtier.runtime.deltas.strips import Labels, RowStrip, copy_strips, strip_bytes
from rowtier.runtime.deltas.tensor_file import DTYPE_NAMES
from rowtier.runtime.deltas.write import tracked
from rowtier.runtime.engine import Engine
from rowtier.runtime.logical import RowField
from rowtier.runtime.store.changes import SAVED, SavedAs

LONGEST_CHAIN = 16  # deltas after a full save; then another one is written
MOST_CHANGED = 0.5  # of all bytes of rows; if more changed, a full save costs hardly more


@dataclass(frozen=True)
class Apart:
    """Parts as they are saved: tensors by name, the rest of each part, and what is rows."""

    flats: dict[str, Flat]
    rows: dict[str, RowField]  # by the names that they are saved under
    lost: int = 0  # tensors of rows that are not in any part as they were made

    @classmethod
    def of(cls, parts: Mapping[str, Any], *, blank: bool, loads: bool = False) -> Apart:
        """Take parts apart; with `blank` rows have no values yet. All ranks must call this."""
        with logical.noted() as made, logical.blank(loads=loads) if blank else nullcontext():
            flats = {
                name: flatten(name, part.state_dict() if has_state(part) else part)
                for name, part in parts.items()
            }
        rows = {
            key: made[id(tensor)]
            for flat in flats.values()
            for key, tensor in flat.originals.items()
            if id(tensor) in made
        }
        return cls(flats, rows, len(made) - len({id(field.tensor) for field in rows.values()}))

    @property
    def engines(self) -> list[Engine]:
        """Whose rows are in it."""
        return list({id(field.engine): field.engine for field in self.rows.values()}.values())

    def labels(self, engine: Engine) -> Labels:
        """What the fields of an engine's tables are saved as."""
        found: dict[str, dict[str, str]] = {}
        for key, row in self.rows.items():
            if row.engine is engine:
                found.setdefault(row.table.name, {})[row.field] = key
        return found

    def copy(self, bit: int | None) -> list[RowStrip]:
        """Copy this rank's rows, all or those that changed."""
        return [
            strip
            for engine in self.engines
            for strip in copy_strips(engine, self.labels(engine), bit)
        ]

    def saved_rows(self) -> dict[str, SavedRows]:
        """Shapes and types, for those who read them."""
        return {
            key: SavedRows(
                shape=tuple(row.tensor.shape),
                dtype=DTYPE_NAMES[row.table.dtype] if row.field == "weight" else "F32",
            )
            for key, row in self.rows.items()
        }


def has_state(part: Any) -> bool:
    """Whether a part is saved by its `state_dict`."""
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def followed(
    folder: Path, given: StrPath | bool, apart: Apart, job: RankJob
) -> tuple[FollowedSave, int] | None:
    """The save that a new one may follow, and how long the chain is then; None: write all rows.

    A save that is named must be the one that rows were marked since, or that is an error.
    """
    if not apart.rows:
        raise UserError(
            "delta_of: no part has rows of ShardedEmbeddings: save the model, and the optimizer of "
            "the embeddings, as parts"
        )
    changes = [tracked(engine, "delta_of") for engine in apart.engines]
    last = {entry.saved for entry in changes}
    (saved,) = last if len(last) == 1 else (None,)
    found: About | None = job.on_first(lambda: _usable(folder, given, apart.rows, saved))
    if found is None or saved is None or found.weights is None or found.chain >= LONGEST_CHAIN:
        return None
    pairs = [strip_bytes(engine, apart.labels(engine), SAVED) for engine in apart.engines]
    mine = tuple(sum(column) for column in zip(*pairs, strict=True))
    every = job.on_first_of(mine, lambda told: tuple(map(sum, zip(*told, strict=True))))
    if every[0] > MOST_CHANGED * every[1]:
        return None
    return FollowedSave(save_name=saved.save.name, weights=found.weights), found.chain + 1


def _usable(
    folder: Path, given: StrPath | bool, keys: Iterable[str], saved: SavedAs | None
) -> About | None:
    """What is known of the save to follow; None if there is none and none was named."""
    if not isinstance(given, bool):
        _check_named(folder, Path(given), set(keys), saved)
    if saved is None or saved.save.parent.resolve() != folder.resolve():
        return None
    try:
        found = saves.chain(saved.save)[-1][1] if saved.save.name in saves.whole(folder) else None
    except (RowtierError, OSError):
        if isinstance(given, bool):
            return None
        raise
    usable = found is not None and found.weights == saved.name and set(keys) <= saved.keys
    return found if usable else None


def _check_named(folder: Path, given: Path, keys: set[str], saved: SavedAs | None) -> None:
    named = folder / given if given.name == str(given) else given
    out = "give delta_of=True for the last save, or leave it out for a full one"
    if not saves.is_checkpoint(named):
        raise UserError(f"delta_of {given}: there is no such save in {folder}; {out}")
    if saved is None:
        raise UserError(
            f"delta_of {given}: nothing was saved or loaded yet, so nobody knows what changed "
            f"since; {out}"
        )
    if named.resolve() != saved.save.resolve():
        raise UserError(
            f"delta_of {given}: rows are marked that changed since {saved.save}, the last "
            f"save; {out}"
        )
    if not keys <= saved.keys:
        raise UserError(
            f"delta_of {given}: it does not hold {', '.join(sorted(keys - saved.keys)[:3])}; {out}"
        )
