"""TorchRec's DLRM, unchanged, with its tables where a rowtier plan puts them.

    torchrun --nproc-per-node 2 examples/torchrec_dlrm.py

Trains under two of TorchRec's pipelines and with two optimizers, and compares every loss with that
of the model as TorchRec has it unsharded, on the batches of all processes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torchrec
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec.datasets.utils import Batch
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline import TrainPipelinePT2, TrainPipelineSparseDist
from torchrec.distributed.train_pipeline.train_pipelines import TorchCompileConfig
from torchrec.distributed.types import ShardingPlan
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

import rowtier
import rowtier.torchrec as rt

ROWS = (20_000, 8_000, 1_000, 100)
DENSE, DIM, SAMPLES, STEPS, LR = 13, 16, 64, 20, 1.0
CPU = torch.device("cpu")
SETTINGS: dict[Any, dict[str, float]] = {
    torch.optim.SGD: {"lr": 20.0},
    RowWiseAdagrad: {"lr": 0.2, "eps": 1e-8},
}


def batch_of(step: int, ranks: list[int]) -> Batch:
    """What some processes read in a step: skewed ids, clicks that follow them."""
    parts = []
    for rank in ranks:
        random = torch.Generator().manual_seed(1000 * step + rank)
        dense = torch.randn(SAMPLES, DENSE, generator=random)
        lengths = torch.randint(0, 6, (len(ROWS), SAMPLES), generator=random)
        ids, odds = [], dense[:, 0].clone()
        for length, rows in zip(lengths, ROWS, strict=True):
            ids.append((torch.rand(int(length.sum()), generator=random) ** 6 * rows).long())
            odds.index_add_(0, torch.arange(SAMPLES).repeat_interleave(length), ids[-1].sin())
        parts.append((dense, lengths, ids, (odds > 0).long()))
    features = torchrec.KeyedJaggedTensor.from_lengths_sync(
        keys=[f"f{i}" for i in range(len(ROWS))],
        values=torch.cat([part[2][i] for i in range(len(ROWS)) for part in parts]),
        lengths=torch.cat([part[1] for part in parts], dim=1).flatten(),
    )
    dense, labels = (torch.cat([part[i] for part in parts]) for i in (0, 3))
    return Batch(dense, features, labels)


def tables(optimizer: Any) -> Any:
    """TorchRec's collection; how its tables are trained is said as for TorchRec."""
    torch.manual_seed(0)
    bags = torchrec.EmbeddingBagCollection(
        tables=[
            torchrec.EmbeddingBagConfig(
                name=f"t{i}", num_embeddings=rows, embedding_dim=DIM, feature_names=[f"f{i}"]
            )
            for i, rows in enumerate(ROWS)
        ]
    )
    apply_optimizer_in_backward(optimizer, bags.parameters(), SETTINGS[optimizer])
    return bags


def model_of(bags: Any) -> DLRMTrain:
    """TorchRec's model around any collection; the dense part begins the same every time."""
    torch.manual_seed(1)
    return DLRMTrain(DLRM(bags, DENSE, [32, DIM], [32, 1]))


def dense_optimizer(model: Any) -> KeyedOptimizerWrapper:
    """For what is trained after the backward pass."""
    weights = dict(in_backward_optimizer_filter(model.named_parameters()))
    return KeyedOptimizerWrapper(weights, lambda given: torch.optim.SGD(given, lr=LR))


def plan_for(bags: Any) -> rowtier.Plan:
    """Profile some data, and plan for as many processes as there are."""
    data = [batch_of(STEPS + i, [0]).sparse_features for i in range(20)]
    profile = rowtier.make_profile(data, rt.tables(bags, batch_size=SAMPLES))
    return rowtier.make_plan(profile, rowtier.Cluster.local(dist.get_world_size()))


def sharded(bags: Any, plan: rowtier.Plan, pipeline: str) -> list[float]:
    """Losses of the model with tables under a plan."""
    ours = rt.ShardedEmbeddingBagCollection.from_module(bags, plan)
    model = DistributedModelParallel(model_of(ours), device=CPU, plan=ShardingPlan({}))
    both = CombinedOptimizer([model.fused_optimizer, dense_optimizer(model)])
    if pipeline == "PT2":
        compiled = TorchCompileConfig(compile_on_iter=0, backend="aot_eager")
        train: Any = TrainPipelinePT2(model, both, CPU, compiled)
    else:
        train = TrainPipelineSparseDist(model, both, CPU)
    batches = iter([batch_of(step, [dist.get_rank()]) for step in range(STEPS)])
    losses = torch.stack([train.progress(batches)[0] for _ in range(STEPS)])
    dist.all_reduce(losses)
    return [float(loss) for loss in losses / dist.get_world_size()]


def alone(optimizer: Any) -> list[float]:
    """Losses of the unsharded model, on the batches of all processes."""
    model, losses = model_of(tables(optimizer)), []
    dense = dense_optimizer(model)
    for step in range(STEPS):
        loss, _ = model(batch_of(step, list(range(dist.get_world_size()))))
        dense.zero_grad()
        loss.backward()  # the tables are updated in here
        dense.step()
        losses.append(float(loss.detach()))
    return losses


def main() -> None:
    """Train all ways, and say how far losses are apart."""
    dist.init_process_group("gloo")
    for optimizer in SETTINGS:
        expected, bags = alone(optimizer), tables(optimizer)
        plan = plan_for(bags)
        for pipeline in ("SparseDist", "PT2"):
            found = sharded(bags, plan, pipeline)
            apart = max(abs(x / y - 1) for x, y in zip(found, expected, strict=True))
            if not dist.get_rank():
                print(f"{optimizer.__name__:15} TrainPipeline{pipeline:10} loss {found[0]:.5f} → "
                      f"{found[-1]:.5f}, within {apart:.1e} of the unsharded model")  # fmt: skip
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
