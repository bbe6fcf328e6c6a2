"""Two gloo processes train a TorchRec model with RowtierPlanner's plan; losses go to a folder."""

import sys
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


def alike(weight: torch.Tensor) -> None:
    torch.nn.init.constant_(weight, 0.05)


class Model(torch.nn.Module):
    """Pooled tables and a sequence, summed up by one dense layer."""

    def __init__(self, device: torch.device):
        super().__init__()
        facts = [
            {
                "name": t.name,
                "num_embeddings": t.num_embeddings,
                "embedding_dim": t.embedding_dim,
                "feature_names": list(t.features),
                "init_fn": alike,  # TorchRec draws the weights of shards anew
            }
            for t in WANTED
        ]
        bags = [torchrec.EmbeddingBagConfig(**one) for one in facts[:-1]]
        self.bags = torchrec.EmbeddingBagCollection(tables=bags, device=device)
        rows = [torchrec.EmbeddingConfig(**facts[-1])]
        self.rows = torchrec.EmbeddingCollection(tables=rows, device=device)
        self.dense = torch.nn.Linear(32, 1)
        torch.nn.init.constant_(self.dense.weight, 0.1)
        torch.nn.init.zeros_(self.dense.bias)

    def forward(self, features: torchrec.KeyedJaggedTensor) -> torch.Tensor:
        """The mean square of what the dense layer makes of all embeddings."""
        pooled = self.bags(features).values().view(BATCH, -1, 32).sum(dim=1)
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


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, cpu = dist.get_rank(), torch.device("cpu")
    features = batch(rank)
    alone = float(Model(cpu)(features))
    model = Model(torch.device("meta"))
    model.dense = Model(cpu).dense
    sharders = [
        EmbeddingBagCollectionSharder(fused_params={"learning_rate": 0.05}),
        EmbeddingCollectionSharder(fused_params={"learning_rate": 0.05}),
    ]
    planner = rt.RowtierPlanner(statistics(WANTED), machine(1, 2, fast="ram"))
    plan = planner.collective_plan(model, sharders, dist.GroupMember.WORLD)
    sharded = DistributedModelParallel(model, device=cpu, plan=plan, sharders=sharders)
    losses = []
    for _ in range(2):
        loss = sharded(features)
        loss.backward()
        losses.append(float(loss))
    kinds = {
        name: (s.sharding_type, s.compute_kernel)
        for part in plan.plan.values()
        for name, s in part.items()
    }
    torch.save({"alone": alone, "sharded": losses, "kinds": kinds}, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
