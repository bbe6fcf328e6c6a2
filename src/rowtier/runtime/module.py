"""`ShardedEmbeddings`: the tables of a plan as one PyTorch module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.plan.plan import Plan
from rowtier.plan.remap import Addressed, Remapper
from rowtier.profile.profile import Profile
from rowtier.profile.vocabulary import Vocabulary
from rowtier.reading import StrPath
from rowtier.runtime.agreement import Prepared, prepared_together
from rowtier.runtime.asked import Asked
from rowtier.runtime.dense_time import DenseTime
from rowtier.runtime.device.choose import side_of
from rowtier.runtime.dict_batches import (
    refuse_weights_of_sums,
    shaped_outputs,
    traced_shapes,
    trained_weights,
)
from rowtier.runtime.engine import CLIP, FORWARD, Engine
from rowtier.runtime.exchange.counters import Counters, Totals
from rowtier.runtime.exchange.watchdog import Patience
from rowtier.runtime.groups import Given, groups_of
from rowtier.runtime.heat import HeatCounts
from rowtier.runtime.keyed import keyed_batch, keyed_outputs, traced_outputs
from rowtier.runtime.logical import whole_weights
from rowtier.runtime.lookup import Lookup, Made
from rowtier.runtime.on_devices import refuse_call, refuse_on_device
from rowtier.runtime.options import Gradients, RunOptions
from rowtier.runtime.read_only import refuse_training
from rowtier.runtime.row_gradient import Waiting
from rowtier.runtime.row_module import RowModule
from rowtier.runtime.row_optimizer import EmbeddingOptimizer
from rowtier.runtime.store.storage import Init
from rowtier.runtime.store.tier_memories import Tiers, is_device_memory
from rowtier.runtime.store.world import World
from rowtier.runtime.torch_optimizers import refuse_in_backward
from rowtier.runtime.traced import Output, register, trace
from rowtier.runtime.unsharded import UnshardedEmbeddings
from rowtier.tables import Table

if TYPE_CHECKING:
    from rowtier.runtime.migrate import Migration

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class ShardedEmbeddings(RowModule):
    """All embedding tables of a plan, on the ranks of a process group.

    Takes a dict of feature → ids (a rectangle), (ids, lengths) or (ids, lengths, weights), or
    a TorchRec KeyedJaggedTensor; all ranks call it together, each with its own batch. Returns
    per feature `[batch, dim]` for pooled tables, `JaggedRows` for others (`[batch, length,
    dim]` for a rectangle); for a KeyedJaggedTensor what the unsharded TorchRec module returns.

    Ids are whole numbers or strings, in tensors, numpy or Arrow arrays or lists; what happens to
    them is said by the tables of the plan. A null is no lookup. With `rows` batches hold rows
    already, made with `plan.rows_of`.

    As in TorchRec, weights of a KeyedJaggedTensor count only if `weighted` is set, and rows of
    tables that are not pooled come with their ids only if `returns_ids` is; `from_module` takes
    both over from the collection.

    Its only parameter is a handle that stands for all rows: freeze them with `requires_grad_`,
    clip and drop their gradients with those of the model. `optimizer` updates them. It is made of
    what is given as `optimizer=`: one of `rowtier.torch` (`SGD`, `RowwiseAdagrad`, ...) if all
    tables have the same kind in the plan, a list with one for each kind, or a mapping from names
    of tables, where "*" is for all others and takes one, a list or None. None is the defaults of
    each kind. Tables with equal optimizers are one parameter group.

    A plan that serves (`rowtier plan --serve`) keeps no optimizer state: lookups run under
    `torch.no_grad()` or after `eval()`, with rows of a checkpoint, and training is refused.
    """

    _output_dtype = torch.float32
    copied: ClassVar[tuple[str, ...]] = ("weighted", "returns_ids", "training")  # with copies

    def __init__(
        self,
        plan: Plan,
        optimizer: Given = None,
        process_group: dist.ProcessGroup | None = None,
        *,
        gradients: Gradients = "mean",
        tiers: Tiers | None = None,
        ids: Any = "narrow",
        local_world_size: int | None = None,
        seed: int = 0,
        init: Init | None = None,
        rows: bool = False,
        counters: bool = False,
        heat_counts: int | None = None,
        watchdog_s: float = 60.0,
        watchdog_abort_s: float = 600.0,
        deltas: bool = False,
        device: str | torch.device | None = None,
    ):
        super().__init__()

        def prepare() -> Prepared:
            self._check_tables(plan)
            if optimizer is not None:
                refuse_training(plan, "optimizer=")
            options = RunOptions(
                gradients, ids, dict(tiers or {}), local_world_size, seed, init, rows, counters,
                heat_counts, watchdog_s, watchdog_abort_s, deltas,
                None if device is None else str(device),
            )  # fmt: skip
            groups = groups_of(plan, optimizer)
            world = World.of(plan.cluster, process_group, local_world_size)
            has_hbm = any(map(is_device_memory, plan.cluster.tier_names))
            side = side_of(device, has_hbm, world.group)
            refuse_on_device(plan, options, side)
            return Prepared(plan, groups, options, world, side)

        patience = Patience(watchdog_s, watchdog_abort_s)
        kind = type(self).__name__
        self.engine = Engine(*prepared_together(process_group, patience, kind, prepare))
        every, seed = self.engine.options.heat_counts, self.engine.options.seed
        self.heat = HeatCounts(plan, every, seed) if every else None
        self.weighted = self.returns_ids = False
        self.given_optimizer = optimizer
        # What PyTorch sees of the rows: see row_gradient.py.
        handle = torch.zeros(1, device=self.engine.side.device)
        self.row_handle = torch.nn.Parameter(handle, requires_grad=not plan.serves)
        self.waiting = Waiting(self.row_handle, self.engine)
        self.optimizer = EmbeddingOptimizer(self.engine, self.waiting)
        self.outputs = tuple(
            Output(read.key, read.feature, read.table.embedding_dim, read.table.pooling != "none")
            for read in self.remapper.reads
        )
        self.open_lookups: dict[int, Made] = {}
        self.number = register(self)

    @classmethod
    def _check_tables(cls, plan: Plan) -> None:
        """Refuse tables that a module of this kind does not have; here none."""

    @classmethod
    def from_module(cls, module: torch.nn.Module, plan: Plan, *args: Any, **kw: Any) -> Any:
        """The same tables with the weights of nn.EmbeddingBag, nn.Embedding or a TorchRec one.

        A single table may have any name; several come as an `nn.ModuleDict` by table name, or
        as a TorchRec collection. Every rank has the whole weights here; a module on the meta
        device has none, and its tables begin as those of `ShardedEmbeddings(plan)` do. Optimizers
        that were given to the module's weights (apply_optimizer_in_backward) are not taken over.
        """
        from rowtier.runtime import modules

        weights, frozen = modules.weights_of(module, plan), modules.is_frozen(module, plan)
        if not weights and kw.get("init") is None:
            modules.check_draws(module)
        if not args and kw.get("optimizer") is None:
            refuse_in_backward(module)
        made = cls(plan, *args, **kw)
        made.weighted, made.returns_ids = modules.is_weighted(module), modules.returns_ids(module)
        made.requires_grad_(not frozen and not plan.serves)

        def rows_of(table: Table, rows: Ints) -> Any:
            return weights[table.name][torch.from_numpy(rows)].float().numpy()

        if weights:
            made.engine.set_weights(rows_of)
        return made

    @property
    def plan(self) -> Plan:
        """The plan that is run."""
        return self.engine.plan

    @property
    def remapper(self) -> Remapper:
        """What turns ids into addresses; for workers take `plan.remapper()`."""
        return self.engine.remapper

    @property
    def counters(self) -> Counters:
        """What this rank did since the last reset; see `count`."""
        return self.engine.counters

    def count(self) -> Totals:
        """What all ranks did since the last reset; all of them must call this.

        Bytes per flow and link level are always counted, rows and bytes per band only if the
        module was made with `counters=True`.
        """
        with self.engine.inside("count()"):
            self.engine.begin("count()")
            return self.engine.counters.gathered(self.engine.wire)

    def profile(self, *, reset: bool = False) -> Profile:
        """What the batches of all ranks look up, as counted while training; all must call this.

        Needs `heat_counts`. With `reset` counting begins anew afterwards.
        """
        if self.heat is None:
            raise UserError(
                "profile() of embeddings that count nothing: make them with heat_counts=True, or "
                "with a number: one of so many training steps is counted"
            )
        with self.engine.inside("profile()"):
            self.engine.begin("profile()")
            growing = self.engine.growing
            grown = {} if growing is None else {n: growing.vocabulary(n) for n in growing.tables}
            return self.heat.gathered(self.engine.wire, grown, reset=reset)

    def delta(self, path: StrPath, *, state: bool = False) -> Path:
        """Write the rows that changed since the last delta to a folder; all ranks must call this.

        It goes onto the delta before it, or an export of a save since then (`rowtier apply`); with
        `state` optimizer state is in it, too. The module must be made with `deltas=True`.
        """
        from rowtier.runtime.deltas.write import write_delta

        return write_delta(self.engine, path, state=state)

    @contextmanager
    def measure_dense(self) -> Iterator[DenseTime]:
        """Measure the rest of the model while training steps are made in here.

        What the loop does between the embeddings' own calls counts, loading a batch too if the
        loop waits for it; `seconds` of the result is the median of a step on this rank.
        """
        if self.engine.dense_time is not None:
            raise UserError("measure_dense inside of measure_dense: one at a time")
        self.engine.dense_time = DenseTime()
        try:
            yield self.engine.dense_time
        finally:
            self.engine.dense_time = None

    def forward(self, batch: Any) -> Any:
        """Look up a batch."""
        if torch.is_grad_enabled() and (self.training or self.row_handle.requires_grad):
            refuse_training(self.plan, "forward in training")
        if torch.compiler.is_compiling():
            return self._traced(batch)
        with self.engine.inside(FORWARD):
            return self._look_up(batch)

    def _look_up(self, batch: Any) -> Any:
        if isinstance(batch, Asked) and batch.generation != self.engine.generation:
            batch = self.ask_ahead(batch.given)  # its ids were asked for under another plan
        asked = isinstance(batch, Asked)
        addressed = batch.batch if asked else self._addressed(batch)
        weights = batch.weights if asked else self._trained_weights(batch)
        if torch.is_grad_enabled():
            self.refuse_weights(weights)
        given = batch if asked else addressed
        self.stands(records=torch.is_grad_enabled())
        found = Lookup.apply(self.row_handle, self, given, list(weights), *_on_host(weights))
        if self.heat is not None and torch.is_grad_enabled():
            self.heat.note(addressed, self.remapper)
        outputs = {
            read.key: self._where_wanted(output, addressed)
            for read, output in zip(self.remapper.reads, found, strict=True)
        }
        return self._returned(outputs, addressed)

    def _where_wanted(self, output: torch.Tensor, batch: Addressed) -> torch.Tensor:
        """Outputs of rows in host memory go to the device of the ids; others are on one already."""
        return output.to(batch.origin.device) if self.engine.side.on_host else output

    def stands(self, *, records: bool) -> None:
        """Have the next call tell the others with what this rank looks up."""
        trains = self.row_handle.requires_grad
        self.engine.standing.looks_up(
            trains=trains, records=records or not trains, weighted=self.weighted
        )

    def ask_ahead(self, batch: Any) -> Asked:
        """Begin to exchange the ids of a batch; call the module with the result, later.

        All ranks must call this in the same order.
        """
        with self.engine.inside("ask_ahead"):
            asked = self.engine.ask_ahead(self._addressed(batch))
            return replace(asked, weights=self._trained_weights(batch), given=batch)

    def vocabulary(self, table: str) -> Vocabulary:
        """The ids of a growing table's rows as of now, by row, with their lookups if it evicts.

        All ranks must call this.
        """
        growing = self.engine.growing
        if growing is None or table not in growing.tables:
            known = ", ".join(map(repr, growing.tables)) if growing is not None else "none"
            raise UserError(f"table {table!r} has no `ids: grow`; growing are {known}")
        with self.engine.inside("vocabulary()"):
            return growing.vocabulary(table)

    def _addressed(self, batch: Any) -> Addressed:
        found = self.addresses(batch)
        if not found.origin.keyed:
            return found
        return keyed_batch(batch, found, self.remapper.reads, weighted=self.weighted)

    def addresses(self, batch: Any) -> Addressed:
        """Ids as addresses; while training, new ids of growing tables may get rows."""
        if self.engine.growing is not None:
            self.engine.growing.admits = self.training
        return self.engine.remapper(batch)

    def _returned(self, outputs: dict[str, torch.Tensor], batch: Addressed) -> Any:
        reads = self.remapper.reads
        if not batch.origin.keyed:
            return shaped_outputs(reads, outputs, batch)
        return keyed_outputs(reads, outputs, batch, with_ids=self.returns_ids)

    def _traced(self, batch: Any) -> Any:
        """Look up a batch while torch.compile or torch.export follows."""
        found = {key: one.to(self._output_dtype) for key, one in trace(self, batch).items()}
        shaped = traced_shapes if isinstance(batch, dict) else traced_outputs
        return shaped(self.outputs, found, batch)

    def _trained_weights(self, batch: Any) -> dict[str, torch.Tensor]:
        return trained_weights(self.remapper.reads, batch, weighted=self.weighted)

    def refuse_weights(self, weights: Iterable[str]) -> None:
        """Refuse weights that want a gradient where the plan exchanges sums."""
        refuse_weights_of_sums(self.remapper.reads, self.engine.pieces, weights)

    def migrate(
        self,
        plan: Plan,
        *,
        extra_memory: int | str = "256MiB",
        progress: Callable[[float], None] | None = None,
    ) -> Migration:
        """Go on under another plan of the same tables on the same ranks, without a restart.

        Rows with their optimizer state travel to where the new plan has them, in rounds that need
        at most `extra_memory` bytes a rank beside the larger of the two plans. Training goes on as
        after `save_checkpoint` under the old and `load_checkpoint` under the new plan, bit for
        bit. All ranks must call this, between `optimizer.step()` and the next lookup.

        `progress` is told the share that is done; without one rank 0 shows a bar if standard error
        is a terminal. Data loader workers that turn ids into addresses need the new plan's
        `remapper()`; batches of the old one are refused where addresses differ.
        """
        from rowtier.runtime.migrate import migrate

        way_out = "save a checkpoint, and load it into embeddings made of the new plan"
        refuse_call(self.engine.side, "migrate", way_out)
        return migrate(self.engine, self.waiting, plan, extra_memory, progress)

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Clip the gradients of all tables by their common norm, before `optimizer.step()`.

        Returns the norm. All ranks must call this. To clip a whole model by one norm call
        `torch.nn.utils.clip_grad_norm_(model.parameters(), …)`.
        """
        norm = torch.nn.utils.clip_grad_norm_([self.row_handle], max_norm)
        return float(norm)

    def unsharded(self) -> Any:
        """All tables in plain PyTorch, whole, on every rank; all ranks must call this."""
        return UnshardedEmbeddings(self.remapper.reads, whole_weights(self.engine))

    def clip_grad_value_(self, clip_value: float) -> None:
        """Clamp every number of the gradients of all tables to [-clip_value, clip_value].

        What is clamped is the row's gradient: the sum over all its uses on all ranks, divided
        by the ranks with `gradients="mean"`. Before `optimizer.step()`, and before or after
        `clip_grad_norm_`. All ranks must call this.
        """
        if not clip_value >= 0:
            raise UserError(f"clip_value {clip_value}: give 0 or more")
        with self.engine.inside(CLIP):
            self.waiting.clip_values(float(clip_value))


def _on_host(weights: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Weights as they are computed with; autograd brings gradients back to device and type."""
    return [weight.to("cpu", torch.float32) for weight in weights.values()]
