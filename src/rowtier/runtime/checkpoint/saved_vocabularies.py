"""The ids of growing tables' rows, as a save has them."""

from __future__ import annotations

import numpy as np
import torch

from rowtier.profile.hashing import strings_of
from rowtier.profile.vocabulary import Vocabulary
from rowtier.runtime.checkpoint import shards
from rowtier.runtime.checkpoint.shards import CheckedReader
from rowtier.runtime.logical import VOCABULARIES

_KINDS = {"ids": torch.int64, "ends": torch.int64, "text": torch.uint8}


def saved_vocabularies(reader: CheckedReader) -> dict[str, Vocabulary]:
    """The vocabularies that grew, by the name that a table's weights have in the save.

    Row r of the table belongs to id r; the last `num_shared` rows of the table to all others.
    """
    stored = reader.read_metadata().state_dict_metadata
    found = {}
    for key, entry in reader.about.tables.items():
        head = f"{key.removesuffix(entry.name)}{VOCABULARIES}.{entry.table}."
        room = {
            head + name: torch.empty(stored[head + name].size, dtype=kind)
            for name, kind in _KINDS.items()
            if head + name in stored
        }
        if not room:
            continue
        shards.read(reader, room, None, alone=True)
        arrays = {name.removeprefix(head): tensor.numpy() for name, tensor in room.items()}
        ids = arrays["ids"] if "ids" in arrays else strings_of(arrays["ends"], arrays["text"])
        found[key] = Vocabulary(ids, np.zeros(len(ids), dtype=np.int64))
    return found
