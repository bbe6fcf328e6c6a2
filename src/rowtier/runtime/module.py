"""`ShardedEmbeddings`: the tables of a plan as one PyTorch module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.plan.plan import Plan
from rowtier.plan.remap import Addressed, Remapper
from rowtier.runtime import kernels
from rowtier.runtime.counters import Counters, Totals
from rowtier.runtime.dense_time import DenseTime
from rowtier.runtime.engine import Asked, Engine, Gradients, RunOptions, chosen_optimizers
from rowtier.runtime.exchange import Trip
from rowtier.runtime.memory import Tiers
from rowtier.runtime.optim import Optimizer
from rowtier.runtime.storage import Init
from rowtier.tables import Table

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class JaggedRows(NamedTuple):
    """The rows of one feature's lookups, sample after sample."""

    values: torch.Tensor  # lookups × embedding_dim
    lengths: torch.Tensor  # per sample


class _Keyed(Addressed):
    """A batch that came as a KeyedJaggedTensor: what it finds goes back as TorchRec gives it."""


class ShardedEmbeddings(torch.nn.Module):  # type: ignore[misc]
    """All embedding tables of a plan, on the ranks of a process group.

    Takes a dict of feature → ids (a rectangle), (ids, lengths) or (ids, lengths, weights), or
    a TorchRec KeyedJaggedTensor; all ranks call it together, each with its own batch. Returns
    per feature `[batch, dim]` for pooled tables, `JaggedRows` for others (`[batch, length,
    dim]` for a rectangle); for a KeyedJaggedTensor what the unsharded TorchRec module returns.

    Ids are whole numbers or strings, in tensors, numpy or Arrow arrays or lists; what happens to
    them is said by the tables of the plan. A null is no lookup. With `rows` batches hold rows
    already, made with `plan.rows_of`.

    As in TorchRec, weights of a KeyedJaggedTensor count only if `is_weighted` is set;
    `from_module` takes that over from the collection.

    The module has no parameters: `optimizer` updates the rows, after `backward`.
    """

    # TorchRec's DistributedModelParallel loads state module by module and drops what they
    # report, unless they say that they want to be called as a whole.
    _FORCE_STATE_DICT_LOAD = True

    def __init__(
        self,
        plan: Plan,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
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
    ):
        super().__init__()
        options = RunOptions(
            gradients, ids, dict(tiers or {}), local_world_size, seed, init, rows, counters
        )
        chosen = chosen_optimizers(plan, optimizer)
        self.engine = Engine(plan, chosen, process_group, options)
        self.is_weighted = False
        self._handle = torch.zeros(0, requires_grad=True)
        self.optimizer = EmbeddingOptimizer(self.engine)

    @classmethod
    def from_module(cls, module: torch.nn.Module, plan: Plan, *args: Any, **kw: Any) -> Any:
        """The same tables with the weights of nn.EmbeddingBag, nn.Embedding or a TorchRec one.

        A single table may have any name; several come as an `nn.ModuleDict` by table name, or
        as a TorchRec collection. Every rank has the whole weights here.
        """
        from rowtier.runtime.modules import is_weighted, weights_of

        weights = weights_of(module, plan)
        made = cls(plan, *args, **kw)
        made.is_weighted = is_weighted(module)

        def rows_of(table: Table, rows: Ints) -> Any:
            return weights[table.name][torch.from_numpy(rows)].float().numpy()

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
        return self.engine.counters.gathered(self.engine.wire)

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
        with self.engine.inside():
            return self._look_up(batch)

    def _look_up(self, batch: Any) -> Any:
        asked = isinstance(batch, Asked)
        addressed = batch.batch if asked else self._addressed(batch)
        keyed = isinstance(addressed, _Keyed)
        weights = {} if asked or batch is addressed else self._trained_weights(batch)
        self._refuse_weights(weights)
        device = torch.device("cpu") if asked else _device_of(batch)
        given = batch if asked else addressed
        found = _Lookup.apply(self._handle, self, given, list(weights), *weights.values())
        outputs = {
            read.key: output.to(device)
            for read, output in zip(self.remapper.reads, found, strict=True)
        }
        return self._as_torchrec(outputs, addressed) if keyed else self._shaped(outputs, addressed)

    def ask_ahead(self, batch: Any) -> Asked:
        """Begin to exchange the ids of a batch; call the module with the result, later.

        All ranks must call this in the same order.
        """
        with self.engine.inside():
            addressed = self._addressed(batch)
            trained = {} if batch is addressed else self._trained_weights(batch)
            if trained and torch.is_grad_enabled():
                raise UserError(
                    f"feature {next(iter(trained))!r}: its weights want a gradient, which a lookup "
                    "that is asked for ahead has none for: call the module with the batch, "
                    "without a Pipeline"
                )
            return self.engine.ask_ahead(addressed)

    def _addressed(self, batch: Any) -> Addressed:
        found = self.engine.remapper(batch)
        if isinstance(batch, Mapping):
            return found
        if self.is_weighted:
            return _Keyed(found)
        return _Keyed({key: replace(jagged, weights=None) for key, jagged in found.items()})

    def _shaped(self, outputs: dict[str, torch.Tensor], batch: Addressed) -> dict[str, Any]:
        shaped: dict[str, Any] = {}
        for read in self.remapper.reads:
            output, jagged = outputs[read.key], batch[read.key]
            if read.table.pooling != "none":
                shaped[read.key] = output
            elif jagged.shape is not None:
                shaped[read.key] = output.reshape(*jagged.shape, output.shape[1])
            else:
                lengths = torch.from_numpy(jagged.lengths).to(output.device)
                shaped[read.key] = JaggedRows(output, lengths)
        return shaped

    def _as_torchrec(self, outputs: dict[str, torch.Tensor], batch: Addressed) -> Any:
        from rowtier.runtime.modules import keyed_outputs

        return keyed_outputs(self.remapper.reads, outputs, batch)

    def _trained_weights(self, batch: Any) -> dict[str, torch.Tensor]:
        """Weights of lookups that want a gradient, by the name of what reads them."""
        found: dict[str, torch.Tensor] = {}
        if not isinstance(batch, Mapping) and not self.is_weighted:
            return found
        given = batch if isinstance(batch, Mapping) else batch.to_dict()
        for read in self.remapper.reads:
            entry: Any = given.get(read.feature)
            if isinstance(entry, (torch.Tensor, np.ndarray)):  # ids alone, as most features are
                continue
            weights = getattr(entry, "weights", None)
            if isinstance(entry, (tuple, list)) and len(entry) == 3:
                weights = entry[2]
            elif callable(weights):  # a JaggedTensor
                weights = entry.weights_or_none()
            if isinstance(weights, torch.Tensor) and weights.requires_grad:
                found[read.key] = weights
        return found

    def _refuse_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        tables = {read.key: read.table.name for read in self.remapper.reads}
        for key in weights:
            for layer in self.engine.pieces[tables[key]]:
                for piece in layer:
                    if piece.pooled and torch.is_grad_enabled():
                        raise UserError(
                            f"feature {key!r}: its weights want a gradient, and ranks "
                            f"{piece.band.start} to {piece.band.stop} of table {tables[key]!r} "
                            "exchange sums, so the reader never sees the rows: detach the "
                            "weights, say `weights: learned` for the table in tables.yaml and "
                            "profile and plan again, or plan again with a constraints file that "
                            f"says `tables: {{{tables[key]}: {{exchange: rows}}}}`"
                        )

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Clip the gradients of all tables by their common norm, before `optimizer.step()`.

        Returns the norm. All ranks must call this. Clipping every parameter of a model by one
        norm is not supported, as the dense part's gradients are elsewhere.
        """
        with self.engine.inside():
            return self.engine.clip(float(max_norm))

    def _save_to_state_dict(self, destination: Any, prefix: str, _keep_vars: bool) -> None:
        from rowtier.runtime.logical import weights_dict

        destination.update({prefix + k: v for k, v in weights_dict(self.engine).items()})

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, _metadata: Any, strict: bool, missing_keys: list[str],
        unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        from rowtier.runtime.logical import load_weights, weight_names

        names = weight_names(self.engine)
        for name in names:
            if prefix + name not in state_dict:
                missing_keys.append(prefix + name)
        found = {n: state_dict[prefix + n] for n in names if prefix + n in state_dict}
        try:
            load_weights(self.engine, found)
        except UserError as error:
            error_msgs.append(str(error))
        if strict:
            unexpected_keys += [
                key
                for key in state_dict
                if key.startswith(prefix) and key.removeprefix(prefix) not in names
            ]

    def extra_repr(self) -> str:
        """What is in here, for print(model)."""
        world = self.engine.world
        return f"{len(self.engine.tables)} tables, rank {world.rank} of {world.size}"


class EmbeddingOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """Updates the rows of `ShardedEmbeddings`; a learning rate scheduler can drive it.

    One parameter group per kind of optimizer. `zero_grad` drops gradients that wait; without
    it, or `step`, the gradients of several backward passes add up.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        groups = [
            # One handle each: torch allows a tensor in one group only.
            {"params": [torch.zeros(0, requires_grad=True)], "kind": kind, "lr": optimizer.lr}
            for kind, optimizer in engine.optimizers.items()
        ]
        super().__init__(groups, {})

    def step(self, closure: Any = None) -> Any:
        """Apply the gradients since the last step; all ranks must call this."""
        loss = closure() if closure is not None else None
        rates = {group["kind"]: float(group["lr"]) for group in self.param_groups}
        with self._engine.inside():
            self._engine.step(rates)
        if self._engine.dense_time is not None:
            self._engine.dense_time.end_step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002
        """Drop gradients that were not applied."""
        self._engine.forget_gradients()

    def state_dict(self) -> dict[str, Any]:
        """State by the names of the logical tables; all ranks must call this."""
        from rowtier.runtime.logical import state_dict

        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.param_groups
        ]
        return {"state": state_dict(self._engine), "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take state that was saved under any plan and world size; all ranks must call this."""
        from rowtier.runtime.logical import load_state

        load_state(self._engine, state_dict["state"])
        for saved in state_dict["param_groups"]:
            for group in self.param_groups:
                if group["kind"] == saved["kind"]:
                    group.update(saved)


class _Lookup(torch.autograd.Function):  # type: ignore[misc]
    """One lookup of all tables; its backward brings the gradients to the rows."""

    @staticmethod
    def forward(
        ctx: Any, _handle: torch.Tensor, module: ShardedEmbeddings, batch: Addressed | Asked,
        weighted: list[str], *_weights: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        engine = module.engine
        trip, outputs = engine.forward(batch, keep_rows=bool(weighted))
        ctx.module, ctx.trip, ctx.weighted, ctx.used = module, trip, weighted, False
        addressed = batch.batch if isinstance(batch, Asked) else batch
        ctx.kept = {key: addressed[key].kept for key in weighted}
        return tuple(_split(module, addressed, outputs))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        if ctx.used:
            raise UserError(
                "a second backward through the same lookup: its gradients would count twice; "
                "call the module again, or add the losses up before backward"
            )
        ctx.used = True
        module, trip = ctx.module, ctx.trip
        with module.engine.inside():
            joined = _joined(module, grads)
            of_weights = _weight_grads(module, trip, joined, ctx.kept) if ctx.weighted else []
            module.engine.backward(trip, joined)
        ctx.trip = None
        return (None, None, None, None, *of_weights)


def _split(
    module: ShardedEmbeddings, batch: Addressed, outputs: list[Floats]
) -> list[torch.Tensor]:
    """Outputs of bundles as outputs of what reads them."""
    found: dict[int, torch.Tensor] = {}
    for bundle, output in zip(module.engine.bundles, outputs, strict=True):
        at = 0
        for index in bundle.reads:
            jagged = batch[module.remapper.reads[index].key]
            size = len(jagged.values) if bundle.table.pooling == "none" else jagged.samples
            part = output if size == len(output) else output[at : at + size]
            found[index] = torch.from_numpy(part)
            at += size
    return [found[index] for index in range(len(found))]


def _joined(module: ShardedEmbeddings, grads: Sequence[torch.Tensor | None]) -> list[Floats]:
    """Gradients of what reads as gradients of bundles."""
    joined = []
    for bundle in module.engine.bundles:
        parts = [part for index in bundle.reads if (part := grads[index]) is not None]
        assert len(parts) == len(bundle.reads)  # autograd gives zeros where one was not used
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        array = whole.detach().to("cpu", torch.float32).numpy()
        joined.append(np.ascontiguousarray(array))
    return joined


def _weight_grads(
    module: ShardedEmbeddings, trip: Trip, grads: list[Floats], kept: Mapping[str, Any]
) -> list[torch.Tensor]:
    """Gradients of lookups' weights: row times gradient of its bag; zero if it was dropped."""
    found: dict[str, torch.Tensor] = {}
    for lookups, grad in zip(trip.lookups, grads, strict=True):
        out, at = np.zeros(len(lookups.address), dtype=np.float32), 0
        if lookups.table.pooling == "mean":
            grad = grad / np.maximum(np.diff(lookups.edges), 1).astype(np.float32)[:, None]
        for first, spots, lane in trip.spots(lookups):
            kernels.weights_back(lane.rows, spots, lookups.edges, grad, first, out)
        reads = [module.remapper.reads[index] for index in lookups.bundle.reads]
        bags = lookups.bags // len(reads)
        for index, read in enumerate(reads):
            size = int(lookups.edges[(index + 1) * bags]) - at
            found[read.key] = torch.from_numpy(out[at : at + size])
            at += size
    return [_at(found[key], mask) for key, mask in kept.items()]


def _at(grad: torch.Tensor, kept: NDArray[np.bool_] | None) -> torch.Tensor:
    """Gradients of lookups as those of all weights that were given."""
    if kept is None:
        return grad
    whole = torch.zeros(len(kept), dtype=grad.dtype)
    whole[torch.from_numpy(kept)] = grad
    return whole


def _device_of(batch: Any) -> torch.device:
    values = next(iter(batch.values()), None) if isinstance(batch, Mapping) else batch.values()
    if isinstance(values, (tuple, list)) and values:
        values = values[0]
    values = getattr(values, "values", values)
    return values.device if isinstance(values, torch.Tensor) else torch.device("cpu")
