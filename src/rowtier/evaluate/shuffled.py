"""Steps of samples from anywhere in the data, as training on shuffled data has them.

Samples are drawn without replacement, so a replay of all steps takes every sample at most once.
The ids of all drawn samples are kept in memory, as narrow as they fit; where that would be too
much, fewer steps are drawn. What is drawn depends on the seed and on the number of samples, not
on how the data is cut into files or chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa

from rowtier.errors import UserError
from rowtier.evaluate.batches import StepSamples, StepWindow, Wanted, chunks_of
from rowtier.profile.order import NarrowInts, narrow
from rowtier.profile.readers import Chunk, Ids, Source
from rowtier.profile.readers.base import Ints
from rowtier.profile.readers.sample import filtered
from rowtier.units import show_bytes

LIMIT_BYTES = 2**30
_PLACE_BYTES = 32  # of each drawn sample: its number and its place in the order, while sorting
_SPARSE = 50  # numpy draws fewer than one in so many without listing all


def _nothing(_: Any) -> None:
    """Told something that nobody wants to know."""


@dataclass(frozen=True)
class Listener:
    """Who is told what happens while samples are collected."""

    check: Callable[[StepWindow], None] = _nothing  # ids of one feature, before any are picked
    warn: Callable[[str], None] = _nothing
    progress: Callable[[float], None] = _nothing


_NOBODY = Listener()


def shuffled_windows(
    source: Source, features: Sequence[str], wanted: Wanted, listener: Listener = _NOBODY
) -> Iterator[StepWindow]:
    """The steps that are wanted, each as a window of its own."""
    samples = source.samples
    if samples is None and source.kind != "batches":
        samples = source.count_samples()
    if samples is None:
        kept = _take_all(source, features, wanted, listener)
    else:
        kept = _draw(source, samples, features, wanted, listener)
    yield from kept.windows(wanted.step_samples)


@dataclass(eq=False)
class _PickedIds:
    """The ids of the samples that were picked, in the order of the data, piece by piece."""

    features: tuple[str, ...]
    steps: int
    order: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # numbers by place
    pieces: dict[str, list[Ids]] = field(default_factory=dict)
    places: list[Ints] = field(default_factory=list)  # in the order of the steps
    ids_bytes: int = 0

    def add(self, chunk: Chunk, keep: Ints | None, places: Ints, check: Check) -> None:
        """Keep some samples of a chunk, or all, which will have these places."""
        mask = None
        if keep is not None:
            mask = np.zeros(chunk.samples, dtype=np.bool_)
            mask[keep] = True
        for name in self.features:
            ids = chunk.features[name]
            check(name, ids)
            held = _narrow(ids if mask is None else filtered(ids, mask))
            self.pieces.setdefault(name, []).append(held)
            self.ids_bytes += _bytes(held)
        self.places.append(places)

    def shrink(self, steps: int, step_samples: int) -> None:
        """Keep only the samples of the first steps."""
        self.steps = steps
        keeps = [places < steps * step_samples for places in self.places]
        self.places = [places[keep] for places, keep in zip(self.places, keeps, strict=True)]
        for pieces in self.pieces.values():
            pieces[:] = [filtered(ids, keep) for ids, keep in zip(pieces, keeps, strict=True)]
        self.ids_bytes = sum(_bytes(ids) for pieces in self.pieces.values() for ids in pieces)

    def windows(self, step_samples: int) -> Iterator[StepWindow]:
        """One window for each step."""
        if not self.steps:
            return
        places = np.concatenate(self.places)
        self.places.clear()
        assert len(places) == self.steps * step_samples
        sorting = np.argsort(places)
        sorted_ids = {name: _in_order(self.pieces.pop(name), sorting) for name in self.features}
        begins = dict.fromkeys(self.features, 0)
        for step in range(self.steps):
            first, stop = step * step_samples, (step + 1) * step_samples
            ids = {
                name: _cut(sorted_ids[name], first, stop, begins, name) for name in self.features
            }
            numbers = self.order[first:stop]
            chunk = Chunk(step_samples, ids, int(numbers.min()), numbers=numbers)
            pieces = (StepSamples(step, 0, step_samples, 0),)
            done = 0.5 + 0.5 * (step + 1) / self.steps
            yield StepWindow(chunk, "the data", chunk.first_sample, pieces, done)


Check = Callable[[str, Ids], None]


def _draw(
    source: Source, samples: int, features: Sequence[str], wanted: Wanted, listener: Listener
) -> _PickedIds:
    """Draw samples from data whose length is known, and collect them."""
    size = wanted.step_samples
    asked = samples // size if wanted.steps is None else min(wanted.steps, samples // size)
    kept = _PickedIds(tuple(features), min(asked, _most_steps(samples, size)))
    if not kept.steps:
        return kept
    random = np.random.default_rng(wanted.seed)
    drawn = random.choice(samples, kept.steps * size, replace=False)
    places = np.argsort(drawn)
    numbers = drawn[places]  # ascending, as they will be met
    begin = source.parts[0].first_sample
    for chunk, path, done in chunks_of(source, features, begin + numbers):
        first = chunk.first_sample - begin
        edges = np.searchsorted(numbers, (first, first + chunk.samples))
        here = slice(*edges.tolist())
        if edges[1] > edges[0]:
            check = _checked(chunk, path, done, listener)
            kept.add(chunk, numbers[here] - first, places[here], check)
        while kept.ids_bytes > LIMIT_BYTES and kept.steps > 1:
            kept.shrink(kept.steps // 2, size)
            inside = places < kept.steps * size
            places, numbers = places[inside], numbers[inside]
        listener.progress(done / 2)
    kept.order = begin + drawn[: kept.steps * size]
    if kept.steps < asked:
        listener.warn(
            f"{kept.steps:,} of {asked:,} steps are replayed, drawn at random, as the ids of more "
            f"would take over {show_bytes(LIMIT_BYTES)} of memory; --batches in_time_order replays "
            "all"
        )
    return kept


def _most_steps(samples: int, step_samples: int) -> int:
    """How many steps can be drawn within the memory that drawing itself takes."""
    most = LIMIT_BYTES // _PLACE_BYTES
    if 8 * samples > LIMIT_BYTES:
        most = min(most, samples // _SPARSE - 1)
    return max(1, most // step_samples)


def _take_all(
    source: Source, features: Sequence[str], wanted: Wanted, listener: Listener
) -> _PickedIds:
    """Collect what an iterable gives, or as much as the steps need, and shuffle that."""
    size = wanted.step_samples
    most = None if wanted.steps is None else wanted.steps * size
    kept = _PickedIds(tuple(features), 0)
    total = 0
    for whole, path, done in chunks_of(source, features):
        chunk = whole if most is None else whole.cut(0, min(whole.samples, most - total))
        places = np.arange(total, total + chunk.samples)
        kept.add(chunk, None, places, _checked(chunk, path, done, listener))
        total += chunk.samples
        if kept.ids_bytes > LIMIT_BYTES:
            raise UserError(
                f"the first {total:,} samples take over {show_bytes(LIMIT_BYTES)} of memory, and "
                "shuffling needs all that the iterable gives: choose --batches in_time_order, "
                "limit the steps with --steps, or give files"
            )
        listener.progress(done / 2)
        if total == most:
            break
    kept.steps = total // size
    drawn = np.random.default_rng(wanted.seed).choice(total, kept.steps * size, replace=False)
    kept.order = drawn
    _put(kept, drawn, total)
    return kept


def _put(kept: _PickedIds, drawn: Ints, total: int) -> None:
    """Give samples that are all collected their places; those that were not drawn have none."""
    if not kept.steps:
        return
    places = np.full(total, len(drawn))
    places[drawn] = np.arange(len(drawn))
    edges = np.cumsum([len(piece) for piece in kept.places])[:-1]
    kept.places = np.split(places, edges)
    kept.shrink(kept.steps, len(drawn) // kept.steps)


def _checked(chunk: Chunk, path: str, done: float, listener: Listener) -> Check:
    def check(name: str, ids: Ids) -> None:
        alone = Chunk(chunk.samples, {name: ids}, chunk.first_sample, numbers=chunk.numbers)
        listener.check(StepWindow(alone, path, chunk.first_sample, (), done))

    return check


def _narrow(ids: Ids) -> Ids:
    """The same ids in fewer bytes, for as long as they are kept."""
    lengths = None if ids.lengths is None else narrow(ids.lengths)
    values = ids.values
    if isinstance(values, np.ndarray) and values.dtype != np.uint64:
        values = narrow(values)
    return Ids(cast(Ints, values), cast("Ints | None", lengths))


def _bytes(ids: Ids) -> int:
    lengths = 0 if ids.lengths is None else ids.lengths.nbytes
    return int(ids.values.nbytes + lengths)


def _in_order(pieces: list[Ids], sorting: Ints) -> Ids:
    """The ids of all pieces, sample by sample in another order."""
    values = _joined([ids.values for ids in pieces])
    if all(ids.lengths is None for ids in pieces):
        return Ids(_taken(values, sorting))
    lengths: NarrowInts = np.concatenate([_lengths(ids) for ids in pieces])
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    lengths, starts = lengths[sorting], starts[sorting]
    ends = np.cumsum(lengths, dtype=np.int64)
    where = np.repeat(starts - (ends - lengths), lengths)
    where += np.arange(len(where))
    return Ids(_taken(values, where), cast(Ints, lengths))


def _lengths(ids: Ids) -> NarrowInts:
    return np.ones(ids.samples, dtype=np.int32) if ids.lengths is None else ids.lengths


def _joined(values: list[Any]) -> Any:
    """Where no sample has an id, there is an empty array of numbers, even among strings."""
    strings = [entry for entry in values if not isinstance(entry, np.ndarray)]
    return pa.concat_arrays(strings) if strings else np.concatenate(values)


def _taken(values: Any, where: Ints) -> Any:
    return values[where] if isinstance(values, np.ndarray) else values.take(pa.array(where))


def _cut(ids: Ids, first: int, stop: int, begins: dict[str, int], name: str) -> Ids:
    """The ids of one step, in their full width; `begins` says where those of the next begin."""
    lengths = None
    begin, end = first, stop
    if ids.lengths is not None:
        lengths = ids.lengths[first:stop].astype(np.int64)
        begin = begins[name]
        end = begins[name] = begin + int(lengths.sum())
    values = ids.values[begin:end]
    if isinstance(values, np.ndarray) and values.dtype != np.uint64:
        values = values.astype(np.int64)
    return Ids(values, lengths)
