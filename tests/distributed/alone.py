"""Two ranks, of which one alone asks for a state dict while the other trains on."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import torch.distributed as dist
import torch.multiprocessing as mp
from habits import Sharded, batch_of, plan_of
from pool import free_port

from rowtier.torch import LostRankError


def run(rank: int, port: int) -> None:
    """One rank."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = Sharded(plan_of(2), dist.new_group([0, 1], timeout=timedelta(seconds=3)))
    model.state_dict()  # both
    try:
        if rank == 0:
            model.state_dict()
        else:
            model(batch_of(0, rank))
    except LostRankError as error:
        print(f"rank {rank}: {error}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    mp.spawn(run, (free_port(),), nprocs=2)
