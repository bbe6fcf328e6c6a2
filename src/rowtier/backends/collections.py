"""TorchRec's two sharded collections, with the rows of a plan behind them.

Models, pipelines and optimizers of TorchRec know its modules by type and by a few methods:
`ShardedModule` (a pipeline starts the exchange of the next batch's ids in those, and traces
through all others), `FusedOptimizerModule`, and the interface of the unsharded collections. These
two are all of that; looking up and training is `ShardedEmbeddings`.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from functools import cached_property
from typing import Any, ClassVar

import torch
import torchrec
from torch.distributed.tensor import DTensor
from torchrec.distributed.embedding_sharding import KJTListSplitsAwaitable
from torchrec.distributed.types import (
    LazyNoWait,
    NoWait,
    NullShardedModuleContext,
    ShardedModule,
)
from torchrec.modules.embedding_modules import get_embedding_names_by_table
from torchrec.optim.fused import FusedOptimizerModule
from torchrec.sparse.tensor_dict import maybe_td_to_kjt
from torchrec.streamable import Multistreamable

from rowtier.backends.keyed_optimizer import KeyedRowOptimizer
from rowtier.backends.modules import bag_config, configs, optimizers, row_config
from rowtier.errors import MismatchError, UserError
from rowtier.plan.plan import Plan
from rowtier.plan.remap import Addressed
from rowtier.runtime.asked import Asked
from rowtier.runtime.keyed import keyed_outputs
from rowtier.runtime.module import ShardedEmbeddings


class _Waiting(Multistreamable):  # type: ignore[misc]
    """A batch whose ids travel; the pipeline wants to be able to record a stream on it."""

    def __init__(self, asked: Asked):
        self.asked = asked

    def record_stream(self, stream: Any) -> None:
        """Ids are on the host by now."""


class _Collection(ShardedEmbeddings, ShardedModule, FusedOptimizerModule):  # type: ignore[misc]
    """What both have: TorchRec's input and output, its pipelines and its optimizers."""

    _whole: ClassVar[Any]  # TorchRec's unsharded collection
    _pooled: ClassVar[bool]
    copied = (*ShardedEmbeddings.copied, "_output_dtype", "_configs")

    def __init__(
        self, plan: Plan, *args: Any, output_dtype: torch.dtype = torch.float32, **options: Any
    ):
        _check_dtype(output_dtype)
        super().__init__(plan, *args, **options)
        self._output_dtype = output_dtype
        made = bag_config if self._pooled else row_config
        self._configs: list[Any] = [made(table) for table, _ in plan]

    @classmethod
    def from_module(
        cls, module: torch.nn.Module, plan: Plan, optimizer: Any = None, *args: Any, **options: Any
    ) -> Any:
        """The same collection with its weights, kept where the plan says.

        Without an `optimizer` the tables have those that they were given by
        `apply_optimizer_in_backward`. A collection on the meta device has no weights: they are
        drawn by `seed`, the same under every plan. `output_dtype` is that of what it returns.
        """
        if not isinstance(module, cls._whole):
            raise UserError(
                f"{cls.__name__}.from_module takes TorchRec's {cls._whole.__name__}, and this is a "
                f"{type(module).__name__}: give the collection as it is before "
                f"DistributedModelParallel, or use {_other_than(cls)}"
            )
        _check_configs(configs(module))
        chosen = optimizers(module) if optimizer is None else optimizer
        made = super().from_module(module, plan, chosen, *args, **options)
        made._configs = list(configs(module))
        return made

    def forward(self, features: Any) -> Any:
        """Look up a KeyedJaggedTensor, a TensorDict, or whatever `ShardedEmbeddings` takes."""
        return super().forward(maybe_td_to_kjt(features, None))

    def ask_ahead(self, batch: Any) -> Asked:
        """Begin to exchange the ids of a batch; call the module with the result, later."""
        return super().ask_ahead(maybe_td_to_kjt(batch, None))

    def _returned(self, outputs: dict[str, torch.Tensor], batch: Addressed) -> Any:
        cast = {key: output.to(self._output_dtype) for key, output in outputs.items()}
        return keyed_outputs(self.remapper.reads, cast, batch, with_ids=self.returns_ids)

    @property
    def device(self) -> torch.device:
        """Where rows are: the host. What is found goes to the device of the batch."""
        return torch.device("cpu")

    @cached_property
    def fused_optimizer(self) -> KeyedRowOptimizer:
        """The optimizer of the rows as TorchRec's optimizers are: by the names of weights.

        `step` updates the rows; nothing is updated inside the backward pass.
        """
        return KeyedRowOptimizer(self.optimizer, self.engine)

    def unsharded(self) -> Any:
        """TorchRec's own collection with all weights, on every rank; all ranks must call this.

        It looks up rows: where tables map ids, give it what `plan.rows_of` makes of them.
        """
        with torch.random.fork_rng(devices=[]):  # it draws weights, which nobody keeps
            whole = self._empty(copy.deepcopy(self._configs))
        weights = dict(whole.named_parameters())
        for name, found in self.state_dict().items():
            weights[name].data = found.full_tensor() if isinstance(found, DTensor) else found
        return whole

    @abstractmethod
    def _empty(self, tables: list[Any]) -> Any:
        """TorchRec's collection, with weights of any kind."""

    @property
    def unsharded_module_type(self) -> Any:
        """What this stands for."""
        return self._whole

    def create_context(self) -> Any:
        """For one batch; the batch itself knows all that is needed later."""
        return NullShardedModuleContext()

    def input_dist(self, ctx: Any, features: Any) -> Any:
        """Begin to exchange the ids of a batch."""
        waiting = _Waiting(self.ask_ahead(features))
        return KJTListSplitsAwaitable([NoWait(NoWait(waiting))], ctx)

    def compute(self, ctx: Any, dist_input: Any) -> Any:  # noqa: ARG002
        """Look the batch up, with ids that have arrived."""
        # The pipeline puts a `forward` of its own in the place of ours.
        return ShardedEmbeddings.forward(self, dist_input[0].asked)

    def output_dist(self, ctx: Any, output: Any) -> Any:  # noqa: ARG002
        """Nothing is left to do: rows come to those who asked for them."""
        return LazyNoWait(output)

    @classmethod
    def _check_tables(cls, plan: Plan) -> None:
        for table, _ in plan:
            if (table.pooling != "none") != cls._pooled:
                raise MismatchError(
                    f"table {table.name!r} has pooling: {table.pooling}, and a {cls.__name__} has "
                    f"tables {'that are' if cls._pooled else 'that are not'} pooled: use "
                    f"{_other_than(cls)}, or a plan for each kind"
                )


class ShardedEmbeddingBagCollection(_Collection):
    """TorchRec's EmbeddingBagCollection with rows where a plan puts them: a KeyedTensor out.

    The rest is as in `ShardedEmbeddings`, which it is.
    """

    _whole, _pooled = torchrec.EmbeddingBagCollection, True

    def __init__(self, plan: Plan, *args: Any, is_weighted: bool = False, **options: Any):
        super().__init__(plan, *args, **options)
        self.weighted = is_weighted

    def embedding_bag_configs(self) -> list[Any]:
        """The configs of all tables."""
        return self._configs

    def is_weighted(self) -> bool:
        """Whether weights of the KeyedJaggedTensor count."""
        return bool(self.weighted)

    def _empty(self, tables: list[Any]) -> Any:
        return self._whole(tables=tables, is_weighted=self.is_weighted())


class ShardedEmbeddingCollection(_Collection):
    """TorchRec's EmbeddingCollection with rows where a plan puts them: JaggedTensors out.

    The rest is as in `ShardedEmbeddings`, which it is.
    """

    _whole, _pooled = torchrec.EmbeddingCollection, False

    def __init__(self, plan: Plan, *args: Any, need_indices: bool = False, **options: Any):
        super().__init__(plan, *args, **options)
        self.returns_ids = need_indices

    def embedding_configs(self) -> list[Any]:
        """The configs of all tables."""
        return self._configs

    def need_indices(self) -> bool:
        """Whether JaggedTensors have the ids as their weights."""
        return bool(self.returns_ids)

    def embedding_dim(self) -> int:
        """Columns of every table."""
        return int(self._configs[0].embedding_dim)

    def embedding_names_by_table(self) -> list[list[str]]:
        """The keys of the output, by table."""
        return list(get_embedding_names_by_table(self._configs))

    def _empty(self, tables: list[Any]) -> Any:
        return self._whole(tables=tables, need_indices=self.need_indices())

    @classmethod
    def _check_tables(cls, plan: Plan) -> None:
        super()._check_tables(plan)
        widths = {table.name: table.embedding_dim for table, _ in plan}
        if len(set(widths.values())) > 1:
            listed = ", ".join(f"{name!r} {width}" for name, width in list(widths.items())[:6])
            raise MismatchError(
                f"the tables of an EmbeddingCollection have one embedding_dim, here: {listed}"
                ": use a collection and a plan for each, or rowtier.torch.ShardedEmbeddings"
            )


def _other_than(cls: type) -> str:
    pooled = cls is not ShardedEmbeddingBagCollection
    return "ShardedEmbeddingBagCollection" if pooled else "ShardedEmbeddingCollection"


def _check_configs(tables: list[Any]) -> None:
    for config in tables:
        if config.use_virtual_table:
            raise UserError(
                f"table {config.name!r} is a virtual one, whose rows come and go: give it as many "
                "rows as memory has room for, and let ids share them (ids: hash or vocabulary)"
            )


def _check_dtype(dtype: Any) -> None:
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise UserError(
            f"output_dtype {dtype!r}: give a floating-point torch.dtype, such as torch.float16"
        )
