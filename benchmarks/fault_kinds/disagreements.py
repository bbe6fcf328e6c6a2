"""Two ranks that do not do the same: does every one of them say who differs, and in what?

Every kind of `disagreement_kinds.py` runs on two real processes that talk by gloo and sockets. It
counts as detected only if both ranks raise, or warn where that is all there is to do, within the
time limit, and both name the right rank and field.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).parents[1]))

from fault_kinds.disagreement_kinds import KINDS, Side

LIMIT_S = 60.0  # for both ranks, on a machine that may be busy
_BY_NAME = {kind.name: kind for kind in KINDS}


class Outcome(NamedTuple):
    """What became of one rank."""

    error: str  # its class; empty: none
    text: str
    warned: list[str]
    seconds: float


def disagree(rank: int, group: Any, name: str, odd: int, seed: int) -> Outcome:
    """Do what a kind says on one rank of a group."""
    torch.manual_seed(seed)
    began, error = time.monotonic(), None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            _BY_NAME[name].act(Side(rank, group, rank == odd, seed))
        except Exception as found:
            error = found
    texts = [str(one.message) for one in warned if "waits for more than" in str(one.message)]
    kind = "" if error is None else type(error).__name__
    return Outcome(kind, str(error or ""), texts, time.monotonic() - began)


def missed(name: str, odd: int, outcomes: Sequence[Outcome]) -> list[str]:
    """What the ranks did not say, or said wrongly; nothing if all is well."""
    kind, even = _BY_NAME[name], 1 - odd
    wanted = {
        even: (kind.error, kind.says),
        odd: (kind.odd_error or kind.error, kind.says if kind.odd_says is None else kind.odd_says),
    }
    found = []
    for rank, (error, says) in wanted.items():
        got = outcomes[rank]
        pattern = _pattern(says, odd)
        if got.error != error or not re.search(pattern, got.text) or got.seconds > LIMIT_S:
            found.append(f"rank {rank} after {got.seconds:.1f} s: {got.error}: {got.text}")
    if kind.warns is not None:
        warned = outcomes[even].warned
        if len(warned) != 1 or not re.search(_pattern(kind.warns, odd), warned[0]):
            found.append(f"rank {even} warned {warned}")
    return found


def _pattern(says: str, odd: int) -> str:
    return says.replace("{odd}", str(odd)).replace("{even}", str(1 - odd))


def run(
    count: int, seed: int = 0, progress: Callable[[float], None] = lambda _: None
) -> dict[str, Any]:
    """Try so many disagreements, kind after kind; which rank is odd is drawn."""
    random, pair = np.random.default_rng(seed), Pair()
    kinds = {kind.name: {"tried": 0, "undetected": 0} for kind in KINDS}
    wrong: list[str] = []
    try:
        for number in range(count):
            name, odd = KINDS[number % len(KINDS)].name, int(random.integers(2))
            said = pair.run(name, odd, int(random.integers(2**31)))
            lost = ["no answer"] if said is None else missed(name, odd, said)
            kinds[name]["tried"] += 1
            kinds[name]["undetected"] += bool(lost)
            wrong += [f"{name}: {one}" for one in lost]
            progress((number + 1) / count)
    finally:
        pair.stop()
    return {
        "disagreements": count,
        "disagreements_undetected": sum(entry["undetected"] for entry in kinds.values()),
        "kinds": kinds,
        "wrong": wrong,
    }


class Pair:
    """Two processes that live as long as they answer."""

    def __init__(self) -> None:
        self._pipes: list[Any] = []
        self._processes: list[Any] = []

    def run(self, name: str, odd: int, seed: int) -> list[Outcome] | None:
        """What became of both ranks; None if one did not come back."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((name, odd, seed))
        until, found = time.monotonic() + 2 * LIMIT_S, []
        for pipe in self._pipes:
            if not pipe.poll(max(0.0, until - time.monotonic())):
                self.stop()
                return None
            found.append(pipe.recv())
        return found

    def _start(self) -> None:
        context = mp.get_context("spawn")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        for rank in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, port, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def stop(self) -> None:
        """End both."""
        for process in self._processes:
            process.kill()
            process.join()
        self._pipes, self._processes = [], []


def _serve(rank: int, port: int, pipe: Connection) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    group = dist.group.WORLD
    while True:
        try:
            pipe.send(disagree(rank, group, *pipe.recv()))
        except EOFError:  # nobody asks any more
            return


if __name__ == "__main__":
    found = run(int(sys.argv[1]) if len(sys.argv) > 1 else len(KINDS))
    print("\n".join(found["wrong"]))
    print({key: value for key, value in found.items() if key not in ("kinds", "wrong")})
