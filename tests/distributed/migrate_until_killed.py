"""One rank of a job that migrates to and fro until somebody kills a rank."""

import sys
from datetime import timedelta

import torch.distributed as dist
from migrate_jobs import batch_of, trained, two_plans

from rowtier.torch import ShardedEmbeddings

rank, port = int(sys.argv[1]), sys.argv[2]
dist.init_process_group(
    "gloo",
    init_method=f"tcp://127.0.0.1:{port}",
    rank=rank,
    world_size=3,
    timeout=timedelta(seconds=20),
)
plans = two_plans(3)
module = ShardedEmbeddings(plans[0])
trained(module, batch_of(rank, 0))
print("training", flush=True)
at = 0
while True:
    at += 1
    module.migrate(plans[at % 2])
