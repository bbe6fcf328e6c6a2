"""Everything of a plan that runs on one rank, without autograd: place, look up, add up, update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.plan.plan import Plan
from rowtier.plan.remap import Addressed, Remapper
from rowtier.runtime.agreement import Prepared
from rowtier.runtime.asked import Asked, lookups_of
from rowtier.runtime.dense_time import DenseTime, Inside
from rowtier.runtime.exchange.bundle_layout import bundles_of
from rowtier.runtime.exchange.bundles import Lookups
from rowtier.runtime.exchange.counters import Counters
from rowtier.runtime.exchange.reduce import Reducer
from rowtier.runtime.exchange.stamps import CallFacts, CallKind, Standing
from rowtier.runtime.exchange.step import Exchange, Trip
from rowtier.runtime.exchange.sync import Sums
from rowtier.runtime.exchange.watchdog import RankWatch
from rowtier.runtime.exchange.wire import Wire
from rowtier.runtime.first_rows import FirstRows, fill_weights
from rowtier.runtime.growing import GrowingIds
from rowtier.runtime.kernels.protocol import Array
from rowtier.runtime.optim import Optimizer
from rowtier.runtime.row_updates import RowUpdates
from rowtier.runtime.shared_remap import shared_remapper
from rowtier.runtime.store.address import Piece, pieces_of
from rowtier.runtime.store.changes import ALL, Changes, Marks
from rowtier.runtime.store.memory import Memory, Rows
from rowtier.runtime.store.storage import Init, Shard
from rowtier.runtime.store.tier_memories import memories
from rowtier.runtime.store.world import World
from rowtier.tables import Table

Ints = NDArray[np.int64]
FORWARD, BACKWARD = CallKind("forward"), CallKind("backward")
NEW_IDS = "the look at new ids"
STEP, CLIP = CallKind("optimizer.step()"), "clip_grad_value_()"


class Engine:
    """One rank's part of a plan."""

    def __init__(self, prepared: Prepared, watch: RankWatch | None):
        plan, self.groups, self.options, world, self.side = prepared
        self.wire = Wire(world)
        self.wire.meet(watch)
        self.wire.of_rows = self.side.meet(world.group)
        self.watch = watch
        self.standing = Standing() if watch is None else self.wire.troubles.standing
        self.counters = Counters(world, [], self.options.counters, [self.wire])
        self.memories: dict[str, Memory] = {}
        self.first = FirstRows(self.options, self.groups)
        self.generation, self.failed = 0, ""  # plans before this one; why nothing works any more
        self.step_number = 0
        self.changes: Changes | None = None
        self._beside: ThreadPoolExecutor | None = None
        self._synced: Future[dict[int, Sums]] | None = None
        self.dense_time: DenseTime | None = None  # while somebody measures
        self.growing: GrowingIds | None = None
        if any(table.grows for table, _ in plan):
            self.growing = GrowingIds(plan, self.wire, lambda: self.begin(NEW_IDS))
            self.growing.reset = self.reset_rows
        remapper = shared_remapper(plan, self.wire, self.options.rows)
        self.place(plan, world, remapper)
        self.counters.begin_plan(world, self.every_piece)
        self.initialise()
        if self.options.deltas:
            shards = list(self.shards.values())
            self.changes = Changes(remapper.tables, self.run_shards, shards)
            if self.growing is not None:
                self.growing.renamed = self.mark_changed
                self.growing.keep_lost()

    def place(
        self, plan: Plan, world: World, remapper: Remapper,
        kept: Callable[[Engine], Mapping[int, Rows]] = lambda _: {},
    ) -> None:  # fmt: skip
        """Make room for the rows of a plan.

        `kept` says, once bundles are known, which of their pieces have rows already.
        """
        self.plan, self.world, self.remapper = plan, world, remapper
        remapper.growing = self.growing
        self.pieces = pieces_of(plan, world)
        made = memories(plan.cluster.tier_names, self.options.tiers, self.side)
        self.memories = {name: self.memories.get(name, memory) for name, memory in made.items()}
        # What is run, and the same rows once more as the plan's pieces see them.
        group_of = {name: at for at, (_, names) in enumerate(self.groups) for name in names}
        self.bundles, windows = bundles_of(
            self.pieces, self.remapper.tables, self.remapper.reads, group_of
        )
        self._group_of = {
            piece.number: group_of[bundle.tables[0].name]
            for bundle in self.bundles
            for piece in bundle.pieces
        }
        here = kept(self)
        self.run_shards = {
            piece.number: self._shard(piece, piece.number, given=here.get(piece.number))
            for bundle in self.bundles
            for piece in bundle.pieces
        }
        self.shards = {
            piece.number: self._shard(
                piece, window.number, self.run_shards[window.number], window.base
            )
            for piece, window in ((piece, windows[piece.number]) for piece in self.every_piece)
        }
        self._spans = {n: spans for bundle in self.bundles for n, spans in bundle.spans.items()}
        if self.changes is not None:
            shards = list(self.shards.values())
            self.changes = self.changes.on(remapper.tables, self.run_shards, shards)
        self._connect()

    def go_back(self, before: Engine) -> None:
        """Run a plan that was placed before, whose rows are all there."""
        vars(self).update(vars(before))
        self._connect()

    @property
    def every_piece(self) -> list[Piece]:
        """All pieces of the plan, by their numbers."""
        return [piece for layers in self.pieces.values() for layer in layers for piece in layer]

    def _connect(self) -> None:
        """Have rows and gradients of the plan travel."""
        narrow, wires = self.options.ids == "narrow", self.counters.wires
        for wire in wires:
            wire.world = World(self.world.rank, self.world.tree, wire.world.group)
        shards, counters = self.run_shards, self.counters
        self.exchange = Exchange(self.wire, self.bundles, shards, counters, narrow, self.side)
        self.reducer = Reducer(self.wire, shards, self.bundles, counters, narrow, self.side)
        mean = 1.0 / self.world.tree.devices if self.options.gradients == "mean" else 1.0
        self.updates = RowUpdates(
            shards, self._group_of, self.reducer, self.side, mean,
            copies=self._copies, updated=self._updated,
        )  # fmt: skip
        self._use_beside(wires[-1])

    def _use_beside(self, wire: Wire) -> None:
        """Have ids travel on a wire; gradients of copies, too, where the host computes with them.

        A device has one stream, and does not wait for the host.
        """
        self.exchange.ids_wire = wire
        if self.side.on_host:
            self.reducer.sync.wire = wire

    def _shard(
        self, piece: Piece, run_number: int, inside: Shard | None = None, base: int = 0,
        given: Rows | None = None,
    ) -> Shard:  # fmt: skip
        names = self.groups[self._group_of[run_number]].optimizer.state_names
        memory = self.memories[piece.band.tier]
        return Shard(piece, memory, names, inside, base, given, self.side)

    @property
    def tables(self) -> list[Table]:
        """The tables, in the order of the plan."""
        return [entry.table for entry in self.remapper.tables.values()]

    def initialise(self) -> None:
        """Set all weights and state anew: of seed, table and row, whatever the plan."""
        self.set_weights(self.first.weights)
        self.first.fill_state(self.shards.values())

    def reset_rows(self, name: str, rows: Ints) -> None:
        """Set rows of a table, and their state, anew: as they were at first, on all holders."""
        self.first.restart(rows, self.remapper.tables[name], self.pieces[name], self.shards)

    def set_weights(self, values: Init) -> None:
        """Set the weights of all tables to `values(table, rows)`."""
        self.all_changed()
        for shard in self.shards.values():
            if shard.piece.rows_here:
                fill_weights(shard, self.rows_of(shard), values)

    def rows_of(self, shard: Shard) -> Ints:
        """The row in each slot of a shard."""
        entry, piece = self.remapper.tables[shard.piece.table.name], shard.piece
        return entry.rows()[entry.in_first_layer(piece.layer, piece.addresses_here())]

    def inside(self, call: str) -> Inside:
        """Around the embeddings' own calls: their time is not the dense part's."""
        if self.failed:
            self.refuse(call)
        return Inside(self.watch, self.dense_time, call)

    def refuse(self, call: str) -> None:
        """Refuse a call if rows were lost on their way to another plan."""
        if self.failed:
            raise UserError(
                f"{call} after a migration that failed ({self.failed}): some rows are where the "
                "old plan has them and some where the new one does; make the embeddings anew and "
                "load the last checkpoint"
            )

    def begin(self, call: str, wire: Wire | None = None, facts: CallFacts | None = None) -> None:
        """From here on messages are of a call, with numbers as they are now (or as given)."""
        if self.watch is not None:
            (wire or self.wire).stamps.begin(CallKind(call), facts or self._facts())

    def _facts(self) -> CallFacts:
        return self.standing.facts(self.step_number)

    def lookups(self, batch: Addressed) -> list[Lookups]:
        """What each bundle is asked for, its features one after the other."""
        return lookups_of(batch, self.bundles, self.remapper.reads)

    def forward(
        self, batch: Addressed | Asked, *, keep_rows: bool = False
    ) -> tuple[Trip, list[Array]]:
        """Per bundle the rows of its lookups, or the pooled rows of its bags.

        `keep_rows` if the weights of lookups want a gradient, which is made of rows.
        """
        if self.watch is not None:
            standing = self.standing
            standing.read_numbers()
            waiting = standing.passes and standing.waiting  # as `facts` does
            self.wire.stamps.begin(FORWARD, (self.step_number, waiting, standing.settings))
        self._note_lookup(batch)
        if isinstance(batch, Asked):
            trip = self.exchange.fetch(batch.trip.result())
        else:
            trip = self.exchange.forward(self.lookups(batch))
        outputs = []
        for entry in trip.lookups:
            if entry.table.pooling == "none":
                outputs.append(self.exchange.sequence(trip, entry))
                continue
            pooled = self.exchange.pooled(trip, entry)
            if entry.table.pooling == "mean":
                pooled /= self.side.put(entry.lengths)
            outputs.append(pooled)
        if not keep_rows:
            trip.forget_rows()
        return trip, outputs

    def _note_lookup(self, batch: Addressed | Asked) -> None:
        """Have rows of growing tables stay whose gradients will come."""
        ticket = (batch.batch if isinstance(batch, Asked) else batch).origin.resolved
        if self.growing is not None and ticket is not None:
            now = self.standing.settings
            self.growing.looked_up(ticket, records=now.trains and now.records)

    def ask_ahead(self, batch: Any) -> Asked:
        """Begin to exchange the ids of a batch that is looked up later."""
        self.overlap()
        assert self._beside is not None
        addressed = self.remapper(batch)
        self.standing.read_numbers()
        facts = self._facts()  # as of now, not of when the other thread comes to it

        def ask() -> Trip:
            self.begin("the look ahead at ids", self.exchange.ids_wire, facts)
            return self.exchange.ask(self.lookups(addressed))

        return Asked(addressed, self._beside.submit(ask), generation=self.generation, given=batch)

    def drain(self) -> None:
        """Wait for ids that are asked for ahead."""
        if self._beside is not None:
            self._beside.submit(int).result()

    def prefetch(self, asked: Asked) -> None:
        """Begin to bring the rows that a batch will read from disk; nothing else needs it."""
        if any(shard.on_disk for shard in self.run_shards.values()):
            asked.trip.result().read_ahead(1)

    def overlap(self) -> None:
        """Have ids, and the gradients of copies, travel beside everything else from now on."""
        if self._beside is None:
            # Collectives of two threads must not meet, so the second has its own group; in it
            # they follow one another in the same order on all ranks.
            self.counters.wires.append(self.wire.beside())
            self._use_beside(self.counters.wires[-1])
            self._beside = ThreadPoolExecutor(1, "rowtier")

    def backward(self, trip: Trip, grads: Sequence[Array]) -> None:
        """Bring gradients of the outputs to the rows; `step` applies them."""
        if trip.lookups[0].bundle is not self.bundles[0]:
            raise UserError(
                "backward of a lookup that was made before embeddings.migrate: its rows lie "
                "elsewhere by now; call backward and step() first, then migrate"
            )
        if self.updates.sums is not None:
            raise UserError(
                "backward after the gradients of this step were clipped or unscaled: call "
                "step(), or zero_grad(), first"
            )
        scaled = {
            entry.bundle: grad / self.side.put(entry.lengths)
            if entry.table.pooling == "mean"
            else grad
            for entry, grad in zip(trip.lookups, grads, strict=True)
        }
        if self.watch is not None:  # with the facts of the lookup; a step looks at them again
            self.wire.stamps.go_on(BACKWARD, self.standing.settings)
        self.exchange.backward(trip, scaled)
        if self.reducer.sync.wire is not self.wire:
            assert self._beside is not None
            if self._synced is not None:
                raise UserError(
                    "a second backward before step(), while copies are kept equal behind the "
                    "backward pass: step the optimizer of the rows after each, or train without "
                    "the pipeline to add up gradients"
                )
            self._synced = self._beside.submit(self._sync, self._facts())

    def norm(self) -> float:
        """The norm of all gradients that wait, over all tables; all ranks must call this."""
        with self.inside("the norm of gradients"):
            self.begin("the norm of gradients")
            return self.updates.norm()

    def clip_values(self, largest: float, factor: float) -> None:
        """Clamp every number of all gradients, times a factor, to at most `largest` in size."""
        self.standing.clips(largest)
        self.begin(CLIP)
        self.updates.clip_values(largest, factor)

    def step(self, optimizers: Sequence[Optimizer], factor: float = 1.0) -> None:
        """Update every row that has gradients, once; `optimizers` are the groups' as of now.

        Gradients are multiplied by a factor first.
        """
        self.standing.step(factor)
        if self.watch is not None:
            self.wire.stamps.go_on(STEP, self.standing.settings)
        ready = self.updates.ready(optimizers, factor)
        self.step_number += 1
        if self.watch is not None:
            self.watch.steps = self.step_number
        self.updates.apply(ready, self.step_number)
        for memory in self.memories.values():
            memory.settle()
        if self.growing is not None:
            self.growing.stepped()
        self.counters.steps += 1

    def _copies(self) -> dict[int, Sums]:
        """Gradients of rows that have copies, summed over all of them."""
        synced, self._synced = self._synced, None
        if synced is not None:
            return synced.result()
        if self.reducer.sync.wire is self.wire:  # a part of the call that this is
            return self.reducer.sync.run()
        return self._sync(self._facts())

    def _sync(self, facts: CallFacts) -> dict[int, Sums]:
        self.begin("keeping copies equal", self.reducer.sync.wire, facts)
        return self.reducer.sync.run()

    def _updated(self, shard: Shard, slots: Ints) -> None:
        if self.changes is not None:
            self.changes.mark(shard, slots)
        if self.counters.bands is not None:
            spans = self._spans[shard.piece.number]
            self.counters.bands.add_rows("updated", *spans.split_slots(slots))

    def all_changed(self) -> None:
        """Say that every row has other values than before."""
        if self.changes is not None:
            self.changes.mark_all()

    def changed_rows(self, table: str) -> tuple[Ints, Marks]:
        """The rows that this rank has marked as changed, rising, and since when (`Changes`)."""
        assert self.changes is not None
        return self.changes.marked_rows(table)

    def mark_changed(self, table: str, rows: Ints, marks: Marks | int = ALL) -> None:
        """Mark rows as changed, those that this rank marks at all; others are left out."""
        assert self.changes is not None
        self.changes.mark_rows(table, rows, np.broadcast_to(np.uint8(marks), rows.shape))

    @property
    def has_gradients(self) -> bool:
        """Whether any wait for a step on this rank."""
        return self._synced is not None or self.updates.has_gradients

    def forget_gradients(self) -> None:
        """Drop gradients that were not applied."""
        if self._synced is not None:
            self._copies()
        self.updates.forget_gradients()
