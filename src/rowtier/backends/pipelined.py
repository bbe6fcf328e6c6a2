"""`ShardedEmbeddings` for TorchRec's `TrainPipelineSparseDist`, and one optimizer for it to step.

The pipeline traces a model, and starts the exchange of the next batch's ids in those modules
that are TorchRec `ShardedModule`s; through all others it traces, and ours cannot be traced. So
here it is one: its `input_dist` is what `rowtier.torch.Pipeline` does ahead as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torchrec
from torchrec.distributed.embedding_sharding import KJTListSplitsAwaitable
from torchrec.distributed.types import LazyNoWait, NoWait, ShardedModule
from torchrec.streamable import Multistreamable

from rowtier.errors import UserError
from rowtier.runtime.engine import Asked
from rowtier.runtime.module import ShardedEmbeddings


class _Context(Multistreamable):  # type: ignore[misc]
    """Where a batch came from, so that what is found for it goes there."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def record_stream(self, stream: Any) -> None:
        """Nothing of this lies on a device."""


class _Waiting(Multistreamable):  # type: ignore[misc]
    """A batch whose ids travel; the pipeline wants to be able to record a stream on it."""

    def __init__(self, asked: Asked):
        self.asked = asked

    def record_stream(self, stream: Any) -> None:
        """Ids are on the host by now."""


class PipelinedEmbeddings(ShardedEmbeddings, ShardedModule):  # type: ignore[misc]
    """`ShardedEmbeddings` that `TrainPipelineSparseDist` pipelines; the same otherwise.

    Takes KeyedJaggedTensors. While a batch computes, the ids of the next one travel; its rows
    are read after the update, so the result is the same, bit for bit, as without.
    """

    def create_context(self) -> _Context:
        """For one batch."""
        return _Context()

    def input_dist(self, ctx: _Context, features: Any) -> Any:
        """Begin to exchange the ids of a batch."""
        ctx.device = features.device()
        waiting = NoWait(NoWait(_Waiting(self.ask_ahead(features))))
        return KJTListSplitsAwaitable([waiting], ctx)

    def compute(self, ctx: _Context, dist_input: Any) -> Any:
        """Look the batch up, with ids that have arrived."""
        # The pipeline puts a `forward` of its own in the place of ours.
        found = ShardedEmbeddings.forward(self, dist_input[0].asked)
        if isinstance(found, dict):  # tables that are not pooled
            return {key: values.to(ctx.device) for key, values in found.items()}
        return found.to(ctx.device)

    def output_dist(self, ctx: _Context, output: Any) -> Any:  # noqa: ARG002
        """Nothing is left to do: rows come to those who asked for them."""
        return LazyNoWait(output)

    @property
    def unsharded_module_type(self) -> Any:
        """What this stands for."""
        return torchrec.EmbeddingBagCollection


class Together(torch.optim.Optimizer):  # type: ignore[misc]
    """Several optimizers as one, for those who step only one, as TorchRec's pipelines do.

    Parameter groups are theirs, so schedulers of either drive both.
    """

    def __init__(self, *optimizers: torch.optim.Optimizer):
        if not optimizers:
            raise UserError("Together() of no optimizer: give those of the dense and sparse part")
        self.optimizers = optimizers
        super().__init__([group for part in optimizers for group in part.param_groups], {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step all of them; the closure is called once."""
        loss = closure() if closure is not None else None
        for part in self.optimizers:
            part.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all."""
        for part in self.optimizers:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The states of all, in their order; all ranks must call this."""
        return {"optimizers": [part.state_dict() for part in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take states that were saved; all ranks must call this."""
        for part, state in zip(self.optimizers, state_dict["optimizers"], strict=True):
            part.load_state_dict(state)
