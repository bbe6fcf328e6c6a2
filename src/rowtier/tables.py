"""Embedding tables, in TorchRec's words, and the batch they are trained with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol, get_args

from pydantic import Field, model_validator

from rowtier.errors import Mistake, UserError
from rowtier.fields import (
    MOST_BYTES,
    MOST_FEATURES,
    MOST_TABLES,
    BatchSize,
    Columns,
    Name,
    Occurrences,
    PositiveCount,
    PositiveRows,
    Rows,
    Seed,
    whole_number,
)
from rowtier.files import Noun, mappings
from rowtier.reading import duplicates

DType = Literal["fp32", "fp16", "bf16"]
Pooling = Literal["sum", "mean", "none"]
Weights = Literal["given", "learned"]
Exchange = Literal["rows", "sums"]
IdMapping = Literal["as_is", "modulo", "hash", "hashed", "vocabulary", "grow"]
Evict = Literal["lru", "lfu", "never"]
OutOfRange = Literal["error", "clip", "drop", "hash"]
Optimizer = Literal["sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "adamw"]

EXCHANGES: tuple[Exchange, ...] = ("rows", "sums")
# Keys that only some tables have, which, and what they are elsewhere.
_ONLY: tuple[tuple[str, tuple[IdMapping, ...], object], ...] = (
    ("min_count", ("vocabulary",), 1),
    ("num_shared", ("vocabulary", "grow"), 1),
    ("admit_after", ("grow",), 1),
    ("evict", ("grow",), "never"),
)
_ITEM_BYTES: Mapping[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
# Numbers beside each weight; row-wise Adagrad has one beside each row.
_STATE_PER_WEIGHT: Mapping[str, int] = {
    "sgd": 0,
    "momentum": 1,
    "adagrad": 1,
    "adam": 2,
    "adamw": 2,
}
_TORCHREC_DTYPES: Mapping[str, DType] = {"FP32": "fp32", "FP16": "fp16", "BF16": "bf16"}


class Table(Noun):
    """One embedding table: its shape, how lookups are pooled, and who reads it."""

    name: Name
    num_embeddings: PositiveRows
    embedding_dim: Columns
    dtype: DType = "fp32"
    pooling: Pooling = "sum"
    weights: Weights = "given"  # of lookups that have any: whether they want a gradient
    features: tuple[Name, ...] = Field(min_length=1, max_length=MOST_FEATURES)
    optimizer: Optimizer = "rowwise_adagrad"
    ids: IdMapping = "as_is"  # how an id of the data becomes a row
    hash_seed: Seed = 0
    on_out_of_range: OutOfRange = "error"  # what becomes of an id that has no row
    min_count: PositiveCount = 1  # of a vocabulary: rarer ids get no row of their own
    num_shared: Rows = 1  # of a vocabulary: the last rows, which all other ids share
    admit_after: Occurrences = 1  # of a growing one: rarer ids get no row yet
    evict: Evict = "never"  # whose row a new id gets when no row of a growing table is free

    @classmethod
    def cross_mistakes(cls, data: Mapping[str, Any]) -> Iterator[Mistake]:
        """A feature reads a table once, only sums are weighed, a vocabulary needs rows for ids."""
        features = data.get("features")
        for index, name in duplicates(features if isinstance(features, (list, tuple)) else ()):
            yield Mistake(f"features[{index}]", name, "appears twice; name each feature once")
        if (data.get("weights"), data.get("pooling")) == ("learned", "none"):
            hint = "lookups of a table that is not pooled have no weights; drop it, or pool"
            yield Mistake("weights", "learned", hint)
        yield from _vocabulary_mistakes(data)

    @model_validator(mode="before")
    @classmethod
    def _capacity_is_rows(cls, data: Any) -> Any:
        """A growing table may call its rows a capacity."""
        if isinstance(data, Mapping) and data.get("ids") == "grow" and "capacity" in data:
            rest = {key: value for key, value in data.items() if key != "capacity"}
            if "num_embeddings" in rest:
                raise ValueError("capacity is the same as num_embeddings: give one of both")
            return {"num_embeddings": data["capacity"], **rest}
        return data

    @model_validator(mode="after")
    def _refuse_too_many_bytes(self) -> Table:
        if self.stored_bytes > MOST_BYTES:
            raise ValueError(
                f"the table takes {self.stored_bytes} bytes with its optimizer's state, and "
                f"{MOST_BYTES} is the most: fewer num_embeddings or a smaller embedding_dim"
            )
        return self

    @property
    def why_rows(self) -> str | None:
        """Why its owners may not add rows up and send the sums; None if they may."""
        if self.pooling == "none":
            return "the table is not pooled"
        if self.weights == "learned":
            return "the weights of its lookups are learned, so readers need the rows"
        return None

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """What may travel from owners to readers."""
        return EXCHANGES if self.why_rows is None else ("rows",)

    @property
    def has_vocabulary(self) -> bool:
        """Whether ids get a row each by a vocabulary: a fixed one, or one that grows."""
        return self.ids in ("vocabulary", "grow")

    @property
    def grows(self) -> bool:
        """Whether ids get rows while training."""
        return self.ids == "grow"

    @property
    def least_count(self) -> int:
        """Lookups that an id of the profiled data needs for a row of its own."""
        return self.admit_after if self.grows else self.min_count

    @property
    def num_own(self) -> int:
        """Rows that ids of a vocabulary may have for themselves."""
        return self.num_embeddings - self.num_shared

    def with_policy(self, on_out_of_range: OutOfRange | None) -> Table:
        """The same table with another policy for ids that have no row; None changes nothing."""
        if on_out_of_range in (None, self.on_out_of_range):
            return self
        changed = self.model_copy(update={"on_out_of_range": on_out_of_range})
        for mistake in _vocabulary_mistakes(changed.to_data()):
            raise UserError(f"table {self.name!r}: {mistake}")
        return changed

    @property
    def item_bytes(self) -> int:
        """Bytes of one stored number."""
        return _ITEM_BYTES[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's weights."""
        return self.embedding_dim * self.item_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, without optimizer state."""
        return self.num_embeddings * self.row_bytes

    def state_bytes(self, columns: int | None = None) -> int:
        """Optimizer state beside `columns` of one row (default: the whole row), in fp32."""
        width = self.embedding_dim if columns is None else columns
        if self.optimizer == "rowwise_adagrad":
            return 4
        return 4 * width * _STATE_PER_WEIGHT[self.optimizer]

    @property
    def stored_row_bytes(self) -> int:
        """Bytes that keeping one row takes: its weights and its optimizer state."""
        return self.row_bytes + self.state_bytes()

    @property
    def stored_bytes(self) -> int:
        """Bytes that keeping the whole table takes."""
        return self.num_embeddings * self.stored_row_bytes

    @classmethod
    def from_torchrec(
        cls, config: TorchRecConfig, optimizer: Optimizer = "rowwise_adagrad"
    ) -> Table:
        """Convert a TorchRec `EmbeddingBagConfig` or `EmbeddingConfig` (TorchRec not imported)."""
        dtype = _TORCHREC_DTYPES.get(config.data_type.name)
        if dtype is None:
            raise UserError(
                f"table {config.name!r}: data_type {config.data_type.name} is not supported; "
                f"use one of {', '.join(_TORCHREC_DTYPES)}"
            )
        # Only EmbeddingBagConfig pools; EmbeddingConfig returns every looked-up row.
        pooling = getattr(config, "pooling", None)
        kinds: dict[str, Pooling] = {"SUM": "sum", "MEAN": "mean", "NONE": "none"}
        return cls(
            name=config.name,
            num_embeddings=config.num_embeddings,
            embedding_dim=config.embedding_dim,
            dtype=dtype,
            pooling="none" if pooling is None else kinds[pooling.name],
            features=tuple(config.feature_names),
            optimizer=optimizer,
        )


def _vocabulary_mistakes(data: Mapping[str, Any]) -> Iterator[Mistake]:
    """Settings that only vocabularies have, and some that they cannot have."""
    ids = data.get("ids", "as_is")
    for key, kinds, plain in _ONLY:
        if ids not in kinds and key in data and _plain(data[key]) not in (plain, None):
            written = " or ".join(f"`ids: {kind}`" for kind in kinds)
            hint = f"is for a vocabulary; drop it, or write {written}"
            yield Mistake(key, data[key], hint)
    if ids not in ("vocabulary", "grow"):
        return
    given, shared = data.get("num_embeddings"), whole_number(data.get("num_shared", 1))
    rows = whole_number(data.get("capacity", given) if ids == "grow" else given)
    if rows is not None and shared is not None and shared >= rows:
        hint = f"must be less than num_embeddings, {rows}: ids need rows of their own"
        yield Mistake("num_shared", shared, hint)
    if ids == "grow" and shared == 0:
        hint = "must be 1 or more: ids without a row of their own need one to share"
        yield Mistake("num_shared", 0, hint)
    if ids == "vocabulary" and data.get("on_out_of_range") == "clip":
        hint = "an id that is not in a vocabulary has no nearest row; write error, drop or hash"
        yield Mistake("on_out_of_range", "clip", hint)


def _plain(value: object) -> object:
    """A value as it compares with a default; None if its field reports it."""
    return value if value in get_args(Evict) else whole_number(value)


class _EnumMember(Protocol):
    @property
    def name(self) -> str: ...


class TorchRecConfig(Protocol):
    """What `Table.from_torchrec` needs of a TorchRec embedding config."""

    name: str
    num_embeddings: int
    embedding_dim: int
    feature_names: list[str]

    @property
    def data_type(self) -> _EnumMember:
        """TorchRec's DataType."""
        ...


class Tables(Noun):
    """All tables of a model and the batch size per device: the content of `tables.yaml`."""

    batch_size: BatchSize
    tables: tuple[Table, ...] = Field(min_length=1, max_length=MOST_TABLES)

    @classmethod
    def cross_mistakes(cls, data: Mapping[str, Any]) -> Iterator[Mistake]:
        """Table names are unique."""
        for index, name in duplicates(t.get("name") for _, t in mappings(data, "tables")):
            yield Mistake(f"tables[{index}].name", name, "appears twice; every table needs its own")

    def with_policy(self, on_out_of_range: OutOfRange | None) -> Tables:
        """The same tables with another policy for ids that have no row; None changes nothing."""
        if on_out_of_range is None:
            return self
        changed = tuple(table.with_policy(on_out_of_range) for table in self.tables)
        return Tables(batch_size=self.batch_size, tables=changed)

    def __iter__(self) -> Iterator[Table]:  # type: ignore[override]
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)

    def __getitem__(self, name: str) -> Table:
        for table in self.tables:
            if table.name == name:
                return table
        known = ", ".join(t.name for t in self.tables[:8])
        raise KeyError(f"no table {name!r}; there are {known}")
