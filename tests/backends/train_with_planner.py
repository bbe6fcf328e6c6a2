"""Two gloo processes train a TorchRec model with RowtierPlanner's plan; losses go to a folder."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torchrec
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel

sys.path.insert(0, str(Path(__file__).parents[1]))

from backends.torchrec_cases import machine, statistics, tables

import rowtier.torchrec as rt

BATCH = 16
WANTED = tables(
    (4000, 32, "sum"), (300, 32, "sum"), (9000, 32, "sum"), (20, 32, "sum"), (500, 32, "none")
)
LEARNED = tables(*[(50, 32, "sum")] * 6).tables[-1].model_copy(update={"weights": "learned"})
ALL = WANTED.model_copy(update={"tables": (*WANTED.tables, LEARNED)})


def alike(weight: torch.Tensor) -> None:
    torch.nn.init.constant_(weight, 0.05)


def rising(weight: torch.Tensor) -> None:
    with torch.no_grad():
        weight.copy_(torch.linspace(-1, 1, weight.numel()).view_as(weight))


class Model(torch.nn.Module):
    """Pooled tables, one of them with weights, and a sequence, summed up by one dense layer."""

    def __init__(self, device: torch.device):
        super().__init__()
        facts = [
            {
                "name": t.name,
                "num_embeddings": t.num_embeddings,
                "embedding_dim": t.embedding_dim,
                "feature_names": list(t.features),
                "init_fn": rising if t is LEARNED else alike,  # drawn anew for shards
            }
            for t in ALL
        ]
        bags = [torchrec.EmbeddingBagConfig(**one) for one in facts[:-2]]
        self.bags = torchrec.EmbeddingBagCollection(tables=bags, device=device)
        rows = [torchrec.EmbeddingConfig(**facts[-2])]
        self.weighted = torchrec.EmbeddingBagCollection(
            tables=[torchrec.EmbeddingBagConfig(**facts[-1])], is_weighted=True, device=device
        )
        self.rows = torchrec.EmbeddingCollection(tables=rows, device=device)
        self.dense = torch.nn.Linear(32, 1)
        torch.nn.init.constant_(self.dense.weight, 0.1)
        torch.nn.init.zeros_(self.dense.bias)

    def forward(
        self, features: torchrec.KeyedJaggedTensor, weighted: torchrec.KeyedJaggedTensor
    ) -> torch.Tensor:
        """The mean square of what the dense layer makes of all embeddings."""
        pooled = self.bags(features).values().view(BATCH, -1, 32).sum(dim=1)
        pooled = pooled + self.weighted(weighted).values()
        history = self.rows(features)["f4"].values().sum(dim=0)
        return (self.dense(pooled + history) ** 2).mean()


def batch(rank: int) -> torchrec.KeyedJaggedTensor:
    random = torch.Generator().manual_seed(rank)
    lengths = torch.randint(0, 4, (len(WANTED) * BATCH,), generator=random)
    counts = lengths.view(len(WANTED), BATCH).sum(dim=1).tolist()
    ids = [
        torch.randint(0, table.num_embeddings, (count,), generator=random)
        for table, count in zip(WANTED, counts, strict=True)
    ]
    keys = [table.features[0] for table in WANTED]
    return torchrec.KeyedJaggedTensor.from_lengths_sync(keys, torch.cat(ids), lengths)


def weighted_batch(rank: int) -> tuple[torchrec.KeyedJaggedTensor, torch.Tensor]:
    """Two ids a sample, with weights that want gradients; DDP replaces those inside."""
    random = torch.Generator().manual_seed(100 + rank)
    ids = torch.randint(0, LEARNED.num_embeddings, (2 * BATCH,), generator=random)
    weights = torch.rand(2 * BATCH, generator=random, requires_grad=True)
    lengths = torch.full((BATCH,), 2)
    keys = list(LEARNED.features)
    return torchrec.KeyedJaggedTensor.from_lengths_sync(keys, ids, lengths, weights), weights


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, cpu = dist.get_rank(), torch.device("cpu")
    features, (weighted, weights) = batch(rank), weighted_batch(rank)
    loss = Model(cpu)(features, weighted)
    loss.backward()
    alone = {"loss": float(loss), "of_weights": weights.grad}
    model = Model(torch.device("meta"))
    model.dense = Model(cpu).dense
    sharders = [
        EmbeddingBagCollectionSharder(fused_params={"learning_rate": 0.05}),
        EmbeddingCollectionSharder(fused_params={"learning_rate": 0.05}),
    ]
    planner = rt.RowtierPlanner(statistics(ALL), machine(1, 2, fast="ram"))
    plan = planner.collective_plan(model, sharders, dist.GroupMember.WORLD)
    sharded = DistributedModelParallel(model, device=cpu, plan=plan, sharders=sharders)
    losses, of_weights = [], []
    for _ in range(2):
        weighted, weights = weighted_batch(rank)
        loss = sharded(features, weighted)
        loss.backward()
        losses.append(float(loss))
        of_weights.append(weights.grad)
    kinds = {
        name: (s.sharding_type, s.compute_kernel)
        for part in plan.plan.values()
        for name, s in part.items()
    }
    found = {"alone": alone, "sharded": losses, "of_weights": of_weights, "kinds": kinds}
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)  # gloo's threads abort a process that ends while they drop tensors (torch 2.13)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
