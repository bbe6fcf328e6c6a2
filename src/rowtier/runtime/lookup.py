"""One lookup of all tables, and its gradients, as autograd sees them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rowtier.errors import UserError
from rowtier.plan.remap import Addressed
from rowtier.runtime.asked import Asked
from rowtier.runtime.engine import BACKWARD
from rowtier.runtime.exchange.step import Trip
from rowtier.runtime.kernels.protocol import Array

if TYPE_CHECKING:
    from rowtier.runtime.module import ShardedEmbeddings


class Lookup(torch.autograd.Function):  # type: ignore[misc]
    """One lookup of all tables; its backward brings the gradients to the rows."""

    @staticmethod
    def forward(
        ctx: Any, _handle: torch.Tensor, module: ShardedEmbeddings, batch: Addressed | Asked,
        weighted: list[str], *weights: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        """Rows or sums of every feature that reads a table."""
        del weights  # the batch has them
        ctx.made, outputs = looked_up(module, batch, weighted)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        """Gradients of the weights of lookups; those of rows wait for the optimizer."""
        if ctx.made is None:
            raise UserError(
                "a second backward through the same lookup: its gradients would count twice; "
                "call the module again, or add the losses up before backward"
            )
        made, ctx.made = ctx.made, None
        return None, None, None, None, *brought_back(made, grads, ctx.needs_input_grad[0])


class Made(NamedTuple):
    """What a lookup leaves behind for its gradients."""

    module: ShardedEmbeddings
    trip: Trip
    resolved: Any  # when ids of growing tables were turned into rows
    kept: dict[str, NDArray[np.bool_] | None]  # of reads whose weights want a gradient
    sizes: dict[str, int]  # lookups of every read


def looked_up(
    module: ShardedEmbeddings, batch: Addressed | Asked, weighted: Iterable[str]
) -> tuple[Made, list[torch.Tensor]]:
    """What every read gives for a batch, and what its gradients need."""
    addressed = batch.batch if isinstance(batch, Asked) else batch
    kept = {key: addressed[key].kept for key in weighted}
    sizes = {key: len(jagged.values) for key, jagged in addressed.items()}
    trip, outputs = module.engine.forward(batch, keep_rows=bool(kept))
    return Made(module, trip, addressed.origin.resolved, kept, sizes), _split(
        module, addressed, outputs
    )


def brought_back(
    made: Made, grads: Sequence[torch.Tensor | None], to_rows: bool
) -> list[torch.Tensor]:
    """Bring gradients of outputs to the rows; those of the weights of lookups."""
    module = made.module
    with module.engine.inside(BACKWARD):
        joined = _joined(module, grads)
        of_weights = _weight_grads(made, joined) if made.kept else []
        if to_rows:  # rows may be frozen
            if module.engine.growing is not None and made.resolved is not None:
                module.engine.growing.check(made.resolved, "backward")
            module.waiting.add(made.trip, joined)
    return of_weights


def _split(module: ShardedEmbeddings, batch: Addressed, outputs: list[Array]) -> list[torch.Tensor]:
    """Outputs of bundles as outputs of what reads them."""
    found: dict[int, torch.Tensor] = {}
    for bundle, output in zip(module.engine.bundles, outputs, strict=True):
        at = 0
        for index in bundle.reads:
            jagged = batch[module.remapper.reads[index].key]
            size = len(jagged.values) if bundle.table.pooling == "none" else jagged.samples
            part = output if size == len(output) else output[at : at + size]
            found[index] = module.engine.side.tensor(part)
            at += size
    return [found[index] for index in range(len(found))]


def _joined(module: ShardedEmbeddings, grads: Sequence[torch.Tensor | None]) -> list[Array]:
    """Gradients of what reads as gradients of bundles."""
    joined = []
    for bundle in module.engine.bundles:
        parts = [part for index in bundle.reads if (part := grads[index]) is not None]
        assert len(parts) == len(bundle.reads)  # autograd gives zeros where one was not used
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        joined.append(module.engine.side.take(whole))
    return joined


def _weight_grads(made: Made, grads: list[Array]) -> list[torch.Tensor]:
    """Gradients of lookups' weights: row times gradient of its bag; zero if it was dropped."""
    found: dict[str, torch.Tensor] = {}
    side = made.module.engine.side
    for lookups, grad in zip(made.trip.lookups, grads, strict=True):
        out, at = side.full(len(lookups.address), 1, 0.0)[:, 0], 0
        if lookups.table.pooling == "mean":
            grad = grad / side.put(lookups.lengths)
        edges = side.put(lookups.edges)
        for first, spots, lane in made.trip.each(lookups):
            side.kernels.weights_back(lane.rows, spots, edges, grad, first, out)
        for read in (made.module.remapper.reads[index] for index in lookups.bundle.reads):
            size = made.sizes[read.key]
            found[read.key] = side.tensor(out[at : at + size]).cpu()
            at += size
    return [_at(found[key], mask) for key, mask in made.kept.items()]


def _at(grad: torch.Tensor, kept: NDArray[np.bool_] | None) -> torch.Tensor:
    """Gradients of lookups as those of all weights that were given."""
    if kept is None:
        return grad
    whole = torch.zeros(len(kept), dtype=grad.dtype)
    whole[torch.from_numpy(kept)] = grad
    return whole
