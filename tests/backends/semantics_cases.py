"""Collections and batches on which ours must do what TorchRec's unsharded ones do.

`compare` runs one case on this rank: forward, and a training step from the batches of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torchrec
from backends.torchrec_cases import machine
from torchrec import KeyedJaggedTensor

import rowtier.torchrec as rt
from rowtier import Band, Plan, make_profile
from rowtier.torch import SGD

LR = 0.5
MEAN, HALF = torchrec.PoolingType.MEAN, torchrec.DataType.FP16


def bags(*tables: dict[str, Any], weighted: bool = False) -> Any:
    torch.manual_seed(5)
    made = [torchrec.EmbeddingBagConfig(**facts) for facts in tables]
    return torchrec.EmbeddingBagCollection(tables=made, is_weighted=weighted)


def rows(*tables: dict[str, Any], need_indices: bool = False) -> Any:
    torch.manual_seed(5)
    made = [torchrec.EmbeddingConfig(**facts) for facts in tables]
    return torchrec.EmbeddingCollection(tables=made, need_indices=need_indices)


def table(name: str, *features: str, num: int = 11, dim: int = 4, **more: Any) -> dict[str, Any]:
    facts = {"name": name, "num_embeddings": num, "embedding_dim": dim}
    return facts | {"feature_names": list(features)} | more


TWO = (table("a", "x"), table("b", "y", num=30, dim=6))
ALIKE = (table("a", "x"), table("b", "y", num=30))


def kjt(
    rank: int, strides: dict[str, int], *, limit: int = 11, most: int = 4, offsets: bool = False,
    dtype: torch.dtype = torch.int64, weights: bool = False, **more: Any,
) -> Any:  # fmt: skip
    """Some samples of every feature; other ones on every rank."""
    random = torch.Generator().manual_seed(17 + rank)
    lengths = torch.randint(0, most + 1, (sum(strides.values()),), generator=random).to(dtype)
    count = int(lengths.sum())
    facts: dict[str, Any] = {
        "keys": list(strides),
        "values": torch.randint(0, limit, (count,), generator=random).to(dtype),
        "weights": None,
    }
    if weights:
        facts["weights"] = (torch.rand(count, generator=random) + 0.5).requires_grad_()
    if offsets:
        facts["offsets"] = torch.cat([torch.zeros(1, dtype=dtype), lengths.cumsum(0)])
    else:
        facts["lengths"] = lengths
    return KeyedJaggedTensor(**facts, **more)


def variable(rank: int, strides: dict[str, list[int]], samples: int | None) -> Any:
    """Features with numbers of samples of their own; `samples` are what they become."""
    inverse = None
    if samples is not None:
        random = torch.Generator().manual_seed(rank)
        lines = [
            torch.randint(0, sum(each), (samples,), generator=random) for each in strides.values()
        ]
        inverse = (list(strides), torch.stack(lines))
    return kjt(
        rank,
        {name: sum(each) for name, each in strides.items()},
        stride_per_key_per_rank=list(strides.values()),
        inverse_indices=inverse,
    )


def tensor_dict(rank: int) -> Any:
    """Nested tensors by feature, as newer data loaders make them."""
    from tensordict import TensorDict

    found = {
        name: torch.nested.nested_tensor_from_jagged(part.values(), part.offsets())
        for name, part in kjt(rank, {"x": 3, "y": 3}, most=3).to_dict().items()
    }
    return TensorDict(found, batch_size=[3])


@dataclass(frozen=True)
class Case:
    """A collection, and the batch of each rank."""

    collection: Callable[[], Any]
    batch: Callable[[int], Any]
    close: float = 1e-5
    exchange: str = "rows"
    theirs: Callable[[int], Any] | None = None  # the batch in a form that TorchRec can bear

    def for_torchrec(self, rank: int) -> Any:
        """The batch that the unsharded collection gets."""
        return (self.theirs or self.batch)(rank)


XY = {"x": 5, "y": 5}
CASES: dict[str, Case] = {
    "sum": Case(lambda: bags(*TWO), lambda r: kjt(r, XY)),
    "sum, owners return sums": Case(lambda: bags(*TWO), lambda r: kjt(r, XY), exchange="sums"),
    "mean": Case(
        lambda: bags(table("a", "x", pooling=MEAN), table("b", "y")), lambda r: kjt(r, XY)
    ),
    "weighted": Case(lambda: bags(*ALIKE, weighted=True), lambda r: kjt(r, XY, weights=True)),
    "weights that do not count": Case(lambda: bags(*ALIKE), lambda r: kjt(r, XY, weights=True)),
    "a table of two features": Case(
        lambda: bags(table("a", "x", "y"), table("b", "z")), lambda r: kjt(r, XY | {"z": 5})
    ),
    "a feature of two tables": Case(
        lambda: bags(table("a", "x", "y"), table("b", "y"), table("c", "y", pooling=MEAN)),
        lambda r: kjt(r, XY),
    ),
    "strides that are equal": Case(
        lambda: bags(*ALIKE), lambda r: variable(r, {"x": [3], "y": [3]}, 8)
    ),
    "strides that differ": Case(
        lambda: bags(*TWO), lambda r: variable(r, {"x": [2 + r], "y": [5]}, 7)
    ),
    "strides of several ranks": Case(
        lambda: bags(table("a", "x", pooling=MEAN), table("b", "y")),
        lambda r: variable(r, {"x": [2, 1 + r], "y": [1, 4]}, 6),
        exchange="sums",
    ),
    "strides that differ, shared": Case(
        lambda: bags(table("a", "x", "y"), table("b", "y")),
        lambda r: variable(r, {"y": [2], "x": [4]}, 5),
    ),
    "strides without inverse indices": Case(
        lambda: bags(*ALIKE), lambda r: variable(r, {"x": [4], "y": [4]}, None)
    ),
    "int32": Case(lambda: bags(*TWO), lambda r: kjt(r, XY, dtype=torch.int32)),
    "offsets": Case(lambda: bags(*TWO), lambda r: kjt(r, XY, offsets=True)),
    "no samples": Case(
        lambda: bags(*TWO), lambda r: kjt(r, {"x": 0, "y": 0}),
        theirs=lambda r: variable(r, {"x": [0], "y": [0]}, None),
    ),
    "no samples on one rank": Case(
        lambda: bags(*TWO), lambda r: kjt(r, {"x": 4 * r, "y": 4 * r}),
        theirs=lambda r: variable(r, {"x": [4 * r], "y": [4 * r]}, None),
    ),
    "no ids": Case(lambda: bags(*TWO), lambda r: kjt(r, XY, most=0)),
    "no ids of one feature": Case(
        lambda: bags(*TWO),
        lambda r: KeyedJaggedTensor(
            ["x", "y"], torch.tensor([1, 2 + r]), lengths=torch.tensor([0, 0, 0, 1, 0, 1])
        ),
    ),
    "fp16": Case(
        lambda: bags(table("a", "x", data_type=HALF), table("b", "y", data_type=HALF)),
        lambda r: kjt(r, XY), 4e-3,
    ),
    "another order, more features": Case(
        lambda: bags(*TWO), lambda r: kjt(r, {"q": 5, "y": 5, "p": 5, "x": 5})
    ),
    "a TensorDict": Case(lambda: bags(*TWO), tensor_dict),
    "rows": Case(lambda: rows(*ALIKE), lambda r: kjt(r, XY)),
    "rows with indices": Case(lambda: rows(*ALIKE, need_indices=True), lambda r: kjt(r, XY)),
    "rows, shared": Case(
        lambda: rows(table("a", "x", "y"), table("b", "y"), need_indices=True),
        lambda r: kjt(r, XY),
    ),
    "rows, strides that differ": Case(
        lambda: rows(*ALIKE, need_indices=True),
        lambda r: variable(r, {"x": [3, 0], "y": [1, 1 + r]}, 5),
    ),
    "rows, int32": Case(
        lambda: rows(*ALIKE, need_indices=True), lambda r: kjt(r, XY, dtype=torch.int32)
    ),
    "rows, offsets": Case(lambda: rows(*ALIKE), lambda r: kjt(r, XY, offsets=True)),
    "rows, weights that do not count": Case(
        lambda: rows(*ALIKE), lambda r: kjt(r, XY, weights=True)
    ),
    "rows, no samples": Case(
        lambda: rows(*ALIKE), lambda r: kjt(r, {"x": 0, "y": 0}),
        theirs=lambda r: variable(r, {"x": [0], "y": [0]}, None),
    ),
    "rows, no ids": Case(lambda: rows(*ALIKE), lambda r: kjt(r, XY, most=0)),
    "rows, fp16": Case(
        lambda: rows(table("a", "x", data_type=HALF)), lambda r: kjt(r, {"x": 5}), 4e-3
    ),
    "rows, another order, more features": Case(
        lambda: rows(*ALIKE), lambda r: kjt(r, {"q": 5, "y": 5, "p": 5, "x": 5})
    ),
    "rows, a TensorDict": Case(lambda: rows(*ALIKE), tensor_dict),
}  # fmt: skip


def plan_for(collection: Any, ranks: int, exchange: str = "rows") -> Plan:
    """A copy of the first rows everywhere, the others spread."""
    tables = rt.tables(collection, batch_size=8, optimizer="sgd")
    names = {feature for found in tables for feature in found.features}
    profile = make_profile([{name: [i % 11] for name in names} for i in range(40)], tables)
    common: dict[str, Any] = {"scope": "cluster", "tier": "hbm"}
    cold = {"coalesced": True} if exchange == "rows" else {"exchange": "sums"}
    bands = {
        found.name: (
            Band(start=0, stop=3, scope="device", tier="hbm"),
            Band(start=3, stop=found.num_embeddings, **common, **cold),
        )
        for found in tables
    }
    return Plan.build("by hand", profile, machine(1, ranks), bands)


def sharded(collection: Any, ranks: int, exchange: str = "rows", **options: Any) -> Any:
    """Ours, with the weights of a collection."""
    pooled = isinstance(collection, torchrec.EmbeddingBagCollection)
    kind = rt.ShardedEmbeddingBagCollection if pooled else rt.ShardedEmbeddingCollection
    plan = plan_for(collection, ranks, exchange)
    return kind.from_module(collection, plan, SGD(lr=LR), local_world_size=ranks, **options)


def flat(found: Any) -> dict[str, Any]:
    """Everything that an output says, by name."""
    if isinstance(found, torchrec.KeyedTensor):
        said = {"keys": found.keys(), "lengths": list(found.length_per_key())}
        return said | {"values": found.values()}
    facts: dict[str, Any] = {"keys": list(found)}
    for key, part in found.items():
        facts |= {f"{key} values": part.values(), f"{key} lengths": part.lengths()}
        facts[f"{key} weights"] = part.weights_or_none()
    return facts


def loss_of(found: Any) -> torch.Tensor:
    """A number that depends on every value, each in its own way."""
    total = torch.zeros(())
    for name, value in flat(found).items():
        if name.endswith("values"):
            waves = torch.arange(value.numel(), dtype=torch.float32).sin().reshape(value.shape)
            total = total + (value * waves).sum() + 0.1 * value.square().sum()
    return total


def compare(name: str, rank: int, ranks: int) -> dict[str, tuple[Any, Any]]:
    """What is found and what is expected, before and after a training step."""
    case = CASES[name]
    whole = case.collection()
    ours = sharded(whole, ranks, case.exchange)
    mine = case.batch(rank)
    found, expected = ours(features=mine), whole(case.for_torchrec(rank))
    pairs = {key: (flat(found)[key], value) for key, value in flat(expected).items()}
    ahead = flat(ours(ours.ask_ahead(case.batch(rank))))
    pairs |= {f"ahead, {key}": (ahead[key], value) for key, value in flat(expected).items()}
    optimizer = torch.optim.SGD(whole.parameters(), lr=LR)
    batches = [case.for_torchrec(r) for r in range(ranks)]
    losses = [loss_of(whole(batch)) for batch in batches]
    torch.stack(losses).mean().backward()
    optimizer.step()
    loss_of(found).backward()
    ours.optimizer.step()
    if isinstance(mine, KeyedJaggedTensor) and mine.weights_or_none() is not None:
        wanted = batches[rank].weights().grad
        pairs["gradient of weights"] = (
            mine.weights().grad,
            None if wanted is None else wanted * ranks,
        )
    trained = ours.unsharded()
    pairs |= {
        weight: (trained.state_dict()[weight], value)
        for weight, value in whole.state_dict().items()
    }
    again = flat(trained(case.for_torchrec(rank)))
    pairs |= {f"again, {key}": (again[key], v) for key, v in flat(ours(case.batch(rank))).items()}
    return {key: (_detached(x), _detached(y)) for key, (x, y) in pairs.items()}


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value
