"""A training loop in which ids run ahead, and copies are kept equal behind the backward pass.

    for batch, pooled in Pipeline(embeddings, loader, lambda batch: batch["features"]):
        loss = model(batch, pooled)
        loss.backward()
        embeddings.optimizer.step()

While a batch computes, the ids of the next one travel; its rows are read only after this
batch's update, so the result is the same, bit for bit, as without. Gradients of copies travel
from the end of the embeddings' backward pass until `step`. Rows that lie on a disk are read
while the model computes. One backward pass per step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from rowtier.errors import UserError
from rowtier.runtime.asked import Asked
from rowtier.runtime.module import ShardedEmbeddings


class Pipeline:
    """Yields every batch with what the embeddings give for it; ids are exchanged one ahead.

    `inputs` takes from a batch what the embeddings are called with; by default the batch is
    that. Batches with weights that want a gradient are refused: call the module with them.
    """

    def __init__(
        self,
        embeddings: ShardedEmbeddings,
        batches: Iterable[Any],
        inputs: Callable[[Any], Any] = lambda batch: batch,
    ):
        self.embeddings, self.batches, self.inputs = embeddings, batches, inputs
        embeddings.engine.overlap()

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        engine = self.embeddings.engine
        waiting: tuple[Any, Any] | None = None
        for batch in self.batches:
            asked = self.embeddings.ask_ahead(self.inputs(batch))
            _refuse_weights(asked)
            if waiting is not None:
                outputs = self.embeddings(waiting[1])
                engine.prefetch(asked)  # disks are read while the model computes
                yield waiting[0], outputs
            waiting = (batch, asked)
        if waiting is not None:
            yield waiting[0], self.embeddings(waiting[1])


def _refuse_weights(asked: Asked) -> None:
    """Weights of the next batch would be those of the model before this batch's update."""
    if asked.weights and torch.is_grad_enabled():
        raise UserError(
            f"feature {next(iter(asked.weights))!r}: its weights want a gradient, and in a "
            "Pipeline they would be a step behind the model that they come from: call the module "
            "with the batch, without a Pipeline"
        )
