"""One step's exchange for all tables: ids out, rows and sums in, gradients back.

Few collectives, whatever the number of tables: per hop one for ids, with how many they are and
the weights of lookups, and one for values of all types. Start reading at `Exchange.forward`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.runtime.exchange.band_counts import BandCounts
from rowtier.runtime.exchange.bundles import Bundle, Lookups, as_type
from rowtier.runtime.exchange.counters import Counters
from rowtier.runtime.exchange.parcels import Grouped, Layout, Parcels, swap_lanes, swap_parcels
from rowtier.runtime.exchange.rows import RowsTrip
from rowtier.runtime.exchange.staged import StagedTrip, bags_of_bits, bits_of_bags
from rowtier.runtime.exchange.sums import Pooled, SumsRequest
from rowtier.runtime.exchange.sums_trip import SumsTrip
from rowtier.runtime.exchange.wire import Wire
from rowtier.runtime.kernels import indices
from rowtier.runtime.kernels.protocol import Array
from rowtier.runtime.kernels.side import ComputeSide
from rowtier.runtime.store.address import Piece
from rowtier.runtime.store.storage import NO_WEIGHTS, Shard

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Channel = RowsTrip | SumsTrip


@dataclass(eq=False)
class Lane:
    """The rows of one type and width that travel together at one hop."""

    kind: tuple[str, int]
    layout: Layout
    channels: list[Channel]
    rows: Array


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
        self._lookups: dict[int, list[_Each]] = {}
        self._bags: dict[int, list[_Bags]] = {}

    def read_ahead(self, steps: int) -> None:
        """Begin to read what lies on this rank's disk, for this step (0) or the next (1)."""
        for entry in self.rows:
            entry.read_ahead(steps)
        for request in self.requests:
            request.read_ahead(steps)

    def forget_rows(self) -> None:
        """Give the memory of rows back once the outputs are made of them."""
        for lane in (lane for lanes in self.lanes.values() for lane in lanes):
            lane.rows = lane.layout.side.empty(0, lane.layout.width)
        for entry in self.rows:
            entry.forget_rows()

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

    def each(self, lookups: Lookups) -> list[_Each]:
        """The same where kernels take it."""
        found = self._lookups.get(id(lookups))
        if found is None:
            found = [
                _Each(first, lane.layout.side.put(at), lane)
                for first, at, lane in self.spots(lookups)
            ]
            self._lookups[id(lookups)] = found
        return found

    def bags(self, lookups: Lookups) -> list[_Bags]:
        """The same for bags, without lookups that are not among the rows."""
        found = self._bags.get(id(lookups))
        if found is None:
            found = self._bags[id(lookups)] = list(_bags(self, lookups))
        return found


class _Each(NamedTuple):
    """Lookups of rows that lie in a lane: the first column, and the spot of each."""

    first: int
    at: Array
    lane: Lane


class _Bags(NamedTuple):
    """Bags of rows that lie in a lane: the first column, spots, edges and weights."""

    first: int
    at: Array
    edges: Array
    weights: Array
    lane: Lane


class Exchange:
    """Moves rows, sums and gradients between the ranks of a plan."""

    def __init__(
        self,
        wire: Wire,
        bundles: Sequence[Bundle],
        shards: dict[int, Shard],
        counters: Counters,
        narrow: bool,
        side: ComputeSide,
    ):
        self.wire = self.ids_wire = wire
        self.side = side
        self.shards, self.counters = shards, counters
        self._bands = BandCounts(counters)
        self.narrow = narrow
        self.hops = max(piece.hops for bundle in bundles for piece in bundle.pieces)
        self.pooled_pieces = {
            bundle: [p for p in (Pooled.of(bundle.layers, staged) for staged in (False, True)) if p]
            for bundle in bundles
        }

    def forward(self, lookups: list[Lookups]) -> Trip:
        """Bring everything that the lookups need to this rank."""
        return self.fetch(self.ask(lookups))

    def ask(self, lookups: list[Lookups]) -> Trip:
        """Tell everyone what is needed of them. May run ahead: no row is read."""
        trip = Trip(lookups)
        self._bands.lookups(lookups)
        for entry in lookups:
            for piece in entry.bundle.pieces:
                if not piece.pooled:
                    trip.rows.append(RowsTrip(piece, self.shards[piece.number], entry))
            for pooled in self.pooled_pieces[entry.bundle]:
                trip.requests.append(SumsRequest(pooled, self.shards, entry))
        for hop in range(1, self.hops + 1):
            self._ask(trip, hop)
        self._split_sums(trip)
        return trip

    def fetch(self, trip: Trip) -> Trip:
        """Read the rows and bring them, or their sums, to whoever asked."""
        trip.read_ahead(0)  # a disk works while rows in memory are gathered
        for hop in range(self.hops, 0, -1):
            self._answer(trip, hop)
        self._run_staged(trip)
        return trip

    def _ask(self, trip: Trip, hop: int) -> None:
        rows = [entry for entry in trip.rows if entry.piece.hops >= hop]
        requests = trip.requests if hop == 1 else []
        sent = [self._as_ids(entry.ask(hop), entry.piece) for entry in rows]
        sent += [request.ask(self.narrow and request.pieces[0].is_narrow) for request in requests]
        if not sent:
            return
        sent += [request.sent_weights for request in requests]
        counted = len(sent)
        staged = [request for request in requests if request.staged]
        sent += [bits_of_bags(request) for request in staged]
        weighted = [flag for request in requests for flag in request.lookups.weighted]
        bags = [request.lookups.bags for request in staged]
        parcels = swap_parcels(self.ids_wire, sent, [*weighted, *bags])
        self._count_ids(parcels, counted)
        for entry, grouped in zip(rows, parcels.received, strict=False):
            entry.deliver(hop, grouped)
        notes = parcels.notes.T
        self._deliver_sums(requests, parcels.received[len(rows) : counted], notes > 0)
        for request, got, each in zip(
            staged, parcels.received[counted:], notes[len(weighted) :], strict=True
        ):
            request.everyones_bags, request.told_bags = each, bags_of_bits(got)
        self._bands.asked(rows, requests, hop, [grouped.itemsize for grouped in sent])

    def _as_ids(self, grouped: Grouped, piece: Piece) -> Grouped:
        dtype = np.dtype(np.uint32 if self.narrow and piece.is_narrow else np.uint64)
        return Grouped(as_type(grouped.data, dtype), grouped.counts)

    def _count_ids(self, parcels: Parcels, channels: int) -> None:
        """The first channels have ids and their weights, the others say of which bags they are."""
        each = np.array([grouped.itemsize for grouped in parcels.received[:channels]])
        for flow, sent, got in (
            ("ids", parcels.sent[:, :channels] @ each, parcels.got[:, :channels] @ each),
            ("headers", parcels.sent[:, channels:].sum(axis=1) + parcels.header_bytes,
             parcels.got[:, channels:].sum(axis=1) + parcels.header_bytes),
        ):  # fmt: skip
            self.counters.add(flow, sent, got)

    def _deliver_sums(
        self, requests: list[SumsRequest], received: list[Grouped], flags: NDArray[np.bool_]
    ) -> None:
        at, ids, weights = 0, received[: len(requests)], received[len(requests) :]
        for request, grouped, values in zip(requests, ids, weights, strict=True):
            request.deliver(grouped)
            weighted = flags[at : at + len(request.bundle.tables)]
            at += len(weighted)
            if weighted.any():
                request.deliver_weights(values, weighted)
                self._bands.weights(request, weighted)

    def _split_sums(self, trip: Trip) -> None:
        for request in trip.requests:
            views = request.pooled.views
            if request.staged:
                trip.staged += [StagedTrip(request, view, self.side) for view in views]
            else:
                trip.sums += [SumsTrip(request, view) for view in views]

    def _answer(self, trip: Trip, hop: int) -> None:
        channels: list[Channel] = [t for t in trip.rows if t.piece.hops >= hop]
        channels += trip.sums if hop == 1 else []
        lanes = trip.lanes[hop] = []
        for kind in dict.fromkeys((channel.dtype, channel.width) for channel in channels):
            here = [channel for channel in channels if (channel.dtype, channel.width) == kind]
            dtype, width = kind
            layout = Layout(
                self.side,
                self.wire.world.rank,
                np.stack([channel.asked_counts(hop) for channel in here]),
                np.stack([channel.got_counts(hop) for channel in here]),
                width,
                dtype,
            )
            lanes.append(Lane(kind, layout, here, layout.empty()))
        filled = [
            (channel, number, lane)
            for lane in lanes
            for number, channel in enumerate(lane.channels)
        ]
        for channel, number, lane in sorted(filled, key=lambda entry: entry[0].on_disk):
            channel.fill(hop, lane.layout, number, lane.rows)
        swap_lanes(self.wire, [lane.layout.answer(lane.rows) for lane in lanes])
        for lane in lanes:
            self.counters.add("forward", lane.layout.got_bytes, lane.layout.asked_bytes)
            self._bands.values("forward", lane.channels, hop)

    def _run_staged(self, trip: Trip) -> None:
        for entry in trip.staged:
            entry.run(self.wire)
            self._count_staged("forward", entry)

    def _count_staged(self, flow: str, entry: StagedTrip) -> None:
        for stage in entry.stages:
            self.counters.add(flow, *stage.bytes_moved(flow, entry.row_bytes))
        self._bands.staged(flow, entry)

    def backward(self, trip: Trip, grads: dict[Bundle, Array]) -> None:
        """Bring gradients to the rows: per bag, or per lookup of tables that are not pooled."""
        grad_lanes = {
            hop: {
                lane.kind: lane.layout.zeros([isinstance(c, RowsTrip) for c in lane.channels])
                for lane in lanes
            }
            for hop, lanes in trip.lanes.items()
        }
        first, kernels, put = grad_lanes[1], self.side.kernels, self.side.put
        for entry in trip.lookups:
            grad = grads[entry.bundle]
            if entry.table.pooling == "none":
                for column, at, lane in trip.each(entry):
                    kernels.spread_back(first[lane.kind], at, grad, column)
                continue
            for column, at, edges, weights, lane in trip.bags(entry):
                kernels.pool_back(first[lane.kind], at, edges, weights, grad, column)
        for sums in trip.sums:
            lane_rows, grad = first[sums.dtype, sums.width], grads[sums.request.bundle]
            kernels.gather(grad, put(sums.bags), lane_rows, put(sums.at), sums.view.first)
        self._give_back(trip, grad_lanes)
        for staged in trip.staged:
            staged.back(grads[staged.request.bundle])
            self._count_staged("backward", staged)

    def _give_back(self, trip: Trip, grad_lanes: dict[int, dict[tuple[str, int], Array]]) -> None:
        for hop in sorted(trip.lanes):
            lanes = trip.lanes[hop]
            swap_lanes(
                self.wire, [lane.layout.give_back(grad_lanes[hop][lane.kind]) for lane in lanes]
            )
            for lane in lanes:
                self.counters.add("backward", lane.layout.asked_bytes, lane.layout.got_bytes)
                self._bands.values("backward", lane.channels, hop)
                hops = [by_kind[lane.kind] for by_kind in _in_order(grad_lanes, lane.kind)]
                for channel in lane.channels:
                    channel.take_back(hop, hops)

    def pooled(self, trip: Trip, lookups: Lookups) -> Array:
        """The sums of a table's bags, over all bands; not yet divided for `mean`."""
        side, width, found = self.side, lookups.table.embedding_dim, trip.bags(lookups)
        if len(found) == 1 and found[0].lane.layout.width == width and len(found[0].at):
            _, at, edges, weights, lane = found[0]
            out = side.kernels.pool(lane.rows, at, edges, weights, None, 0)
        else:
            out = side.full(lookups.bags, width, 0.0)
            for first, at, edges, weights, lane in found:
                side.kernels.pool(lane.rows, at, edges, weights, out, first)
        for entry in trip.sums:
            if entry.request.lookups is lookups:
                rows, at, bags = trip.lane(entry).rows, side.put(entry.at), side.put(entry.bags)
                none = side.put(NO_WEIGHTS)
                side.kernels.add_rows(rows, at, none, out, bags, entry.view.first)
        for staged in trip.staged:
            if staged.request.lookups is lookups:
                staged.add_to(out)
        return out

    def sequence(self, trip: Trip, lookups: Lookups) -> Array:
        """The rows of a table's lookups."""
        out = self.side.empty(len(lookups.address), lookups.table.embedding_dim)
        for first, at, lane in trip.each(lookups):
            self.side.kernels.spread(lane.rows, at, out, first)
        return out


def _in_order(
    grad_lanes: dict[int, dict[tuple[str, int], Array]], kind: tuple[str, int]
) -> Iterable[dict[tuple[str, int], Array]]:
    """The hops that have a lane of a kind, in order."""
    return [grad_lanes[hop] for hop in sorted(grad_lanes) if kind in grad_lanes[hop]]


def _bags(trip: Trip, lookups: Lookups) -> Iterable[_Bags]:
    here = [entry for entry in trip.rows if entry.lookups is lookups]
    alike = len({entry.piece.columns for entry in here}) == 1
    if here and alike and lookups.fetched is not None and all(entry.distinct for entry in here):
        chosen = lookups.fetched
        edges = indices.edges_within(chosen, lookups.edges)
        weights = lookups.weights[chosen] if len(lookups.weights) else lookups.weights
        at, lane = _fetched_at(here, lookups), trip.lane(here[0])
        yield _put(here[0].piece.columns[0], at, edges, weights, lane)
        return
    pieces = lookups.bundle.pieces
    every = all(not piece.pooled and piece.columns == pieces[0].columns for piece in pieces)
    for first, at, lane in trip.spots(lookups):
        if every:
            yield _put(first, at, lookups.edges, lookups.weights, lane)
        else:
            left = indices.present(at, lookups.edges, lookups.weights)
            yield _put(first, *left, lane)


def _put(first: int, at: Ints, edges: Ints, weights: Floats, lane: Lane) -> _Bags:
    put = lane.layout.side.put
    return _Bags(first, put(at), put(edges), put(weights), lane)


def _spots(trip: Trip, lookups: Lookups) -> Iterable[tuple[int, Ints, Lane]]:
    """Where every lookup's row lies, for each run of columns that bands hold."""
    here = [entry for entry in trip.rows if entry.lookups is lookups]
    for columns in dict.fromkeys(entry.piece.columns for entry in here):
        group = [entry for entry in here if entry.piece.columns == columns]
        at = np.full(len(lookups.address), -1, dtype=np.int64)
        distinct = [entry for entry in group if entry.distinct]
        if distinct:
            found = _fetched_at(distinct, lookups)
            if lookups.fetched is None:
                at = found
            else:
                at[lookups.fetched] = found
        for entry in group:
            if not entry.distinct:
                at[entry.which] = entry.at
        yield columns[0], at, trip.lane(group[0])


def _fetched_at(distinct: list[RowsTrip], lookups: Lookups) -> Ints:
    """Where the rows of the lookups `fetched` lie."""
    rows_at = np.full(len(lookups.rows), -1, dtype=np.int64)
    for entry in distinct:
        rows_at[entry.which] = entry.at
    return indices.take_spots(rows_at, lookups.row_of)
