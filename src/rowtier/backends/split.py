"""An `EmbeddingBagCollection` as two: hot rows copied to every device, cold rows kept once.

TorchRec places whole tables, so a table whose hot rows have another home than its cold rows
becomes two tables, with ids renumbered in front and the outputs added behind. What travels is
not less by itself: a cold row-wise table sends as many output bytes as the whole one did. It
is the lookups that move: those of hot rows are served at home.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torchrec
from torch import nn

from rowtier.backends.halves import COLD, HOT, INSTEAD, TableHalves
from rowtier.backends.modules import check_same, tables
from rowtier.backends.read import even_heat
from rowtier.backends.write import to_plan
from rowtier.band import Band
from rowtier.cluster import DEVICE, Cluster
from rowtier.errors import UserError
from rowtier.plan.plan import Plan
from rowtier.tables import Table, Tables
from rowtier.units import show_bytes


class SplitBags(nn.Module):  # type: ignore[misc]
    """Takes and gives what the collection did that it stands for; TorchRec shards its halves.

    `hot` is to be data-parallel, so its weights are updated by the optimizer of the dense part;
    `cold` is row-wise or table-wise and updated by TorchRec's fused one.
    """

    def __init__(self, bags: Any, parts: Sequence[TableHalves], cluster: Cluster):
        super().__init__()
        self.parts, self.cluster = tuple(parts), cluster
        self._keys, self._dims = list(bags._embedding_names), list(bags._lengths_per_embedding)
        self._weighted = bags.is_weighted()
        weights = {name.split(".")[-2]: w for name, w in bags.named_parameters()}
        device = next(iter(weights.values())).device
        for which in (HOT, COLD):
            halves = [t for part in parts if (t := part.half(which)) is not None]
            made = None if not halves else _bags(halves, device, self._weighted)
            self.add_module(which, made)
        for part in parts:
            home = torch.device("cpu") if device.type == "meta" else device
            places = torch.from_numpy(part.places).to(home)
            self.register_buffer(f"places_{part.table.name}", places, persistent=False)
            if device.type != "meta":
                self._take_weights(part, weights[part.table.name])

    def _take_weights(self, part: TableHalves, weight: Any) -> None:
        places = torch.from_numpy(part.places).to(weight.device)
        with torch.no_grad():
            for which, mine in ((HOT, places < part.hot), (COLD, places >= part.hot)):
                if part.half(which) is None:
                    continue
                target = getattr(self, which).embedding_bags[f"{part.table.name}_{which}"].weight
                if which == COLD:
                    target.zero_()  # rows that only fill a block
                first = 0 if which == HOT else part.hot
                target[places[mine] - first] = weight[mine]

    def forward(self, features: Any) -> Any:
        """The pooled embeddings, by the keys of the collection that this stands for."""
        given = features.to_dict()
        asked: dict[str, list[Any]] = {HOT: [], COLD: []}
        lengths = []
        for part in self.parts:
            places = getattr(self, f"places_{part.table.name}")
            for feature in part.table.features:
                jagged = given[feature]
                lengths.append(jagged.lengths())
                where = places[jagged.values()]
                for which, mine in ((HOT, where < part.hot), (COLD, where >= part.hot)):
                    if part.half(which) is not None:
                        first = 0 if which == HOT else part.hot
                        key = f"{part.table.name}:{feature}"
                        asked[which].append((key, *_only(jagged, where - first, mine)))
        found = {which: self._looked_up(which, asks) for which, asks in asked.items() if asks}
        return self._added(found, lengths)

    def _looked_up(self, which: str, asks: list[Any]) -> Any:
        keys, ids, lengths, weights = zip(*asks, strict=True)
        batch = torchrec.KeyedJaggedTensor.from_lengths_sync(
            list(keys),
            torch.cat(ids),
            torch.cat(lengths),
            torch.cat(weights) if self._weighted else None,
        )
        return getattr(self, which)(batch)

    def _added(self, found: dict[str, Any], lengths: list[Any]) -> Any:
        outputs = {which: pooled.to_dict() for which, pooled in found.items()}
        columns, index = [], 0
        for part in self.parts:
            for feature in part.table.features:
                key = f"{part.table.name}:{feature}"
                halves = [output[key] for output in outputs.values() if key in output]
                total = torch.stack(halves).sum(dim=0) if len(halves) > 1 else halves[0]
                if part.table.pooling == "mean":
                    total = total / lengths[index].clamp(min=1).unsqueeze(1)
                columns.append(total)
                index += 1
        return torchrec.KeyedTensor(self._keys, self._dims, torch.cat(columns, dim=1))

    def sharding_plan(self, path: str = "", device: str | None = None) -> Any:
        """TorchRec's plan for both halves, if this module stands at `path` in the model."""
        bands: dict[str, tuple[Band, ...]] = {}
        halves: list[Table] = []
        fast = self.cluster.device.tiers[0].name
        for part in self.parts:
            for which in (HOT, COLD):
                table = part.half(which)
                if table is None:
                    continue
                band = Band(start=0, stop=table.num_embeddings, scope=DEVICE, tier=fast)
                if which == COLD:
                    assert part.cold is not None
                    home = {"members": part.cold.members, "tier": part.cold.tier}
                    band = band.model_copy(
                        update={**home, "scope": self.cluster.top, "order": "blocks"}
                    )
                halves.append(table)
                bands[table.name] = (band,)
        known = even_heat(Tables(batch_size=1, tables=tuple(halves)))
        made = to_plan(Plan.build("split", known, self.cluster, bands), self, device)
        prefix = f"{path}." if path else ""
        made.plan = {prefix + name: part for name, part in made.plan.items()}
        return made

    def costs(self, batch_size: int) -> str:
        """What the split costs in output bytes, in one sentence."""
        both = [p for p in self.parts if p.hot and p.cold is not None]
        row_bytes = 4 * sum(p.table.embedding_dim * len(p.table.features) for p in both)
        others = self.cluster.num_devices - 1
        return (
            f"{len(both)} of {len(self.parts)} tables have two halves: each device makes "
            f"{show_bytes(batch_size * row_bytes)} more of outputs a step, which stay there; "
            f"cold halves cut by row send {show_bytes(others * batch_size * row_bytes)} of sums "
            "per device each way, as the whole tables would"
        )


def split(module: Any, plan: Plan) -> SplitBags:
    """Rewrite an `EmbeddingBagCollection` so that TorchRec keeps a plan's hot and cold rows apart.

    Weights are kept, and so are the keys of what comes out. `sharding_plan` of what is returned
    goes to DistributedModelParallel.
    """
    if isinstance(module, torchrec.EmbeddingCollection):
        raise UserError(
            "an EmbeddingCollection is not pooled, so outputs of two halves cannot be added, and "
            f"TorchRec's copies of it do not run on CPUs: {INSTEAD}"
        )
    if not isinstance(module, torchrec.EmbeddingBagCollection):
        raise UserError(
            f"split takes an EmbeddingBagCollection and this is a {type(module).__name__}: give "
            "the collection itself, and put what is returned in its place"
        )
    found = tables(module)
    check_same(found, plan.profile.tables)
    parts = [TableHalves.of(plan.profile[table.name].table, plan) for table in found]
    return SplitBags(module, parts, plan.cluster)


def _bags(halves: Sequence[Table], device: Any, weighted: bool) -> Any:
    configs = [
        torchrec.EmbeddingBagConfig(
            name=table.name,
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            feature_names=list(table.features),
            pooling=torchrec.PoolingType.SUM,
            data_type=getattr(torchrec.DataType, table.dtype.upper()),
        )
        for table in halves
    ]
    return torchrec.EmbeddingBagCollection(tables=configs, device=device, is_weighted=weighted)


def _only(jagged: Any, ids: Any, mine: Any) -> tuple[Any, Any, Any]:
    """The ids of one half, how many each sample has, and their weights."""
    lengths = jagged.lengths()
    ends = torch.cumsum(lengths, dim=0)
    counted = torch.nn.functional.pad(torch.cumsum(mine.to(lengths.dtype), dim=0), (1, 0))
    kept = counted[ends] - counted[ends - lengths]
    weights = jagged.weights_or_none()
    return ids[mine], kept, None if weights is None else weights[mine]
