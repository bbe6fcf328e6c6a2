"""Two gloo processes train hot and cold halves of tables; losses go to a folder."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel

sys.path.insert(0, str(Path(__file__).parents[1]))

from backends.test_torchrec_split import bags, batch, hot_and_cold

import rowtier.torchrec as rt


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, cpu = dist.get_rank(), torch.device("cpu")
    whole = bags()
    alone = float((whole(batch()).values() ** 2).mean())
    halves = rt.split(whole, hot_and_cold({"offset": 1}))
    weights = {name: value.clone() for name, value in halves.state_dict().items()}
    plan = halves.sharding_plan(device="cpu")
    sharders = [EmbeddingBagCollectionSharder(fused_params={"learning_rate": 0.5})]
    model = DistributedModelParallel(halves, device=cpu, plan=plan, sharders=sharders)
    for name, value in model.state_dict().items():  # TorchRec draws the weights of shards anew
        for shard in value.local_shards() if hasattr(value, "local_shards") else [None]:
            if shard is None:
                value.data.copy_(weights[name])
            else:
                (row, _), (rows, _) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                shard.tensor.copy_(weights[name][row : row + rows])
    dense = torch.optim.SGD([w for w in model.parameters() if w.requires_grad], lr=0.5)
    losses = []
    for _ in range(2):
        dense.zero_grad()
        loss = (model(batch()).values() ** 2).mean()
        loss.backward()
        dense.step()
        losses.append(float(loss.detach()))
    torch.save({"alone": alone, "sharded": losses}, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
