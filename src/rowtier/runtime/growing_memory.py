"""Memory of growing vocabularies, which the processes of a machine share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from rowtier.plan.memory_files import aligned, memory_file, remove_file
from rowtier.profile.growing import GrowingTable, GrowingVocabulary, growing_layout
from rowtier.profile.growing_texts import IdTexts
from rowtier.profile.vocabulary import Vocabulary
from rowtier.runtime.exchange.wire import Wire
from rowtier.tables import Table

Bytes = NDArray[np.uint8]


def shared_tables(
    tables: Sequence[Table], starts: Mapping[str, Vocabulary], wire: Wire
) -> tuple[dict[str, GrowingTable], dict[str, IdTexts], bool]:
    """The vocabularies in memory that the processes of a machine share; who writes to them."""
    world = wire.world
    first = world.first_here()
    writes = first == world.rank
    files = _made(tables, starts) if writes else None
    made: list[Any] = [files]
    if world.group is not None:
        made = [None] * world.size
        dist.all_gather_object(made, files, group=world.group)
        files = made[first]
    assert files is not None
    path, text_paths = files
    memory = np.memmap(path, dtype=np.uint8, mode="r+")
    found, at = {}, 0
    for table in tables:
        arrays, at = _arrays(table, starts[table.name].strings, np.asarray(memory), at)
        words = GrowingVocabulary(table, starts[table.name].strings, arrays)
        found[table.name] = GrowingTable.of(words)
    texts = {
        name: IdTexts(path, found[name].vocabulary.arrays["texts"])
        for name, path in text_paths.items()
    }
    if writes:
        for name, one in found.items():
            one.vocabulary.start(starts[name])
            if name in texts:
                texts[name].replace(starts[name].ids)
    if world.group is not None:
        wire.barrier()
    if writes:
        for name in (path, *text_paths.values()):
            remove_file(name)
    return found, texts, writes


def _made(tables: Sequence[Table], starts: Mapping[str, Vocabulary]) -> tuple[str, dict[str, str]]:
    """New files: one of memory, and one for the texts of each table of strings."""
    size = 0
    for table in tables:
        for kind, shape in growing_layout(table, starts[table.name].strings).values():
            size += aligned(np.dtype(kind).itemsize * int(np.prod(shape)))
    texts = {t.name: memory_file(1, in_memory=False) for t in tables if starts[t.name].strings}
    for path in texts.values():
        os.truncate(path, 0)
    return memory_file(max(1, size)), texts


def _arrays(
    table: Table, strings: bool, memory: Bytes, at: int
) -> tuple[dict[str, NDArray[Any]], int]:
    found = {}
    for name, (kind, shape) in growing_layout(table, strings).items():
        size = np.dtype(kind).itemsize * int(np.prod(shape))
        found[name] = memory[at : at + size].view(kind).reshape(shape)
        at += aligned(size)
    return found, at
