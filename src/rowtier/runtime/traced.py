"""Lookups that `torch.compile` and `torch.export` can follow: operations of tensors alone.

A batch becomes its tensors and a text that says what each of them is, and which module is meant.
The gradient of `rowtier::look_up` is `rowtier::bring_back`; what the first has to tell the second
waits in the module under the number of a ticket, which is one of the outputs.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from rowtier.errors import UserError
from rowtier.plan.bags import Bags
from rowtier.runtime.engine import FORWARD
from rowtier.runtime.lookup import brought_back, looked_up

if TYPE_CHECKING:
    from rowtier.runtime.module import ShardedEmbeddings

_MOST_OPEN = 1024  # lookups of a module whose gradients may still come
_IDS, _LENGTHS, _OFFSETS, _WEIGHTS, _TRAINED = "ids", "lengths", "offsets", "weights", "trained"
_KEYED = "keyed"  # a KeyedJaggedTensor: its values, lengths and weights are of all keys
_modules: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers, _tickets = itertools.count(), itertools.count()


class Output(NamedTuple):
    """What one read gives: plain values, which a compiler can follow."""

    key: str
    feature: str
    dim: int
    pooled: bool


def register(module: ShardedEmbeddings) -> int:
    """A number by which compiled code finds a module."""
    number = next(_numbers)
    _modules[number] = module
    return number


def trace(module: ShardedEmbeddings, batch: Any) -> dict[str, torch.Tensor]:
    """Look up a batch as one operation."""
    names, tensors = _keyed(module, batch) if hasattr(batch, "to_dict") else _parts(module, batch)
    keep = "weights" if any(name.startswith(_TRAINED) for name in names) else ""
    if torch.is_grad_enabled() and module.row_handle.requires_grad:
        keep = "rows"
    what = "\n".join([str(module.number), keep, *names])
    found = torch.ops.rowtier.look_up(module.row_handle, tensors, what)
    return {output.key: found[i] for i, output in enumerate(module.outputs)}


def _parts(
    module: ShardedEmbeddings, batch: Mapping[str, Any]
) -> tuple[list[str], list[torch.Tensor]]:
    names: list[str] = []
    tensors: list[torch.Tensor] = []
    for feature in dict.fromkeys(output.feature for output in module.outputs):
        entry = batch[feature]
        if isinstance(entry, Bags):
            given = {_IDS: entry.values, _LENGTHS: entry.lengths, _OFFSETS: entry.offsets}
            given[_WEIGHTS] = entry.weights
        else:
            parts = entry if isinstance(entry, (tuple, list)) else (entry,)
            given = dict(zip((_IDS, _LENGTHS, _WEIGHTS), parts, strict=False))
        for role, tensor in given.items():
            if tensor is not None:
                trains = torch.is_grad_enabled() and tensor.requires_grad
                names.append(f"{_TRAINED if trains else role} {feature}")
                tensors.append(tensor)
    return names, tensors


def _keyed(module: ShardedEmbeddings, batch: Any) -> tuple[list[str], list[torch.Tensor]]:
    if batch.variable_stride_per_key() or module.returns_ids:
        raise UserError(
            "a KeyedJaggedTensor with a batch size per key, or rows that come with their ids "
            "(need_indices), cannot be compiled: leave the embeddings uncompiled"
        )
    names, tensors = [_IDS, _LENGTHS], [batch.values(), batch.lengths()]
    if module.weighted:
        if batch.weights().requires_grad:
            raise UserError(
                "weights of a KeyedJaggedTensor that want a gradient cannot be compiled: give a "
                "dict of feature → (ids, lengths, weights), or leave the embeddings uncompiled"
            )
        names.append(_WEIGHTS)
        tensors.append(batch.weights())
    return [f"{_KEYED} {' '.join(names)}", *batch.keys()], tensors


class _What(NamedTuple):
    """What a lookup is told besides tensors."""

    module: ShardedEmbeddings
    keep: str
    names: list[str]

    @classmethod
    def of(cls, text: str) -> _What:
        number, keep, *names = text.split("\n")
        return cls(_modules[int(number)], keep, names)

    @property
    def trained(self) -> dict[str, int]:
        """Features whose weights want a gradient, and which tensor these are."""
        names = (name.split(" ", 1) for name in self.names)
        return {name[1]: at for at, name in enumerate(names) if name[0] == _TRAINED}

    def entries(self, tensors: Sequence[torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
        """Tensors by feature and by what they are; of a KeyedJaggedTensor one entry for all."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        if self.names[0].startswith(_KEYED):
            return {"": dict(zip(self.names[0].split(" ")[1:], tensors, strict=True))}
        for name, tensor in zip(self.names, tensors, strict=True):
            role, feature = name.split(" ", 1)
            found.setdefault(feature, {})[_WEIGHTS if role == _TRAINED else role] = tensor
        return found

    def batch(self, tensors: Sequence[torch.Tensor]) -> dict[str, Bags]:
        """The batch that the tensors are."""
        entries = self.entries(tensors)
        if "" in entries:
            return dict(_split_keys(self.names[1:], entries[""]))
        return {
            feature: Bags(
                entry[_IDS], entry.get(_LENGTHS), entry.get(_OFFSETS), entry.get(_WEIGHTS)
            )
            for feature, entry in entries.items()
        }

    def sizes(self, tensors: Sequence[torch.Tensor]) -> Iterator[tuple[Any, ...]]:
        """The shape of every output."""
        entries = self.entries(tensors)
        for output in self.module.outputs:
            entry = entries.get(output.feature) or entries[""]
            yield (
                _rows(entry, output.pooled, len(self.names) - 1 if "" in entries else 0),
                output.dim,
            )


def _rows(entry: Mapping[str, torch.Tensor], pooled: bool, keys: int) -> Any:
    """How many rows a feature gives."""
    if keys:
        if pooled:
            return entry[_LENGTHS].numel() // keys
        return torch.library.get_ctx().new_dynamic_size()
    if not pooled:
        return entry[_IDS].numel()
    if _LENGTHS in entry:
        return entry[_LENGTHS].shape[0]
    return entry[_OFFSETS].shape[0] - 1 if _OFFSETS in entry else entry[_IDS].shape[0]


def _split_keys(
    keys: Sequence[str], entry: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, Bags]]:
    lengths = entry[_LENGTHS].reshape(len(keys), -1)
    counts = lengths.sum(dim=1).tolist()
    values = entry[_IDS].split(counts)
    weights = entry[_WEIGHTS].split(counts) if _WEIGHTS in entry else [None] * len(keys)
    for key, some, each, weight in zip(keys, values, lengths, weights, strict=True):
        yield key, Bags(some, each, weights=weight)


@torch.library.custom_op("rowtier::look_up", mutates_args=())  # type: ignore[untyped-decorator]
def look_up(handle: torch.Tensor, tensors: list[torch.Tensor], what: str) -> list[torch.Tensor]:
    """Rows or sums of every feature that reads a table, and a ticket for their gradients."""
    del handle
    told = _What.of(what)
    module = told.module
    with module.engine.inside(FORWARD):
        module.stands(records=told.keep == "rows")
        addressed = module.addresses(told.batch(tensors))
        trained = [output.key for output in module.outputs if output.feature in told.trained]
        module.refuse_weights(trained)
        made, outputs = looked_up(module, addressed, trained)
        if module.heat is not None and told.keep == "rows":
            module.heat.note(addressed, module.remapper)
    ticket = next(_tickets)
    if told.keep:
        module.open_lookups[ticket] = made
        if len(module.open_lookups) > _MOST_OPEN:
            module.open_lookups.pop(next(iter(module.open_lookups)))
    device = tensors[0].device
    return [*(output.to(device, copy=True) for output in outputs), torch.tensor(ticket)]


@look_up.register_fake  # type: ignore[untyped-decorator]
def _(handle: torch.Tensor, tensors: list[torch.Tensor], what: str) -> list[torch.Tensor]:
    told = _What.of(what)
    device = tensors[0].device
    found = [handle.new_empty(size, device=device) for size in told.sizes(tensors)]
    return [*found, torch.empty((), dtype=torch.int64, device="cpu")]


@torch.library.custom_op("rowtier::bring_back", mutates_args=())  # type: ignore[untyped-decorator]
def bring_back(
    handle: torch.Tensor, grads: list[torch.Tensor], weights: list[torch.Tensor],
    ticket: torch.Tensor, what: str,
) -> list[torch.Tensor]:  # fmt: skip
    """Bring gradients of outputs to the rows; zeros for the handle, gradients of weights."""
    told = _What.of(what)
    made = told.module.open_lookups.pop(int(ticket), None)
    if made is None:
        raise UserError(
            f"a backward through a compiled lookup whose turn is over: after a second backward, "
            f"or {_MOST_OPEN} further lookups, gradients cannot be brought back; call the module "
            "again"
        )
    by_read = dict(zip(made.kept, brought_back(made, grads, told.keep == "rows"), strict=True))
    features = {output.key: output.feature for output in told.module.outputs}
    found = [torch.zeros_like(weight) for weight in weights]
    places = {feature: place for place, feature in enumerate(told.trained)}
    for key, grad in by_read.items():  # a feature may read several tables
        found[places[features[key]]] += grad.to(found[0])
    return [torch.zeros_like(handle), *found]


@bring_back.register_fake  # type: ignore[untyped-decorator]
def _(
    handle: torch.Tensor, grads: list[torch.Tensor], weights: list[torch.Tensor],
    ticket: torch.Tensor, what: str,
) -> list[torch.Tensor]:  # fmt: skip
    del grads, ticket, what
    return [torch.empty_like(handle), *(torch.empty_like(weight) for weight in weights)]


def _keep_for_backward(ctx: Any, inputs: Any, output: list[torch.Tensor]) -> None:
    handle, tensors, what = inputs
    trained = list(_What.of(what).trained.values())
    ctx.save_for_backward(handle, output[-1], *(tensors[at] for at in trained))
    ctx.what, ctx.trained, ctx.count = what, trained, len(tensors)
    ctx.shapes = [(found.shape, found.device) for found in output[:-1]]


def _backward(ctx: Any, grads: list[torch.Tensor | None]) -> Any:
    handle, ticket, *weights = ctx.saved_tensors
    whole = [
        torch.zeros(shape, device=device) if grad is None else grad
        for grad, (shape, device) in zip(grads[:-1], ctx.shapes, strict=True)
    ]
    found = torch.ops.rowtier.bring_back(handle, whole, weights, ticket, ctx.what)
    of_tensors: list[torch.Tensor | None] = [None] * ctx.count
    for at, grad in zip(ctx.trained, found[1:], strict=True):
        of_tensors[at] = grad
    return found[0] if ctx.needs_input_grad[0] else None, of_tensors, None


look_up.register_autograd(_backward, setup_context=_keep_for_backward)
