"""`Delta`: rows that changed, as `embeddings.delta()` wrote them.

delta/
  delta.json             what it goes onto, and which tables are in it
  rows-00000.safetensors the rows of each rank, with their ids
  manifest.json          sizes and checksums of the files
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from rowtier.errors import InvalidError, MismatchError, Mistake, UserError
from rowtier.fields import Count
from rowtier.files import FORMAT_VERSION, Noun, check_version, dump_json, parse
from rowtier.manifest import read_manifest
from rowtier.reading import StrPath, read_mapping
from rowtier.runtime.deltas.remedies import AGAIN
from rowtier.runtime.store.position import Position

INDEX = "delta.json"
_NUMPY = {"float32": "F32", "float16": "F16", "uint16": "BF16"}
_TORCH = {"torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16"}


class DeltaTable(Noun):
    """A table in a delta."""

    table: str
    shape: tuple[Count, Count]
    dtype: str
    changed: Count  # rows in it
    state: tuple[str, ...] = ()  # kinds of optimizer state in it
    vocabulary: str | None = None
    # Of tables whose ids come and go: how many have a row now, and which have none any more.
    id_kind: Literal["int", "string"] | None = None
    ids: Count = 0
    removed_ids: tuple[int | str, ...] = ()


class DeltaIndex(Noun):
    """`delta.json`."""

    name: str  # of the weights that it leads to
    sequence: Count
    follows: tuple[str, ...]  # the names of weights that it goes onto
    step: Count = 0
    tables: dict[str, DeltaTable] = Field(default_factory=dict)
    files: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether every row is in it, so that it goes onto anything of the same shape."""
        return all(table.changed == table.shape[0] for table in self.tables.values())


@dataclass(frozen=True)
class Delta:
    """Rows that changed; `load` checks every byte.

    >>> delta = rowtier.Delta.load("delta-1/")
    >>> delta.apply({"item": item_weights}, after="tables.safetensors")
    """

    path: Path
    index: DeltaIndex

    @classmethod
    def load(cls, path: StrPath) -> Delta:
        """Read a folder; refused if any bit of it changed."""
        folder = Path(path)
        if not (folder / INDEX).is_file():
            raise UserError(
                f"{folder}: holds no {INDEX}; give a folder that embeddings.delta() wrote"
            )
        manifest = read_manifest(folder, AGAIN)
        manifest.check(folder, INDEX, "the list of tables", AGAIN)
        data = read_mapping(folder / INDEX)
        check_version(folder / INDEX, data)
        index = parse(DeltaIndex, data, folder / INDEX)
        for name in index.files:
            manifest.check(folder, name, "rows that changed", AGAIN)
        return cls(folder, index)

    @property
    def position(self) -> Position:
        """What the weights are called that it leads to."""
        return Position(self.index.name, self.index.sequence)

    @property
    def changed_rows(self) -> int:
        """How many rows are in it, of all tables."""
        return sum(table.changed for table in self.index.tables.values())

    def check_follows(self, base: Position, what: str) -> None:
        """Refuse to be put onto weights that it was not made after."""
        index = self.index
        if base.name in index.follows or index.is_whole:
            return
        number, there = index.sequence, base.sequence
        if base.name == index.name:
            why = f"delta {number} is already in it: leave it out"
        elif there >= number:
            why = f"is delta {number}, and the base has {there} of them: it is older than the base"
        elif there < number - 1:
            missing = " to ".join(dict.fromkeys((str(there + 1), str(number - 1))))
            why = f"is delta {number}, and the base has {there} of them: apply {missing} first"
        else:
            why = "the base is of another run, or of before a restart: export its checkpoint anew"
        raise MismatchError(
            f"{self.path}: does not follow {what} ({base}): {why}. It goes onto "
            f"{', '.join(index.follows) or 'nothing'}"
        )

    def apply(
        self, tensors: MutableMapping[str, Any], *, after: StrPath | Delta | None = None
    ) -> MutableMapping[str, Any]:
        """Write the rows onto tensors or arrays, in place; returns the same mapping.

        They have the names of an export (`embedding_bags.item.weight`) or of tables; state is
        `<name>.<kind>`, and written if it is there. `after` is what the tensors are of, an export
        or the delta before this one: then it is checked that this one follows. bfloat16 in numpy
        is its bits, as uint16. Growing tables need their ids, too (`<name>.ids`, or `id_starts` and
        `id_text`): in the mapping new tensors take their places, as there may be more of them.
        """
        if after is not None:
            self._check_after(after)
        from rowtier.runtime.deltas.row_ids import check_ids, put_ids

        targets: dict[str, Any] = {}
        names: dict[str, str] = {}
        for name, table in self.index.tables.items():
            here = name if name in tensors else table.table
            if here not in tensors:
                raise MismatchError(
                    f"{self.path}: has rows of {name}, and there is no such tensor here; there is "
                    f"{', '.join(tensors) or 'nothing'}: give all tables of the delta"
                )
            check_table(self, name, _form(tensors[here]), here)
            check_ids(self, name, here, tensors, "what is given")
            targets[name], names[name] = tensors[here], here
            for field in table.state:
                if f"{here}.{field}" in tensors:
                    targets[f"{name}.{field}"] = tensors[f"{here}.{field}"]
        put_ids(self, tensors, names)
        self.put(targets)
        return tensors

    def put(self, targets: Mapping[str, Any]) -> None:
        """Write onto tensors by their names in the file; those that are not named are left out."""
        from safetensors import SafetensorError

        from rowtier.runtime.deltas.strips import read_strips

        views = {name: _as_tensor(target) for name, target in targets.items()}
        for file in self.index.files:
            try:
                for strip in read_strips(self.path / file):
                    for label in strip.fields.keys() & views.keys():
                        strip.check_rows(len(views[label]))
                        strip.put(label, views[label], 0)
            except (SafetensorError, RuntimeError, ValueError, IndexError) as error:
                why = f"is not what embeddings.delta() writes ({error}); {AGAIN} again"
                raise InvalidError(self.path / file, [Mistake("", None, why)]) from None

    def _check_after(self, after: StrPath | Delta) -> None:
        if isinstance(after, Delta):
            self.check_follows(after.position, f"delta {after.index.sequence}, {after.path}")
            return
        for name, position in positions_in(after).items():
            if name in self.index.tables:
                self.check_follows(position, f"{name} in {after}")


class TensorForm(NamedTuple):
    """What a table must agree in with a delta."""

    shape: tuple[int, ...]
    dtype: str


def check_table(delta: Delta, name: str, form: TensorForm, here: str) -> None:
    """Refuse a table of another form than a delta has."""
    table = delta.index.tables[name]
    if (form.shape, form.dtype) != (table.shape, table.dtype):
        raise MismatchError(
            f"{delta.path}: {name} has shape {list(table.shape)} and type {table.dtype}, and "
            f"{here} has {list(form.shape)} and {form.dtype}: it is a delta of another model"
        )


def positions_in(path: StrPath) -> dict[str, Position]:
    """The positions of an export's tables; refused if it names none."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            facts = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: is no safetensors file ({error}); give an export") from None
    prefix = POSITION_OF
    found = {k.removeprefix(prefix): v for k, v in facts.items() if k.startswith(prefix)}
    if not found:
        raise UserError(
            f"{path}: does not say what its weights are called, so nothing can tell whether the "
            "delta follows them; write it with `rowtier export` from a save of this version"
        )
    try:
        return {name: Position.of(text) for name, text in found.items()}
    except ValueError:
        mistake = Mistake("__metadata__", None, "positions are a name and a number; export again")
        raise InvalidError(path, [mistake]) from None


POSITION_OF = "position of "  # and a tensor's name: a key of an export's facts


def index_text(index: DeltaIndex) -> str:
    """The text of `delta.json`."""
    return dump_json({"format_version": FORMAT_VERSION, **index.to_data()})


def is_delta(folder: Path) -> bool:
    """Whether a folder is a delta."""
    return (folder / INDEX).is_file()


def check_delta(folder: Path) -> dict[str, Any]:
    """Compare every byte of a delta with its checksum; what there is."""
    delta = Delta.load(folder)
    total = sum((folder / name).stat().st_size for name in delta.index.files)
    facts = {"tables": len(delta.index.tables), "rows": delta.changed_rows, "bytes": total}
    return {"kind": "delta", "sequence": delta.index.sequence, **facts}


def _form(target: Any) -> TensorForm:
    dtype = str(target.dtype)
    return TensorForm(tuple(target.shape), {**_NUMPY, **_TORCH}.get(dtype, dtype))


def _as_tensor(target: Any) -> Any:
    """A tensor on the same memory."""
    import torch

    if isinstance(target, torch.Tensor):
        return target.detach()
    tensor = torch.from_numpy(target)
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
