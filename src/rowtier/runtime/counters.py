"""What the runtime really did: rows and bytes, per band, tier and link level, step by step.

Counted where it happens, from the sizes of what was sent and the rows that were touched, so
that `rowtier replay` on the same batches can be held against it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rowtier.cost.amounts import whole_bytes
from rowtier.files import StrPath, dump_json, write_atomic
from rowtier.runtime.address import Piece
from rowtier.runtime.world import World

if TYPE_CHECKING:
    from rowtier.runtime.wire import Wire

Ints = NDArray[np.int64]
FLOWS = ("ids", "forward", "backward", "sync", "sync_ids", "norms", "headers")
SENT, RECEIVED = 0, 1
_ROWS = ("lookups", "read", "updated")


@dataclass(eq=False)
class Counters:
    """Counts of one rank since the last `reset`; bands in the order of the plan.

    `headers` are the bytes that tell how many entries follow, and of which bags; `norms` those
    that row-wise Adagrad needs of rows whose columns lie apart. Neither is part of a
    prediction. Partial sums that several bands share count for the first of them.
    """

    world: World
    pieces: list[Piece]
    steps: int = 0
    rows: Ints = field(init=False)  # pieces × lookups, read, updated
    links: Ints = field(init=False)  # pieces × flows × sent, received × levels

    def __post_init__(self) -> None:
        levels = np.arange(max(1, self.world.tree.levels))
        # Ranks × levels: whether what goes to a rank passes a level; what stays here is none.
        self._passes = ((self.world.distance - 1)[:, None] == levels).astype(np.int64)
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        levels = self.world.tree.levels
        self.steps = 0
        self.rows = np.zeros((len(self.pieces), len(_ROWS)), dtype=np.int64)
        self.links = np.zeros((len(self.pieces), len(FLOWS), 2, levels), dtype=np.int64)

    def add_rows(self, what: str, pieces: Ints, counts: Ints) -> None:
        """Count rows of pieces: "lookups", "read" or "updated"."""
        self.rows[pieces, _ROWS.index(what)] += counts

    def add_bytes(self, flow: str, pieces: Ints, sent: Ints, received: Ints) -> None:
        """Count bytes, pieces × ranks, by the rank they went to, and came from."""
        if not self.world.tree.levels:
            return
        index = FLOWS.index(flow)
        for way, counts in ((SENT, sent), (RECEIVED, received)):
            self.links[pieces, index, way] += counts @ self._passes

    def add_headers(self, each: int) -> None:
        """Count bytes to and from every rank; they are of no piece, so they count for the first."""
        counts = np.full((1, self.world.size), each, dtype=np.int64)
        self.add_bytes("headers", np.zeros(1, dtype=np.int64), counts, counts)

    def gathered(self, wire: Wire) -> Totals:
        """The counts of all ranks; all of them must call this."""
        size = self.world.size
        own = np.concatenate([[self.steps], self.rows.reshape(-1), self.links.reshape(-1)])
        everyones = wire.swap_fixed(np.tile(own, (size, 1)))
        rows = everyones[:, 1 : 1 + self.rows.size].reshape(size, *self.rows.shape)
        links = everyones[:, 1 + self.rows.size :].reshape(size, *self.links.shape)
        return Totals(self.world, self.pieces, int(everyones[:, 0].max()), rows, links)


@dataclass(frozen=True, eq=False)
class Totals:
    """Counts of all ranks: arrays begin with the rank, then the piece."""

    world: World
    pieces: list[Piece]
    steps: int
    rows: Ints
    links: Ints

    def sent(self, flow: str) -> Ints:
        """Bytes that each rank sent through each level's links."""
        return np.asarray(self.links[:, :, FLOWS.index(flow), SENT].sum(axis=1))

    def received(self, flow: str) -> Ints:
        """Bytes that each rank received through each level's links."""
        return np.asarray(self.links[:, :, FLOWS.index(flow), RECEIVED].sum(axis=1))

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

    def lines(self) -> Iterator[dict[str, Any]]:
        """One entry per band: rows and bytes per step, all ranks together."""
        levels = [level.name for level in self.world.tree.cluster.levels]
        steps = max(1, self.steps)
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

    def to_dict(self) -> dict[str, Any]:
        """The facts for machines; bytes and rows are per step, all ranks together."""
        levels = [level.name for level in self.world.tree.cluster.levels]
        tiers, steps = self.world.tree.cluster.tier_names, max(1, self.steps)
        read, written = self.moved()
        return {
            "steps": self.steps,
            "ranks": self.world.size,
            "bytes_per_step": {
                flow: dict(zip(levels, (self.sent(flow).sum(axis=0) / steps).tolist(), strict=True))
                for flow in FLOWS
            },
            "tiers_per_step": {
                name: {
                    "lookups": float(self.lookups()[i]) / steps,
                    "read_bytes": float(read[:, i].sum()) / steps,
                    "written_bytes": float(written[:, i].sum()) / steps,
                }
                for i, name in enumerate(tiers)
            },
            "bands": list(self.lines()),
        }

    def save(self, path: StrPath) -> None:
        """Write the facts as JSON."""
        write_atomic(path, dump_json(self.to_dict()))

    def to_tensorboard(self, writer: Any, step: int, prefix: str = "rowtier") -> None:
        """Write bytes per level and flow, and rows per tier, to a SummaryWriter."""
        facts = self.to_dict()
        for flow, by_level in facts["bytes_per_step"].items():
            for level, amount in by_level.items():
                writer.add_scalar(f"{prefix}/bytes/{level}/{flow}", amount, step)
        for tier, entry in facts["tiers_per_step"].items():
            for name, amount in entry.items():
                writer.add_scalar(f"{prefix}/{tier}/{name}", amount, step)
