"""The observer of `counters=True`: rows and bytes of every band, from what an exchange keeps.

Nothing of a step depends on it: all it needs is in the trip, and it is asked after each stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rowtier.runtime.exchange.bundles import Lookups
from rowtier.runtime.exchange.counters import Counters
from rowtier.runtime.exchange.rows import RowsTrip
from rowtier.runtime.exchange.staged import StagedTrip
from rowtier.runtime.exchange.sums import SumsRequest
from rowtier.runtime.exchange.sums_trip import SumsTrip

Ints = NDArray[np.int64]


class BandCounts:
    """Counts what an exchange does, band by band, if the counters want it."""

    def __init__(self, counters: Counters):
        self.counters = counters

    @property
    def wanted(self) -> bool:
        """Whether anything is counted."""
        return self.counters.bands is not None

    def lookups(self, found: Iterable[Lookups]) -> None:
        """What the batch asks for."""
        if (bands := self.counters.bands) is not None:
            for entry in found:
                bands.add_rows("lookups", entry.bundle.numbers, entry.bundle.count(entry))

    def asked(self, rows: Sequence[RowsTrip], requests: Sequence[SumsRequest], hop: int,
              each: Sequence[int]) -> None:  # fmt: skip
        """Ids that went out and came in at a hop, so many bytes each."""
        if (bands := self.counters.bands) is None:
            return
        for entry, size in zip(rows, each, strict=False):
            numbers, sent, got = entry.counted(hop)
            bands.add_bytes("ids", numbers, sent * size, got * size)
            if hop == entry.piece.hops:
                bands.add_rows("read", *entry.reads())
        for request, size in zip(requests, each[len(rows) :], strict=False):
            sent, got = request.sent_by, request.got_by
            bands.add_bytes("ids", request.numbers, sent * size, got * size)
            bands.add_rows("read", *request.reads())

    def weights(self, request: SumsRequest, weighted: NDArray[np.bool_]) -> None:
        """Weights of lookups, which count as ids."""
        if (bands := self.counters.bands) is not None:
            sent = request.sent_by * request.lookups.weighted[:, None]
            came = request.got_by * weighted
            bands.add_bytes("ids", request.numbers, sent * 4, came * 4)

    def values(self, flow: str, channels: Iterable[RowsTrip | SumsTrip], hop: int) -> None:
        """Rows, sums or their gradients."""
        if (bands := self.counters.bands) is None:
            return
        for channel in channels:
            size = channel.row_bytes
            numbers, asked, got = channel.counted(hop)
            sent, received = (got, asked) if flow == "forward" else (asked, got)
            bands.add_bytes(flow, numbers, sent * size, received * size)

    def staged(self, flow: str, entry: StagedTrip) -> None:
        """Sums that were handed on stage by stage, or their gradients."""
        if (bands := self.counters.bands) is None:
            return
        for stage in entry.stages:
            sent, came = stage.bytes_moved(flow, entry.row_bytes)
            bands.add_bytes(flow, entry.numbers, sent[None], came[None])
