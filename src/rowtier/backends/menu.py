"""Every way to shard each table, as arrays: what the solver chooses from.

An option is a list of *parts*; a part covers one device, one host or all devices, and lies on
any place of that kind. Table-wise is one part of one device, column-wise several; table-row-
wise is one part of one host, a grid several; row-wise and copies are one part of all devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rowtier.profile.curve import Floats, Ints

PERF, HBM, DDR = range(3)


class Lists(NamedTuple):
    """Options of all tables, one after the other, and what each asks of the devices."""

    tables: Ints  # of each table its first option; one more entry at the end
    options: Ints  # of each option its first part; one more
    spans: Ints  # devices that each part covers
    shards: Ints  # of each part its first shard; one more
    asks: Floats  # shard × (milliseconds, bytes of hbm, bytes of ddr)
    free: Floats  # device × (0, bytes of hbm, bytes of ddr)


@dataclass(frozen=True, eq=False)
class OptionMenu:
    """The lists, and what follows from them."""

    lists: Lists

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return len(self.lists.free)

    @property
    def num_tables(self) -> int:
        """How many tables there are."""
        return len(self.lists.tables) - 1

    @cached_property
    def totals(self) -> Floats:
        """What each option asks of all devices together."""
        return np.add.reduceat(self.lists.asks, self._first, axis=0)

    @cached_property
    def largest(self) -> Floats:
        """What each option asks of the device that it asks the most of, per resource."""
        return np.maximum.reduceat(self.lists.asks, self._first, axis=0)

    @property
    def _first(self) -> Ints:
        """Of each option its first shard."""
        return self.lists.shards[self.lists.options[:-1]]

    @cached_property
    def most_parts(self) -> int:
        """The most parts that any option has."""
        return int(np.diff(self.lists.options).max())


def menu_of(by_table: Sequence[Sequence[Any]], topology: Any) -> OptionMenu:
    """The menu of TorchRec's sharding options, which have their estimates; a list per table."""
    tables, options, spans, shards = [0], [0], [], [0]
    asks: list[tuple[float, int, int]] = []
    for choices in by_table:
        for option in choices:
            span = span_of(option, topology)
            for shard in option.shards:
                asks.append((shard.perf.total, shard.storage.hbm, shard.storage.ddr))
            parts = len(option.shards) // span
            spans += [span] * parts
            shards += [shards[-1] + span * (part + 1) for part in range(parts)]
            options.append(options[-1] + parts)
        tables.append(tables[-1] + len(choices))
    free = [(0.0, d.storage.hbm, d.storage.ddr) for d in topology.devices]
    return OptionMenu(
        Lists(
            tables=np.array(tables, dtype=np.int64),
            options=np.array(options, dtype=np.int64),
            spans=np.array(spans, dtype=np.int64),
            shards=np.array(shards, dtype=np.int64),
            asks=np.array(asks, dtype=np.float64),
            free=np.array(free, dtype=np.float64),
        )
    )


def span_of(option: Any, topology: Any) -> int:
    """Devices that one part of an option covers."""
    spans = {"device": 1, "host": int(topology.intra_group_size), "uniform": topology.world_size}
    spans["multi_host"] = spans["host"]
    return int(spans[option.partition_by])


def undominated(choices: Sequence[Any], topology: Any) -> list[Any]:
    """The options without those that another, placed alike, beats or equals in everything."""
    kept: list[tuple[tuple[int, int], tuple[float, float, float], Any]] = []
    for option in choices:
        storage = option.total_storage
        shape = (span_of(option, topology), len(option.shards))
        asks = (option.total_perf, storage.hbm, storage.ddr)
        if any(s == shape and all(map(float.__le__, a, map(float, asks))) for s, a, _ in kept):
            continue
        beaten = [s == shape and all(map(float.__le__, map(float, asks), a)) for s, a, _ in kept]
        kept = [one for one, out in zip(kept, beaten, strict=True) if not out]
        kept.append((shape, (float(asks[0]), float(asks[1]), float(asks[2])), option))
    return [option for _, _, option in kept]
