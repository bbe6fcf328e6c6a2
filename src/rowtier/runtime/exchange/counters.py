"""What the runtime really did: bytes per link level always, rows and bytes per band if asked.

Bytes per link level are counted message by message, from the sizes of what is sent. With
`counters=True` an observer (`band_counts.py`) counts rows and bytes of every band too, so that
`rowtier replay` on the same batches can be held against it; that takes time in every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rowtier.cost.amounts import whole_bytes
from rowtier.errors import UserError
from rowtier.files import dump_json
from rowtier.reading import StrPath
from rowtier.runtime.store.address import Piece
from rowtier.runtime.store.world import World
from rowtier.writing import write_atomic

if TYPE_CHECKING:
    from rowtier.runtime.exchange.wire import Wire

Ints = NDArray[np.int64]
FLOWS = ("ids", "forward", "backward", "sync", "sync_ids", "norms", "headers")
SENT, RECEIVED = 0, 1
_FLOW_NUMBERS = {flow: number for number, flow in enumerate(FLOWS)}
_ROWS = ("lookups", "read", "updated")


@dataclass(eq=False)
class PerBand:
    """Counts of every piece of the plan, on one rank."""

    passes: Ints  # ranks × levels: whether what goes to a rank passes a level's links
    pieces: int

    def __post_init__(self) -> None:
        levels = self.passes.shape[1]
        self.rows = np.zeros((self.pieces, len(_ROWS)), dtype=np.int64)
        self.links = np.zeros((self.pieces, len(FLOWS), 2, levels), dtype=np.int64)

    def add_rows(self, what: str, pieces: Ints, counts: Ints) -> None:
        """Count rows of pieces, any of them several times: "lookups", "read" or "updated"."""
        np.add.at(self.rows[:, _ROWS.index(what)], pieces, counts)

    def add_bytes(self, flow: str, pieces: Ints, sent: Ints, received: Ints) -> None:
        """Count bytes, pieces × ranks, by the rank they went to, and came from."""
        here = self.links[:, _FLOW_NUMBERS[flow]]
        for way, counts in ((SENT, sent), (RECEIVED, received)):
            np.add.at(here[:, way], pieces, counts @ self.passes)


@dataclass(eq=False)
class Counters:
    """Counts of one rank since the last `reset`; bands in the order of the plan.

    `headers` are the bytes that tell how many entries follow, of which bags and of which call
    (eight bytes in every message); `norms` those
    that row-wise Adagrad needs of rows whose columns lie apart. Neither is part of a
    prediction. Partial sums that several bands share count for the first of them.
    """

    world: World
    pieces: list[Piece]
    per_band: bool = False
    wires: list[Wire] = field(default_factory=list)  # whose stamps count, too
    steps: int = 0
    ranks: Ints = field(init=False)  # flows × sent, received × ranks: bytes, without stamps
    bands: PerBand | None = field(init=False)

    def __post_init__(self) -> None:
        self.begin_plan(self.world, self.pieces)

    def begin_plan(self, world: World, pieces: list[Piece]) -> None:
        """Begin anew, with the bands of another plan."""
        self.world, self.pieces = world, pieces
        levels = np.arange(world.tree.levels)
        # What stays here passes no level.
        self._passes = ((world.distance - 1)[:, None] == levels).astype(np.int64)
        self.reset()

    def by_level(self, ranks: Ints) -> Ints:
        """Bytes by … × ranks as bytes by … × levels."""
        return np.asarray(ranks @ self._passes)

    def reset(self) -> None:
        """Begin anew."""
        self.steps = 0
        self.ranks = np.zeros((len(FLOWS), 2, self.world.size), dtype=np.int64)
        self.bands = PerBand(self._passes, len(self.pieces)) if self.per_band else None
        self._stamps_before = self._stamps()

    def _stamps(self) -> Ints:
        """Bytes of stamps so far: sent, received × ranks."""
        none = np.zeros((2, self.world.size), dtype=np.int64)
        return np.asarray(sum((wire.stamp_bytes for wire in self.wires), none))

    def add(self, flow: str, sent: Ints | int, received: Ints | int) -> None:
        """Count the bytes of a message to, and from, each rank (or each of them as many)."""
        here = self.ranks[_FLOW_NUMBERS[flow]]
        here[SENT] += sent
        here[RECEIVED] += received

    @property
    def links(self) -> Ints:
        """Bytes by flows × sent, received × levels."""
        bytes_of = self.ranks.copy()
        bytes_of[_FLOW_NUMBERS["headers"]] += self._stamps() - self._stamps_before
        return self.by_level(bytes_of)

    def gathered(self, wire: Wire) -> Totals:
        """The counts of all ranks; all of them must call this."""
        size, links = self.world.size, self.links
        parts = [np.array([self.steps]), links]
        if self.bands is not None:
            parts += [self.bands.rows, self.bands.links]
        own = np.concatenate([part.reshape(-1) for part in parts])
        everyones = wire.swap_fixed(np.tile(own, (size, 1)))
        edges = np.cumsum([part.size for part in parts])[:-1]
        steps, *found = np.split(everyones, edges, axis=1)
        shaped = [
            part.reshape(size, *like.shape) for part, like in zip(found, parts[1:], strict=True)
        ]
        bands = BandTotals(self.world, self.pieces, *shaped[1:]) if len(shaped) > 1 else None
        return Totals(self.world, int(steps.max()), shaped[0], bands)


@dataclass(frozen=True, eq=False)
class BandTotals:
    """Counts of every band on all ranks: arrays begin with the rank, then the piece."""

    world: World
    pieces: list[Piece]
    rows: Ints  # ranks × pieces × lookups, read, updated
    links: Ints  # ranks × pieces × flows × sent, received × levels

    def lookups(self) -> Ints:
        """Lookups per tier, all ranks together."""
        tree = self.world.tree
        found = np.zeros(len(tree.columns), dtype=np.int64)
        for number, piece in enumerate(self.pieces):
            found[tree.columns[piece.band.tier]] += self.rows[:, number, 0].sum()
        return found

    def moved(self) -> tuple[Ints, Ints]:
        """Bytes that each rank read and wrote in each tier, as the cost model counts them.

        Requests are answered from the holder's first tier; an update reads and writes the row
        with its state where it lies, in whole units of the tier.
        """
        tree = self.world.tree
        read, written = np.zeros((2, tree.holders, len(tree.columns)), dtype=np.int64)
        for rank in range(tree.holders):
            tiers = tree.tiers[int(tree.kinds[rank])]
            first = next(iter(tiers.values()))
            for number, piece in enumerate(self.pieces):
                _, reads, updated = self.rows[rank, number]
                weight = piece.width * piece.table.item_bytes
                read[rank, tree.columns[first.name]] += reads * whole_bytes(weight, first)
                if updated:
                    here = tiers[piece.band.tier]
                    stored = whole_bytes(weight + piece.table.state_bytes(piece.width), here)
                    read[rank, tree.columns[here.name]] += updated * stored
                    written[rank, tree.columns[here.name]] += updated * stored
        return read, written

    def lines(self, steps: int) -> Iterator[dict[str, Any]]:
        """One entry per band: rows and bytes per step, all ranks together."""
        levels = [level.name for level in self.world.tree.cluster.levels]
        for number, piece in enumerate(self.pieces):
            band = piece.band
            rows = dict(
                zip(_ROWS, (self.rows[:, number].sum(axis=0) / steps).tolist(), strict=True)
            )
            links = self.links[:, number, :, SENT].sum(axis=0) / steps
            flows = {
                flow: dict(zip(levels, links[index].tolist(), strict=True))
                for index, flow in enumerate(FLOWS)
            }
            yield {
                "table": piece.table.name,
                "ranks": [band.start, band.stop],
                "columns": list(piece.columns),
                "scope": band.scope,
                "tier": band.tier,
                "exchange": band.exchange,
                "rows": rows,
                "bytes": flows,
            }


@dataclass(frozen=True, eq=False)
class Totals:
    """Counts of all ranks. Those of bands are there if the module was made with `counters=True`."""

    world: World
    steps: int
    links: Ints  # ranks × flows × sent, received × levels
    per_band: BandTotals | None = None

    def sent(self, flow: str) -> Ints:
        """Bytes that each rank sent through each level's links."""
        return np.asarray(self.links[:, FLOWS.index(flow), SENT])

    def received(self, flow: str) -> Ints:
        """Bytes that each rank received through each level's links."""
        return np.asarray(self.links[:, FLOWS.index(flow), RECEIVED])

    @property
    def sent_per_step(self) -> float:
        """Bytes that all ranks sent in a step, all flows and levels together."""
        return float(self.links[:, :, SENT].sum()) / max(1, self.steps)

    @property
    def bands(self) -> BandTotals:
        """Counts of every band."""
        if self.per_band is None:
            raise UserError(
                "rows and bytes were not counted band by band, as that takes time in every step: "
                "make ShardedEmbeddings with counters=True (bytes per link level are always there)"
            )
        return self.per_band

    def lookups(self) -> Ints:
        """Lookups per tier, all ranks together; wants `counters=True`."""
        return self.bands.lookups()

    def moved(self) -> tuple[Ints, Ints]:
        """Bytes that each rank read and wrote in each tier; wants `counters=True`."""
        return self.bands.moved()

    def lines(self) -> Iterator[dict[str, Any]]:
        """Rows and bytes per step of every band, all ranks together; wants `counters=True`."""
        return self.bands.lines(max(1, self.steps))

    def to_dict(self) -> dict[str, Any]:
        """The facts for machines; bytes and rows are per step, all ranks together.

        `tiers_per_step` and `bands` are there with `counters=True` only.
        """
        levels = [level.name for level in self.world.tree.cluster.levels]
        steps = max(1, self.steps)
        facts: dict[str, Any] = {
            "steps": self.steps,
            "ranks": self.world.size,
            "bytes_per_step": {
                flow: dict(zip(levels, (self.sent(flow).sum(axis=0) / steps).tolist(), strict=True))
                for flow in FLOWS
            },
        }
        if self.per_band is not None:
            facts["tiers_per_step"] = self._tiers(steps)
            facts["bands"] = list(self.lines())
        return facts

    def _tiers(self, steps: int) -> dict[str, dict[str, float]]:
        lookups, (read, written) = self.lookups(), self.moved()
        return {
            name: {
                "lookups": float(lookups[i]) / steps,
                "read_bytes": float(read[:, i].sum()) / steps,
                "written_bytes": float(written[:, i].sum()) / steps,
            }
            for i, name in enumerate(self.world.tree.cluster.tier_names)
        }

    def save(self, path: StrPath) -> None:
        """Write the facts as JSON."""
        write_atomic(path, dump_json(self.to_dict()))

    def to_tensorboard(self, writer: Any, step: int, prefix: str = "rowtier") -> None:
        """Write bytes per level and flow, and rows per tier if counted, to a SummaryWriter."""
        facts = self.to_dict()
        for flow, by_level in facts["bytes_per_step"].items():
            for level, amount in by_level.items():
                writer.add_scalar(f"{prefix}/bytes/{level}/{flow}", amount, step)
        for tier, entry in facts.get("tiers_per_step", {}).items():
            for name, amount in entry.items():
                writer.add_scalar(f"{prefix}/{tier}/{name}", amount, step)
