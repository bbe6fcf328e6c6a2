"""One step's exchange for all tables: ids out, rows and sums in, gradients back.

Few collectives, whatever the number of tables: per hop one for counts, one for ids and one
for values of each type. Start reading at `Exchange.forward`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rowtier.runtime import kernels
from rowtier.runtime.address import Piece
from rowtier.runtime.counters import Counters
from rowtier.runtime.parcels import Grouped, Layout, swap_counts, swap_entries
from rowtier.runtime.rows import Lookups, RowsTrip
from rowtier.runtime.staged import StagedTrip, tell_bags
from rowtier.runtime.storage import NO_WEIGHTS, Shard
from rowtier.runtime.sums import Pooled, SumsRequest, SumsTrip
from rowtier.runtime.wire import Wire

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Channel = RowsTrip | SumsTrip


@dataclass(eq=False)
class Lane:
    """The rows of one type and width that travel together at one hop."""

    kind: tuple[str, int]
    layout: Layout
    channels: list[Channel]
    rows: Floats


@dataclass(eq=False)
class Trip:
    """A step on its way: everything that the backward pass needs."""

    lookups: list[Lookups]
    rows: list[RowsTrip] = field(default_factory=list)
    requests: list[SumsRequest] = field(default_factory=list)
    sums: list[SumsTrip] = field(default_factory=list)
    staged: list[StagedTrip] = field(default_factory=list)
    lanes: dict[int, list[Lane]] = field(default_factory=dict)  # per hop

    def __post_init__(self) -> None:
        self._spots: dict[int, list[tuple[int, Ints, Lane]]] = {}

    def lane(self, channel: Channel) -> Lane:
        """The lane of a channel at the first hop."""
        kind = (channel.dtype, channel.width)
        return next(lane for lane in self.lanes[1] if lane.kind == kind)

    def spots(self, lookups: Lookups) -> list[tuple[int, Ints, Lane]]:
        """Per run of columns: the first, the spot of every lookup's row (−1: none), the lane."""
        found = self._spots.get(id(lookups))
        if found is None:
            found = self._spots[id(lookups)] = list(_spots(self, lookups))
        return found


class Exchange:
    """Moves rows, sums and gradients between the ranks of a plan."""

    def __init__(
        self,
        wire: Wire,
        pieces: dict[str, list[list[Piece]]],
        shards: dict[int, Shard],
        counters: Counters,
        narrow: bool,
    ):
        self.wire = self.ids_wire = wire
        self.pieces, self.shards, self.counters = pieces, shards, counters
        self.narrow = narrow
        every = [piece for layers in pieces.values() for layer in layers for piece in layer]
        self.hops = max(piece.hops for piece in every)
        self.pooled_pieces = {
            name: [p for p in (Pooled.of(layers, staged) for staged in (False, True)) if p]
            for name, layers in pieces.items()
        }
        self._any_staged = any(p.staged for found in self.pooled_pieces.values() for p in found)

    def forward(self, lookups: list[Lookups]) -> Trip:
        """Bring everything that the lookups need to this rank."""
        return self.fetch(self.ask(lookups))

    def ask(self, lookups: list[Lookups]) -> Trip:
        """Tell everyone what is needed of them. May run ahead: no row is read."""
        trip = Trip(lookups)
        for entry in lookups:
            layers = self.pieces[entry.table.name]
            for layer in layers:
                for piece in layer:
                    self._count_lookups(piece, entry)
                    if not piece.pooled:
                        trip.rows.append(RowsTrip(piece, self.shards[piece.number], entry))
            for pooled in self.pooled_pieces[entry.table.name]:
                trip.requests.append(SumsRequest(pooled, self.shards, entry))
        for hop in range(1, self.hops + 1):
            self._ask(trip, hop)
        self._split_sums(trip)
        return trip

    def fetch(self, trip: Trip) -> Trip:
        """Read the rows and bring them, or their sums, to whoever asked."""
        for hop in range(self.hops, 0, -1):
            self._answer(trip, hop)
        self._run_staged(trip)
        return trip

    def _count_lookups(self, piece: Piece, lookups: Lookups) -> None:
        self.counters.add_rows(piece.number, lookups=lookups.count_in(piece))

    def _ask(self, trip: Trip, hop: int) -> None:
        rows = [entry for entry in trip.rows if entry.piece.hops >= hop]
        requests = trip.requests if hop == 1 else []
        numbers = [entry.piece.number for entry in rows] + [entry.number for entry in requests]
        sent = [self._as_ids(entry.ask(hop), entry.piece) for entry in rows]
        sent += [request.ask(self._is_narrow(request.pieces[0])) for request in requests]
        if not sent:
            return
        counts = np.stack([grouped.counts for grouped in sent])
        weighted = np.array([[len(r.lookups.weights) > 0] for r in requests], dtype=np.int64)
        told = np.broadcast_to(weighted.reshape(-1, 1), (len(requests), self.wire.world.size))
        got = swap_counts(self.ids_wire, np.concatenate([counts, told]))
        self._count_headers(4 * len(got))
        received = self._swap_ids(sent, got[: len(sent)], numbers)
        for entry, grouped in zip(rows, received, strict=False):
            entry.deliver(hop, grouped)
        flags = got[len(sent) :] > 0
        self._deliver_sums(requests, received[len(rows) :], flags)

    def _is_narrow(self, piece: Piece) -> bool:
        return self.narrow and piece.table.num_embeddings <= 2**31

    def _as_ids(self, grouped: Grouped, piece: Piece) -> Grouped:
        dtype = np.uint32 if self._is_narrow(piece) else np.uint64
        return Grouped(grouped.data.astype(dtype), grouped.counts)

    def _swap_ids(self, sent: list[Grouped], got: Ints, numbers: list[int]) -> list[Grouped]:
        received: dict[int, Grouped] = {}
        for dtype in (np.uint32, np.uint64):
            lane = [i for i, grouped in enumerate(sent) if grouped.data.dtype == dtype]
            here = swap_entries(self.ids_wire, [sent[i] for i in lane], got[lane])
            for i, grouped in zip(lane, here, strict=True):
                size = grouped.data.itemsize
                self.counters.add_bytes("ids", numbers[i], sent[i].counts * size, got[i] * size)
                received[i] = grouped
        return [received[i] for i in range(len(sent))]

    def _deliver_sums(
        self, requests: list[SumsRequest], received: list[Grouped], flags: NDArray[np.bool_]
    ) -> None:
        for request, grouped, weighted in zip(requests, received, flags, strict=True):
            weights = NO_WEIGHTS
            if weighted.any():  # the same on all ranks, as each tells all others
                weights = np.ones(len(grouped.data), dtype=np.float32)
                came = np.where(weighted, grouped.counts, 0)
                weights[np.repeat(weighted, grouped.counts)] = self._swap_weights(request, came)
            request.deliver(grouped, weights)
            for piece in request.pieces:
                self.counters.add_rows(piece.number, read=request.reads(piece))

    def _swap_weights(self, request: SumsRequest, came: Ints) -> Floats:
        counts = request.sent.counts * (len(request.lookups.weights) > 0)
        (got,) = swap_entries(self.ids_wire, [Grouped(request.sent.weights, counts)], came[None])
        self.counters.add_bytes("ids", request.number, 4 * counts, 4 * came)
        return got.data

    def _split_sums(self, trip: Trip) -> None:
        for request in trip.requests:
            kind = StagedTrip if request.staged else SumsTrip
            found = [kind(request, view) for view in request.pooled.views]
            (trip.staged if request.staged else trip.sums).extend(found)  # type: ignore[arg-type]

    def _answer(self, trip: Trip, hop: int) -> None:
        channels: list[Channel] = [t for t in trip.rows if t.piece.hops >= hop]
        channels += trip.sums if hop == 1 else []
        trip.lanes[hop] = []
        for kind in dict.fromkeys((channel.dtype, channel.width) for channel in channels):
            here = [channel for channel in channels if (channel.dtype, channel.width) == kind]
            dtype, width = kind
            layout = Layout(
                self.wire.world.rank,
                np.stack([channel.asked_counts(hop) for channel in here]),
                np.stack([channel.got_counts(hop) for channel in here]),
                width,
                dtype,
            )
            lane = layout.empty()
            for number, channel in enumerate(here):
                channel.fill(hop, layout, number, lane)
            layout.answer(self.wire, lane)
            trip.lanes[hop].append(Lane(kind, layout, here, lane))
            self._count_values("forward", here, hop)
        if hop == 1:
            for entry in trip.rows:
                self._count_reads(entry)

    def _count_reads(self, entry: RowsTrip) -> None:
        reads, piece = entry.reads, entry.piece
        if piece.way.level == 0 and not piece.once:  # looked up one by one, if distinct or not
            reads = entry.lookups.count_in(piece)
        self.counters.add_rows(piece.number, read=reads)

    def _count_values(self, flow: str, channels: Iterable[Channel], hop: int) -> None:
        for channel in channels:
            number = channel.number if isinstance(channel, SumsTrip) else channel.piece.number
            size = channel.width * (4 if channel.dtype == "fp32" else 2)
            asked, got = channel.asked_counts(hop) * size, channel.got_counts(hop) * size
            sent, received = (got, asked) if flow == "forward" else (asked, got)
            self.counters.add_bytes(flow, number, sent, received)

    def _run_staged(self, trip: Trip) -> None:
        if not self._any_staged:
            return
        size = self.wire.world.size
        own = np.array([request.lookups.bags for request in trip.requests if request.staged])
        everyones = self.wire.swap_fixed(np.tile(own, (size, 1)))
        staged = [request for request in trip.requests if request.staged]
        for number, request in enumerate(staged):
            bags = np.ascontiguousarray(everyones[:, number])
            told = tell_bags(self.wire, request, bags)
            for entry in trip.staged:
                if entry.request is request:
                    entry.run(self.wire, bags, told)
                    self._count_staged("forward", entry)

    def _count_staged(self, flow: str, entry: StagedTrip) -> None:
        size = entry.width * (4 if entry.dtype == "fp32" else 2)
        for stage in entry.stages:
            sent, came = stage.sent_counts * size, stage.came_counts * size
            if flow == "backward":
                sent, came = came, sent
            self.counters.add_bytes(flow, entry.number, sent, came)

    def _count_headers(self, each: int) -> None:
        counts = np.full(self.wire.world.size, each, dtype=np.int64)
        self.counters.add_bytes("headers", 0, counts, counts)

    def backward(self, trip: Trip, grads: dict[str, Floats]) -> None:
        """Bring gradients to the rows: per bag, or per lookup of tables that are not pooled."""
        grad_lanes = {
            hop: {lane.kind: lane.layout.zeros() for lane in lanes}
            for hop, lanes in trip.lanes.items()
        }
        first = grad_lanes[1]
        for entry in trip.lookups:
            grad = grads[entry.table.name]
            for column, at, lane in trip.spots(entry):
                if entry.table.pooling == "none":
                    kernels.collect_rows(first[lane.kind], at, grad, column)
                else:
                    weights = entry.weights
                    kernels.pool_back(first[lane.kind], at, entry.edges, weights, grad, column)
        for sums in trip.sums:
            lane_rows, grad = first[sums.dtype, sums.width], grads[sums.request.lookups.table.name]
            kernels.take_bags(lane_rows, sums.at, sums.bags, grad, sums.view.first)
        self._give_back(trip, grad_lanes)
        for staged in trip.staged:
            staged.back(grads[staged.request.lookups.table.name])
            self._count_staged("backward", staged)

    def _give_back(self, trip: Trip, grad_lanes: dict[int, dict[tuple[str, int], Floats]]) -> None:
        for hop in sorted(trip.lanes):
            for lane in trip.lanes[hop]:
                lane.layout.give_back(self.wire, grad_lanes[hop][lane.kind])
                self._count_values("backward", lane.channels, hop)
                hops = [by_kind[lane.kind] for by_kind in _in_order(grad_lanes, lane.kind)]
                for channel in lane.channels:
                    channel.take_back(hop, hops)

    def pooled(self, trip: Trip, lookups: Lookups) -> Floats:
        """The sums of a table's bags, over all bands; not yet divided for `mean`."""
        out = np.zeros((lookups.bags, lookups.table.embedding_dim), dtype=np.float32)
        for first, at, lane in trip.spots(lookups):
            kernels.pool(lane.rows, at, lookups.edges, lookups.weights, out, first)
        for entry in trip.sums:
            if entry.request.lookups is lookups:
                rows = trip.lane(entry).rows
                kernels.add_bags(rows, entry.at, entry.bags, out, entry.view.first)
        for staged in trip.staged:
            if staged.request.lookups is lookups:
                staged.add_to(out)
        return out

    def sequence(self, trip: Trip, lookups: Lookups) -> Floats:
        """The rows of a table's lookups."""
        out = np.empty((len(lookups.address), lookups.table.embedding_dim), dtype=np.float32)
        for first, at, lane in trip.spots(lookups):
            kernels.spread_rows(lane.rows, at, out, first)
        return out


def _in_order(
    grad_lanes: dict[int, dict[tuple[str, int], Floats]], kind: tuple[str, int]
) -> Iterable[dict[tuple[str, int], Floats]]:
    """The hops that have a lane of a kind, in order."""
    return [grad_lanes[hop] for hop in sorted(grad_lanes) if kind in grad_lanes[hop]]


def _spots(trip: Trip, lookups: Lookups) -> Iterable[tuple[int, Ints, Lane]]:
    """Where every lookup's row lies, for each run of columns that bands hold."""
    here = [entry for entry in trip.rows if entry.lookups is lookups]
    for columns in dict.fromkeys(entry.piece.columns for entry in here):
        group = [entry for entry in here if entry.piece.columns == columns]
        at = np.full(len(lookups.address), -1, dtype=np.int64)
        distinct = [entry for entry in group if entry.distinct]
        if distinct:
            rows_at = np.full(len(lookups.rows), -1, dtype=np.int64)
            for entry in distinct:
                rows_at[entry.which] = entry.at
            at = kernels.take_spots(rows_at, lookups.row_of)
        for entry in group:
            if not entry.distinct:
                at[entry.which] = entry.at
        yield columns[0], at, trip.lane(group[0])
