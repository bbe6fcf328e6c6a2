"""What the examples share: processes that train a model around sharded tables, and its figures."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import rowtier
from rowtier.torch import ShardedEmbeddings
from rowtier.units import show_bytes

WARM_UP = 5  # steps whose time does not count: kernels are loaded in the first ones
USUAL: dict[str, tuple[float, str]] = {
    "epochs": (1, "over the data"),
    "dense_lr": (3e-3, "of all but the tables (Adam)"),
    "profiled": (0.25, "share of the data to plan from"),
    "seed": (0, "of all that is drawn"),
}


class Job(ABC):
    """This process among all that torchrun started, and its parts of the model."""

    embeddings: ShardedEmbeddings
    dense: Any  # all of the model but the tables

    def __init__(self, args: argparse.Namespace, trained: int):
        self.args = args
        self.size = int(os.environ.get("WORLD_SIZE", "1"))  # torchrun sets it
        self.rank = int(os.environ.get("RANK", "0"))
        torch.set_num_threads(1)  # as torchrun has it; matrices this small gain nothing from more
        self.step_samples = args.batch_size * self.size
        self.steps = trained // self.step_samples
        if not self.steps:
            raise rowtier.UserError(
                f"{trained:,} samples for training, and a step takes {self.step_samples:,}: give "
                "more of them, or a smaller --batch-size"
            )
        if self.size > 1:
            dist.init_process_group("gloo")

    def plan(self, data: Callable[[], Any], tables: rowtier.Tables) -> rowtier.Plan:
        """Made by the first process, from a part of the data; the others are sent it."""
        made: list[Any] = [None]
        if self.rank == 0:
            profile = rowtier.make_profile(data(), tables)
            made[0] = rowtier.make_plan(profile, rowtier.Cluster.local(self.size), self.args.method)
        if self.size > 1:
            dist.broadcast_object_list(made)
        return made[0]  # type: ignore[no-any-return]

    def together(self, module: Any) -> Any:
        """A module whose gradients are the means over all processes."""
        return torch.nn.parallel.DistributedDataParallel(module) if self.size > 1 else module

    def share(self, start: int, stop: int) -> tuple[int, int]:
        """This process's part of some samples."""
        each = -(-(stop - start) // self.size)
        begin = min(stop, start + self.rank * each)
        return begin, min(stop, begin + each)

    def starts(self) -> Iterator[int]:
        """Where each step begins in the data."""
        for _ in range(self.args.epochs):
            yield from range(0, self.steps * self.step_samples, self.step_samples)

    @abstractmethod
    def loss(self, start: int, stop: int) -> torch.Tensor:
        """The loss of this process's part of some samples."""

    def train(self) -> dict[str, Any]:
        """Train; loss of every step, mean over the processes, its time here, and bytes."""
        optimizer = torch.optim.Adam(self.dense.parameters(), lr=self.args.dense_lr)
        losses, seconds = [], []
        for start in self.starts():
            began = time.perf_counter()
            loss = self.loss(start, start + self.step_samples)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.embeddings.optimizer.step()
            losses.append(loss.detach())
            seconds.append(time.perf_counter() - began)
        mean = torch.stack(losses)
        if self.size > 1:
            dist.all_reduce(mean)
        return {
            "method": self.args.method,
            "processes": self.size,
            "loss": (mean / self.size).tolist(),
            "step_s": float(np.median(seconds[WARM_UP:] or seconds)),
        }

    def leave(self) -> None:
        """End the process group, after all else is done."""
        # DDP first: if it were the last to hold the group, it would wait for gloo's threads
        # while they wait for the interpreter, now and then for ever (torch 2.13).
        self.dense = None
        if self.size > 1:
            dist.destroy_process_group()


def parser(doc: str, **own: tuple[float, str]) -> argparse.ArgumentParser:
    """The options of every example: what they are by default, and what they say."""
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    made.add_argument("--method", default="joint", choices=rowtier.METHODS, metavar="NAME")
    made.add_argument("--json", action="store_true", help="for machines")
    for name, (default, said) in {**own, **USUAL}.items():
        kind, sign = type(default), "X" if isinstance(default, float) else "N"
        option = f"--{name.replace('_', '-')}"
        made.add_argument(option, default=default, type=kind, metavar=sign, help=said)
    return made


def shown(facts: dict[str, Any]) -> str:
    """How training went, for people."""
    losses, processes = facts["loss"], facts["processes"]
    tenth = max(1, len(losses) // 10)
    lines = [
        f"loss {np.mean(losses[:tenth]):.4f} → {np.mean(losses[-tenth:]):.4f} (means of {tenth} "
        f"steps); {len(losses)} steps of {1e3 * facts['step_s']:.1f} ms under {facts['method']}, "
        f"{processes} process{'es' if processes > 1 else ''}"
    ]
    for flow, levels in facts["bytes_per_step"].items():
        for level, amount in levels.items():
            if amount:
                lines.append(f"  {flow:9} {show_bytes(round(amount)):>11} a step, {level} links")
    return "\n".join(lines)


def main(args: Any, run: Callable[..., Any], headline: Callable[[dict[str, Any]], str]) -> None:
    """Run, and print from the first process; mistakes of users end with what to do."""
    try:
        facts = run(args)
    except rowtier.RowtierError as error:
        sys.exit(f"error: {error}")
    if facts is not None:
        print(json.dumps(facts) if args.json else f"{headline(facts)}\n{shown(facts)}")
