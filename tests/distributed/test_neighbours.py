"""Bytes between ranks are the same whether sockets carry them or ranks read each other's memory."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from rowtier.runtime.exchange import neighbours
from rowtier.runtime.exchange.neighbours import Neighbours
from rowtier.runtime.exchange.wire import swap_bytes


def sizes_of(seed: int, ranks: int) -> np.ndarray:
    """Bytes from each rank to each: nothing, some, or more than a page."""
    random = np.random.default_rng(seed)
    return random.choice([0, 1, 7, 4096, 100_003], (ranks, ranks))


def exchange(rank: int, group: Any, seed: int, least: int) -> tuple[bytes, list[int]]:
    """What arrives, and which ranks' memory was read."""
    sizes = sizes_of(seed, group.size())
    random = np.random.default_rng((seed, rank))
    sent = torch.from_numpy(random.integers(0, 256, sizes[rank].sum(), dtype=np.uint8))
    got = torch.empty(int(sizes[:, rank].sum()), dtype=torch.uint8)
    near, read, real = Neighbours.meet(group), [], Neighbours.read

    def watched(self: Neighbours, other: int, *args: Any) -> None:
        read.append(other)
        real(self, other, *args)

    with (
        patch.object(neighbours, "LEAST_BYTES", least),
        patch.object(Neighbours, "read", watched),
    ):
        for _ in range(3):  # what was shown may be written again at once
            sent += 1
            swap_bytes(group, got, sent, sizes[:, rank].tolist(), sizes[rank].tolist(), near)
    return got.numpy().tobytes(), read


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_read_from_memory_is_what_sockets_bring(
    workers: Any, ranks: int, seed: int
) -> None:
    by_socket = workers.run(ranks, exchange, seed, 2**40)
    from_memory = workers.run(ranks, exchange, seed, 4096)
    sizes = sizes_of(seed, ranks)
    for rank, (socket, memory) in enumerate(zip(by_socket, from_memory, strict=True)):
        assert socket[0] == memory[0]
        assert not socket[1]
        long = [p for p in range(ranks) if p != rank and sizes[p, rank] >= 4096]
        assert sorted(memory[1]) == sorted(3 * long)


def meet_where(rank: int, group: Any, forbidden: int | None, apart: bool) -> list[bool]:
    """Whose messages are read from memory, if one rank may not read, or machines differ."""
    real = Neighbours.read

    def read(self: Neighbours, *args: Any) -> None:
        if rank == forbidden:
            raise RuntimeError("Operation not permitted")
        real(self, *args)

    machine = ("here", str(rank // 2)) if apart else neighbours.machine_of_this_process()
    with (
        patch.object(Neighbours, "read", read),
        patch.object(neighbours, "machine_of_this_process", lambda: machine),
    ):
        near = Neighbours.meet(group)
    return [near.carries(other, 2**30) for other in range(group.size())]


def test_only_ranks_of_one_machine_that_all_may_read_each_other_do(workers: Any) -> None:
    every = workers.run(4, meet_where, None, False)
    assert every == [[a != b for b in range(4)] for a in range(4)]
    pairs = workers.run(4, meet_where, None, True)
    assert pairs == [[a != b and a // 2 == b // 2 for b in range(4)] for a in range(4)]
    # One of the second machine is not allowed to: both of it use sockets.
    some = workers.run(4, meet_where, 3, True)
    assert some == [*pairs[:2], [False] * 4, [False] * 4]


def test_a_process_that_is_gone_is_told_and_cannot_be_read() -> None:
    gone = os.fork()
    if not gone:
        os._exit(0)
    os.waitid(os.P_PID, gone, os.WEXITED | os.WNOWAIT)
    near = Neighbours({2: os.getpid(), 3: gone})
    told = near.is_alive(1), near.is_alive(2), near.is_alive(3)
    assert told == (None, True, False)  # though its parent has not asked after it yet
    os.waitpid(gone, 0)
    assert near.is_alive(3) is False
    with pytest.raises(RuntimeError, match="the memory of rank 3 cannot be read: No such process"):
        near.read(3, 4096, torch.empty(8, dtype=torch.uint8))
