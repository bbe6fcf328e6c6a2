"""TorchRec's DLRM, trained four ways on the same processes: losses, milliseconds, bytes.

1. TorchRec's own planner, 2. `RowtierPlanner` in its place, 3. `rowtier.torchrec.split`, whose
hot rows are copied and whose cold rows TorchRec shards, 4. `ShardedEmbeddingBagCollection` with a
joint plan. All begin with the same weights, train with SGD on 2 and on 4 gloo processes (CPUs),
and take turns at every step.

    largest_difference      of any loss of any way from that of the unsharded model
    if_tables_were_frozen   the same if nobody trained the tables: were it as small, equal losses
                            would say nothing

Bytes of the embeddings only, sent by all processes in a step: those of way 4 are counted,
TorchRec's are computed from its layout (8 bytes an id, fp32 sums and gradients; gloo's
reduce-scatter moves twice what it must; copies are kept equal by all-reduce).
"""

from __future__ import annotations

import os
import socket
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from harness.form import Measured
from harness.form import run as run_benchmark
from harness.torchrec_ways.batches import NUM_DENSE, POOLING, ROWS, batch_of, joined

import rowtier
import rowtier.torchrec as rt
from rowtier.torch import SGD

DIM = 16
OURS = "ShardedEmbeddingBagCollection"
HOLDER = "sparse_arch.embedding_bag_collection"  # where a DLRM has its tables
WARM_UP = 3  # steps whose time does not count
HOT_ROWS, HOT_SHARE = 100, 0.02  # rows that `split` copies: so many, or this share of a table
PROFILED = 1_000_000  # the first of the steps that are profiled, never trained on
# TorchRec shards pooled tables so on CPUs; further kinds need several hosts.
TYPES = ["table_wise", "row_wise", "column_wise", "data_parallel"]
KERNELS = ["fused", "dense"]  # `dense` for copies; kernels with caches need CUDA
# One thread a process, and a heap that keeps what it got: the same for all four.
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "268435456",
}


@dataclass(frozen=True)
class Settings:
    """How long and how large."""

    steps: int = 20
    batch_size: int = 512  # samples a process and step
    lr: float = 5.0


def dlrm() -> Any:
    """TorchRec's model, the same weights every time."""
    import torchrec
    from torchrec.models.dlrm import DLRM

    torch.manual_seed(0)
    configs = [
        torchrec.EmbeddingBagConfig(
            name=f"t{i}", num_embeddings=rows, embedding_dim=DIM, feature_names=[f"f{i}"]
        )
        for i, rows in enumerate(ROWS)
    ]
    bags = torchrec.EmbeddingBagCollection(tables=configs)
    return DLRM(bags, NUM_DENSE, [32, DIM], [32, 1])


class Way:
    """One way to train the model."""

    def __init__(self, name: str, model: Any, lr: float):
        self.name, self.model = name, model
        # Tables that TorchRec updates in the backward pass have no gradients here.
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.optimizers: list[Any] = [torch.optim.SGD(weights, lr=lr)]
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.choice = ""
        self.bytes_per_step: Callable[[int], float] = lambda _steps: 0.0

    def step(self, dense: Any, features: Any, labels: Any) -> None:
        """Look up, forward, backward, update."""
        began = time.perf_counter()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        logits = self.model(dense, features).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        if dist.is_initialized():
            dist.barrier()
        self.seconds.append(time.perf_counter() - began)
        self.losses.append(float(loss.detach()))


class Job:
    """This process among all."""

    def __init__(self, rank: int, size: int, args: Settings):
        self.rank, self.size, self.args = rank, size, args
        self.cluster = rowtier.Cluster.local(size)
        profiled = [batch_of(PROFILED + i, 0, args.batch_size).features for i in range(20)]
        bags = dlrm().get_submodule(HOLDER)
        self.profile = rowtier.make_profile(profiled, rt.tables(bags, args.batch_size, "sgd"))
        self.batches = [batch_of(step, rank, args.batch_size) for step in range(args.steps)]

    def ways(self) -> list[Way]:
        """All four, with the same weights."""
        return [self._torchrec(), self._planner(), self._split(), self._ours()]

    def _torchrec(self) -> Way:
        from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
        from torchrec.distributed.planner.types import ParameterConstraints

        topology = Topology(self.size, "cpu", local_world_size=self.size)
        wishes = {
            f"t{i}": ParameterConstraints(
                sharding_types=TYPES, compute_kernels=KERNELS, pooling_factors=[float(pooling)]
            )
            for i, pooling in enumerate(POOLING)
        }
        planner = EmbeddingShardingPlanner(
            topology=topology, batch_size=self.args.batch_size, constraints=wishes, stats=[]
        )
        model = dlrm()
        plan = planner.collective_plan(model, self._sharders(), dist.GroupMember.WORLD)
        return self._sharded("TorchRec's planner", model, plan)

    def _planner(self) -> Way:
        from torchrec.distributed.planner.types import ParameterConstraints

        wishes = {f"t{i}": ParameterConstraints(sharding_types=TYPES) for i in range(len(ROWS))}
        planner = rt.RowtierPlanner(self.profile, self.cluster, wishes)
        model = dlrm()
        plan = planner.collective_plan(model, self._sharders(), dist.GroupMember.WORLD)
        return self._sharded("RowtierPlanner", model, plan)

    def _split(self) -> Way:
        model = dlrm()
        halves = rt.split(model.get_submodule(HOLDER), self._hot_and_cold())
        model.sparse_arch.embedding_bag_collection = halves
        way = self._sharded("split", model, halves.sharding_plan(HOLDER, "cpu"), halves.parts)
        hot = sum(part.hot for part in halves.parts)
        way.choice = f"{hot:,} hot rows copied, the others {way.choice}"
        return way

    def _hot_and_cold(self) -> rowtier.Plan:
        """Copies of the hottest rows; the others of each table on one process."""
        cluster, bands = self.cluster, {}
        tier = cluster.device.tiers[0].name
        for index, rows in enumerate(ROWS):
            hot = min(rows, max(HOT_ROWS, round(rows * HOT_SHARE)))
            placed = [rowtier.Band(start=0, stop=hot, scope="device", tier=tier)]
            if hot < rows:
                home: dict[str, Any] = {
                    "scope": cluster.top,
                    "members": (index % self.size,),
                    "tier": tier,
                }
                placed.append(rowtier.Band(start=hot, stop=rows, **home))
            bands[f"t{index}"] = tuple(placed)
        return rowtier.Plan.build("hot and cold", self.profile, cluster, bands)

    def _ours(self) -> Way:
        from torchrec.distributed.model_parallel import DistributedModelParallel
        from torchrec.distributed.types import ShardingPlan

        model, plan = dlrm(), rowtier.make_plan(self.profile, self.cluster)
        tables = rt.ShardedEmbeddingBagCollection.from_module(
            model.get_submodule(HOLDER), plan, SGD(lr=self.args.lr)
        )
        model.sparse_arch.embedding_bag_collection = tables
        parallel = DistributedModelParallel(
            model, device=torch.device("cpu"), plan=ShardingPlan({})
        )
        way = Way(OURS, parallel, self.args.lr)
        way.optimizers.append(tables.optimizer)
        way.choice = f"{plan.method}, {sum(len(bands) for _, bands in plan)} bands"

        def counted(steps: int) -> float:
            return float(tables.count().links[:, :, 0].sum()) / steps

        way.bytes_per_step = counted
        return way

    def _sharders(self) -> list[Any]:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

        fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": self.args.lr}
        return [EmbeddingBagCollectionSharder(fused_params=fused)]

    def _sharded(self, name: str, model: Any, plan: Any, parts: Any = ()) -> Way:
        """A model that TorchRec shards, with the weights it had before."""
        from torchrec.distributed.model_parallel import DistributedModelParallel

        weights = {key: value.clone() for key, value in model.state_dict().items()}
        parallel = DistributedModelParallel(
            model, device=torch.device("cpu"), plan=plan, sharders=self._sharders()
        )
        load(parallel, weights)
        way = Way(name, parallel, self.args.lr)
        found = {table: how for part in plan.plan.values() for table, how in part.items()}
        kinds = [how.sharding_type for table, how in found.items() if not table.endswith("_hot")]
        way.choice = ", ".join(f"{kinds.count(kind)} {kind}" for kind in TYPES if kind in kinds)
        rows = {key.split(".")[-2]: len(value) for key, value in weights.items()}
        facts = Layout(rows, self._lookups(parts), self.args.batch_size, self.size)
        sent = sum(facts.sent(table, how) for table, how in found.items())
        way.bytes_per_step = lambda _steps: sent
        return way

    def _lookups(self, parts: Any) -> dict[str, float]:
        """Lookups of a step by table, over all processes; of halves if there are parts."""
        hot = {part.table.name: (part.places, part.hot) for part in parts}
        found: dict[str, float] = {}
        for batch in self.batches:
            for name, (ids, _) in batch.features.items():
                table = name.replace("f", "t")
                found[table] = found.get(table, 0) + len(ids)
                if table in hot:
                    places, copied = hot[table]
                    cold = int((places[ids] >= copied).sum())
                    found[f"{table}_cold"] = found.get(f"{table}_cold", 0) + cold
        scale = self.size / len(self.batches)  # other processes draw from the same distribution
        return {table: count * scale for table, count in found.items()}

    def run(self) -> dict[str, Any]:
        """Losses, times and bytes of all ways."""
        ways = self.ways()
        for batch in self.batches:
            for way in ways:
                features = batch.keyed
                dist.barrier()
                way.step(batch.dense, features, batch.labels)
        found = [self._facts(way) for way in ways]
        # DDP first: if it were the last to hold the group, it would wait for gloo's threads
        # while they wait for the interpreter, now and then for ever (torch 2.13).
        ways.clear()
        return {"ranks": self.size, "ways": found, **self._compared(found)}

    def _facts(self, way: Way) -> dict[str, Any]:
        losses = torch.tensor(way.losses, dtype=torch.float64)
        dist.all_reduce(losses)
        return {
            "way": way.name,
            "choice": way.choice,
            "step_ms": 1e3 * statistics.median(way.seconds[WARM_UP:] or way.seconds),
            "bytes_per_step": way.bytes_per_step(len(way.losses)),
            "bytes_are": "counted" if way.name == OURS else "computed",
            "loss": (losses / self.size).tolist(),
        }

    def _compared(self, found: list[dict[str, Any]]) -> dict[str, float]:
        """Losses against those of the unsharded model, on the batches of all processes at once.

        Beside the largest difference, what it would be if nobody trained the tables: if that
        were as small, equal losses would say nothing.
        """
        if self.rank:
            return {}
        expected, frozen = self._alone(), self._alone(train_tables=False)
        apart = [
            abs(x - y) for facts in found for x, y in zip(facts["loss"], expected, strict=True)
        ]
        without = [abs(x - y) for x, y in zip(frozen, expected, strict=True)]
        return {"largest_difference": max(apart), "if_tables_were_frozen": max(without)}

    def _alone(self, train_tables: bool = True) -> list[float]:
        """Losses of the unsharded model."""
        model, losses = dlrm(), []
        model.get_submodule(HOLDER).requires_grad_(train_tables)
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=self.args.lr)
        for step in range(self.args.steps):
            batch = joined([batch_of(step, r, self.args.batch_size) for r in range(self.size)])
            optimizer.zero_grad()
            logits = model(batch.dense, batch.keyed).squeeze(1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses


def load(model: Any, weights: dict[str, torch.Tensor]) -> None:
    """Give a sharded model weights: TorchRec draws those of its shards anew."""
    for name, value in model.state_dict().items():
        if not hasattr(value, "local_shards"):
            value.data.copy_(weights[name])
            continue
        for shard in value.local_shards():
            (row, column), (rows, columns) = (
                shard.metadata.shard_offsets,
                shard.metadata.shard_sizes,
            )
            part = weights[name][row : row + rows, column : column + columns]
            shard.tensor.detach().copy_(part)


@dataclass(frozen=True)
class Layout:
    """What TorchRec sends follows from how it lays tables out."""

    rows: dict[str, int]
    lookups: dict[str, float]  # of a step, over all processes
    batch_size: int
    size: int

    def sent(self, table: str, how: Any) -> float:
        """Bytes for a table, by all processes in a step."""
        others = self.size - 1
        if how.sharding_type == "data_parallel":
            return 2.0 * others * self.rows[table] * DIM * 4
        pooled = others * self.batch_size * DIM * 4  # one way, where one process has a whole bag
        ids = self.lookups[table] * 8 * others / self.size
        if how.sharding_type == "row_wise":
            return ids + 3 * self.size * pooled
        return ids * len(how.sharding_spec.shards) + 2 * pooled  # all columns want all ids


def process(rank: int, size: int, port: int, args: Settings, queue: Any) -> None:
    """One of the processes; the first gives the figures back."""
    warnings.simplefilter("ignore")  # fbgemm warns of every kernel that its CPU build leaves out
    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = str(size)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size
    )
    found = Job(rank, size, args).run()
    dist.barrier()
    dist.destroy_process_group()
    if not rank:
        queue.put(found)


def trained(size: int, args: Settings) -> dict[str, Any]:
    """Train on so many processes."""
    import torch.multiprocessing as mp

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(SETTINGS)  # malloc reads its own when a process starts
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(process, args=(size, port, args, queue), nprocs=size)
    found: dict[str, Any] = queue.get()
    return found


def measure(quick: bool) -> Measured:
    """A row per way and number of processes."""
    settings = Settings(6, 64) if quick else Settings()
    found = [trained(size, settings) for size in ((2,) if quick else (2, 4))]
    rows = [
        {
            "processes": facts["ranks"],
            **{key: way[key] for key in ("way", "step_ms", "bytes_per_step", "bytes_are")},
            "last_loss": way["loss"][-1],
            "choice": way["choice"],
        }
        for facts in found
        for way in facts["ways"]
    ]
    names = ("largest_difference", "if_tables_were_frozen")
    return Measured(rows, {name: max(facts[name] for facts in found) for name in names})


if __name__ == "__main__":
    run_benchmark("torchrec_ways", measure, goals={"largest_difference": ("<=", 1e-5)})
