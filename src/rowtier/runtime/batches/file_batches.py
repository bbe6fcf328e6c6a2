"""`ParquetBatches`: data files as batches for training, for every rank and loader worker."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from rowtier.errors import MismatchError, RowtierError, UserError
from rowtier.files import fingerprint_of
from rowtier.plan.plan import Plan
from rowtier.plan.remap import Addressed, Read, Remapper, reads_of
from rowtier.profile.ids import lengths_of as kept_lengths
from rowtier.profile.ids import rows_of
from rowtier.profile.profile import Profile
from rowtier.profile.readers import open_source
from rowtier.profile.vocabulary import Vocabulary
from rowtier.reading import StrPath
from rowtier.runtime.batches.sample_order import Dealing, Last
from rowtier.runtime.batches.sample_reader import BatchReader, SampleFiles, Samples, lengths_of
from rowtier.tables import Table, Tables

Features = Addressed | dict[str, tuple[torch.Tensor, torch.Tensor]]
Target = Plan | Profile | Tables

_MOST_WORKERS = 4096


@dataclass(frozen=True, eq=False)
class FileBatch:
    """A batch of one rank.

    `features` goes to `ShardedEmbeddings` as it is, if the batches were made for a plan; else it
    holds (rows, lengths) by feature. `columns` are the other columns that were asked for.
    """

    number: int  # in the epoch, from 0
    samples: int
    features: Features
    columns: dict[str, torch.Tensor]


class ParquetBatches(IterableDataset[FileBatch]):  # type: ignore[misc]
    """Batches of a rank from Parquet files, Criteo's TSV, `.npz` or `.pt`.

    >>> data = ParquetBatches("clicks/", plan, batch_size=4096, shuffle=True, columns=("label",))
    >>> loader = DataLoader(data, batch_size=None, num_workers=4)
    >>> for batch in loader: pooled = embeddings(batch.features)

    With a plan features are addresses; with a profile or tables they are rows. Batches arrive in
    the order of their numbers, which depends on `seed`, epoch, world and files alone, never on
    the number of workers. `remapper` is the plan's, if there is one already: ranks of a machine
    may share `embeddings.remapper`.
    """

    def __init__(
        self,
        path: StrPath | Sequence[StrPath],
        target: Target,
        batch_size: int | None = None,
        *,
        columns: Sequence[str] = (),
        shuffle: bool = False,
        shuffle_window: int = 2**17,
        seed: int = 0,
        last: Last = "drop",
        rank: int | None = None,
        world: int | None = None,
        remapper: Remapper | None = None,
    ):
        super().__init__()
        tables = _tables_of(target)
        self.rank, self.world = _place_in_job(rank, world)
        size = tables.batch_size if batch_size is None else batch_size
        Dealing((), size, self.world, shuffle, shuffle_window, seed, last)  # before files are read
        features = tuple(dict.fromkeys(name for table in tables for name in table.features))
        source = open_source(path, features)
        if source.kind == "batches":
            raise UserError(f"batches from a {type(path).__name__}: give the path of data files")
        self._files = SampleFiles.open(source, features, _column_names(columns))
        sizes = self._files.part_samples
        self._dealing = Dealing(sizes, size, self.world, shuffle, shuffle_window, seed, last)
        _check_enough(path, self._dealing)
        self._to_features = _to_features(target, remapper)
        self._progress = _Progress()

    @property
    def batch_size(self) -> int:
        """Samples in a batch of one rank."""
        return self._dealing.batch_size

    @property
    def samples(self) -> int:
        """Samples in the data, of all ranks."""
        return self._dealing.samples

    @property
    def epoch(self) -> int:
        """The epoch that the next pass gives."""
        return self._progress.epoch

    def __len__(self) -> int:
        return self._dealing.batches

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass, between two passes; it also reaches live workers."""
        if epoch < 0:
            raise UserError(f"epoch is {epoch}; give 0 or more")
        if epoch != self.epoch:
            self._progress.set(epoch, 0)

    def state_dict(self, *, done: int | None = None) -> dict[str, Any]:
        """Where training is, after `done` batches of this epoch: `batch.number + 1`.

        The same on all ranks. Plain data, for `save_checkpoint` or JSON.
        """
        if done is None:
            raise UserError(
                "how many batches are done only the training loop knows, as loaders read ahead: "
                "call state_dict(done=batch.number + 1)"
            )
        if not 0 <= done <= len(self):
            raise UserError(
                f"done is {done}, and an epoch has {len(self)} batches; give the number of the "
                "last batch that was used, plus 1"
            )
        epoch, done = (self.epoch + 1, 0) if done == len(self) else (self.epoch, done)
        return {"epoch": epoch, "done": done, **self._facts()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on where a state was taken; passes after it begin at the front."""
        facts = self._facts()
        absent = [name for name in ("epoch", "done", *facts) if name not in state]
        if absent:
            raise UserError(
                f"the state has no {', '.join(map(repr, absent))}; give what state_dict returned"
            )
        wrong = [
            f"{name} is {facts[name]!r} here and {state[name]!r} in the state"
            for name in facts
            if facts[name] != state[name]
        ]
        if wrong:
            raise MismatchError(
                f"the state is of other batches: {'; '.join(wrong)}. Give the same data and "
                "arguments, or begin the epoch anew"
            )
        self._progress.set(int(state["epoch"]), int(state["done"]))

    def __iter__(self) -> Iterator[FileBatch]:
        worker = get_worker_info()
        if worker is None:
            yield from self._pass(0, 0)
            return
        try:
            yield from self._pass(worker.id, worker.num_workers)
        except RowtierError as error:
            # The loader rebuilds errors from their text alone, which others do not allow.
            raise UserError(str(error)) from None

    def _pass(self, worker: int, workers: int) -> Iterator[FileBatch]:
        """Every n-th batch: the loader takes one from each of its n workers in turn."""
        epoch, first = self._progress.begin(worker, workers)
        reader = BatchReader(self._files, self._dealing.epoch(epoch), self.rank)
        for number in range(first + worker, len(self), max(1, workers)):
            samples = reader.read(number)
            columns = {name: _tensor(array) for name, array in samples.columns.items()}
            yield FileBatch(number, samples.count, self._to_features(samples), columns)

    def _facts(self) -> dict[str, Any]:
        """What a state must agree on."""
        dealing = self._dealing
        files = [
            (Path(part.path).name, part.piece, part.stamp.partition("@")[0], samples)
            for part, samples in zip(self._files.parts, dealing.part_samples, strict=True)
        ]
        return {
            "batch_size": dealing.batch_size,
            "world": dealing.world,
            "seed": dealing.seed,
            "shuffle": dealing.shuffle,
            "shuffle_window": dealing.shuffle_window,
            "last": dealing.last,
            "samples": dealing.samples,
            "files": fingerprint_of(files),
        }


def _to_features(target: Target, remapper: Remapper | None) -> _ToAddresses | _ToRows:
    if isinstance(target, Plan):
        if remapper is not None:
            _check_remapper(remapper, target)
        return _ToAddresses(remapper or target.remapper())
    if remapper is not None:
        raise UserError("a remapper makes addresses, which only a plan has: give the plan with it")
    return _ToRows(target)


def _check_remapper(remapper: Remapper, plan: Plan) -> None:
    if remapper.reads != reads_of(plan.profile.tables):
        raise MismatchError("the remapper is for other tables: give plan.remapper() of this plan")
    if remapper.holds_rows:
        raise UserError(
            "the remapper takes rows, and files hold ids: give one that was made without rows=True"
        )


class _ToAddresses:
    """Ids to addresses, by the plan's remapper."""

    def __init__(self, remapper: Remapper):
        self._remap = remapper

    def __call__(self, samples: Samples) -> Features:
        return self._remap(
            {name: (ids.values, lengths_of(ids)) for name, ids in samples.features.items()}
        )


class _ToRows:
    """Ids to rows, by the tables alone; lookups that a table drops are left out."""

    def __init__(self, target: Profile | Tables):
        self._reads = reads_of(_tables_of(target))
        stats = target.stats if isinstance(target, Profile) else ()
        self._vocabularies = {s.table.name: s.vocabulary for s in stats}
        for read in self._reads:
            known = self._vocabularies.get(read.table.name)
            if read.table.has_vocabulary and known is None:
                raise UserError(
                    f"table {read.table.name!r} has `ids: {read.table.ids}`, so a vocabulary, and "
                    "the tables do not hold it: give the profile, or the plan"
                )

    def __call__(self, samples: Samples) -> Features:
        return {read.key: self._rows(read, samples) for read in self._reads}

    def _rows(self, read: Read, samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
        ids = samples.features[read.feature]
        vocabulary = self._vocabularies.get(read.table.name)
        rows, lengths = _rows_and_lengths(read.table, ids.values, lengths_of(ids), vocabulary)
        return _tensor(rows), _tensor(lengths)


def _rows_and_lengths(
    table: Table, ids: Any, lengths: Any, vocabulary: Vocabulary | None
) -> tuple[Any, Any]:
    rows = rows_of(table, ids, vocabulary)
    kept = rows >= 0
    return (rows, lengths) if kept.all() else (rows[kept], kept_lengths(lengths, kept))


class _Progress:
    """Epoch and first batch, in memory that worker processes share: they may outlive an epoch.

    A state that was loaded holds for one pass. Every worker notes that it began that pass, so
    nobody needs to be told when all have.
    """

    def __init__(self) -> None:
        # epoch, first batch, number of the state, workers of its pass + 1; then by worker:
        # number of the last state that it began with
        own = torch.zeros(4 + _MOST_WORKERS, dtype=torch.int64)
        try:
            self._shared = own.share_memory_()
        except RuntimeError as error:
            raise UserError(
                f"no shared memory for {own.nbytes} bytes ({str(error).splitlines()[0]}): enlarge "
                "/dev/shm (docker run --shm-size), or remove what is left in it"
            ) from None

    @property
    def epoch(self) -> int:
        return int(self._shared[0])

    def set(self, epoch: int, done: int) -> None:
        number = int(self._shared[2]) + 1
        self._shared[:4] = torch.tensor([epoch, done, number, 0])

    def begin(self, worker: int, workers: int) -> tuple[int, int]:
        """The epoch and the first batch of the pass that a worker begins."""
        epoch, done, number, taken_by = self._shared[:4].tolist()
        slot = 4 + worker
        if taken_by not in (0, workers + 1) or int(self._shared[slot]) == number:
            return epoch, 0
        self._shared[3] = workers + 1
        self._shared[slot] = number
        return epoch, done


def _tables_of(target: Target) -> Tables:
    if isinstance(target, Tables):
        return target
    if isinstance(target, Profile):
        return target.tables
    if isinstance(target, Plan):
        return target.profile.tables
    raise UserError(
        f"batches for a {type(target).__name__}: give a Plan to train on it, or a Profile or "
        "Tables to get rows"
    )


def _column_names(columns: Sequence[str]) -> Sequence[str]:
    if isinstance(columns, str):
        raise UserError(f"columns is the text {columns!r}; give a list of names, [{columns!r}]")
    return columns


def _place_in_job(rank: int | None, world: int | None) -> tuple[int, int]:
    """Rank and world as they were given; else those of the process group, or torchrun's."""
    if (rank is None) != (world is None):
        raise UserError(f"rank is {rank} and world is {world}; give both, or neither")
    if rank is None or world is None:
        if dist.is_available() and dist.is_initialized():
            rank, world = dist.get_rank(), dist.get_world_size()
        else:
            said = os.environ
            rank, world = int(said.get("RANK", "0")), int(said.get("WORLD_SIZE", "1"))
    if not 0 <= rank < world:
        raise UserError(f"rank is {rank} of {world}; ranks go from 0 to world - 1")
    return rank, world


def _check_enough(path: object, dealing: Dealing) -> None:
    if not dealing.samples:
        raise UserError(f"{path}: there is no sample in it; give data that has some")
    if not dealing.batches:
        raise UserError(
            f"{path}: {dealing.samples} samples, and a batch takes {dealing.batch_size} for each "
            f"of {dealing.world} ranks: give a smaller batch_size, or last='short'"
        )


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array))  # a copy, as Arrow's memory cannot be written to
