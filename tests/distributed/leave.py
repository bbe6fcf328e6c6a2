"""One rank of a job that ends while another thread still needs the interpreter."""

import sys
import threading
import time

import torch
import torch.distributed as dist
from test_module import plan_of

from rowtier.torch import SGD, ShardedEmbeddings

sys.setswitchinterval(100)  # no thread gets the interpreter unless this one waits
rank, port = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
module = ShardedEmbeddings(plan_of(shape=(2,), coalesced=True), SGD(lr=0.1))
module({"f": torch.randint(0, 20, (4, 2))})["f"].sum().backward()
module.optimizer.step()
is_last = threading.Event()


def let_go() -> None:
    """As gloo's threads do after a collective."""
    is_last.wait()
    time.sleep(0.02)
    print("let go", flush=True)


threading.Thread(target=let_go, daemon=True).start()
gathered = [None] * 2
dist.all_gather_object(gathered, rank)
dist.destroy_process_group()
is_last.set()
