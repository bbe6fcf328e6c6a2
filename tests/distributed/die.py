"""One rank of a job that trains until somebody kills a rank."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from test_module import plan_of

from rowtier.torch import SGD, ShardedEmbeddings

rank, port = int(sys.argv[1]), sys.argv[2]
dist.init_process_group(
    "gloo",
    init_method=f"tcp://127.0.0.1:{port}",
    rank=rank,
    world_size=3,
    timeout=timedelta(seconds=20),
)
module = ShardedEmbeddings(plan_of(shape=(3,), coalesced=True), SGD(lr=0.1))
print("training", flush=True)
while True:
    module({"f": torch.randint(0, 20, (4, 2))})["f"].sum().backward()
    module.optimizer.step()
