"""What ranks send each other arrives, over connections of our own as over gloo."""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import jobs
from cases import Case, cluster_of
from strategies import counted
from test_exact import same

from rowtier import Band, Plan, Profile, Table
from rowtier.cost.tree import tree_of
from rowtier.runtime.exchange import neighbours, sockets
from rowtier.runtime.exchange.troubles import LostRankError
from rowtier.runtime.exchange.wire import Swap, Wire
from rowtier.runtime.store.world import World

KINDS = (np.uint8, np.float32, np.uint16)


def wire_of(rank: int, group: Any, by_gloo: bool) -> Wire:
    """A wire of the ranks of a group."""
    wire = Wire(World(rank, tree_of(cluster_of((group.size(),))), group))
    meet = (lambda *_: None) if by_gloo else sockets.Sockets.meet
    with patch.object(sockets.Sockets, "meet", meet):
        wire.meet()
    assert (wire._sockets is None) == by_gloo
    return wire


def exchange(rank: int, group: Any, seed: int, by_gloo: bool, least: int) -> list[bytes]:
    """What arrives on a rank: arrays of known and of unknown lengths, and short rows."""
    wire, size, arrived = wire_of(rank, group, by_gloo), group.size(), []
    random = np.random.default_rng(seed)
    with patch.object(neighbours, "LEAST_BYTES", least):
        for _ in range(4):
            counts = random.choice([0, 1, 5, 3000, 200_001], (len(KINDS), size, size))
            swaps = [
                Swap(
                    np.random.default_rng((seed, rank))
                    .integers(0, 250, c[rank].sum())
                    .astype(kind),
                    c[rank],
                    np.empty(c[:, rank].sum(), dtype=kind),
                    c[:, rank].copy(),
                )
                for kind, c in zip(KINDS, counts, strict=True)
            ]
            wire.swap_all(swaps)
            arrived += [swap.got.tobytes() for swap in swaps]
            said = [
                [np.full(n, rank, dtype=np.uint8) for n in counts[:, rank, other]]
                if other != rank
                else []
                for other in range(size)
            ]
            arrived += [got.tobytes() for got in wire.swap_unknown(said)]
            arrived.append(wire.swap_fixed(np.arange(3 * size).reshape(size, 3) + rank).tobytes())
    return arrived


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("least", [2**40, 1, 100_000])
def test_what_arrives_is_what_gloo_brings(workers: Any, ranks: int, least: int) -> None:
    own = workers.run(ranks, exchange, ranks, False, least)
    assert own == workers.run(ranks, exchange, ranks, True, 2**40)


def bytes_sent(rank: int, group: Any, plan: Plan) -> tuple[int, int]:
    """Bytes that a rank gave to its connections, and those that its counters know of."""
    module = jobs.embeddings_of(plan, group, {"t": np.ones((30, 4), dtype=np.float32)})
    real, sent = sockets._Going.send, 0

    def send(going: Any, link: Any) -> bool:
        nonlocal sent
        before = sum(map(len, going.left))
        more = real(going, link)
        sent += before - sum(map(len, going.left))
        return more

    batch = {"f": (torch.arange(9) + rank, torch.tensor([3, 0, 6]))}
    module.counters.reset()
    with patch.object(sockets._Going, "send", send):
        for _ in range(3):
            module(batch)["f"].sum().backward()
            module.optimizer.step()
        return sent, int(module.counters.links[:, 0].sum())


def test_every_byte_that_is_sent_is_counted(workers: Any) -> None:
    for sync in ("sparse", "dense"):
        for optimizer in ("sgd", "rowwise_adagrad"):
            bands = (
                Band(start=0, stop=5, scope="device", tier="ram", sync=sync),
                Band(start=5, stop=18, scope="level0", tier="ram", coalesced=True),
                Band(start=18, stop=30, scope="level0", tier="ram", exchange="sums"),
            )
            table = Table(
                name="t", num_embeddings=30, embedding_dim=4, features=("f",), optimizer=optimizer
            )
            profile = Profile(4, (counted(table, np.arange(30)[::-1].copy()),))
            plan = Plan.build("made", profile, cluster_of((2,)), {"t": bands})
            for sent, known in workers.run(2, bytes_sent, plan):
                assert sent == known > 0


def unreachable(rank: int, group: Any, odd: int) -> bool:
    """Whether a rank falls back to gloo if one of them cannot listen."""

    def create_server(*_args: Any, **_options: Any) -> Any:
        raise OSError("no such address")

    real = sockets.socket.create_server
    with patch.object(sockets.socket, "create_server", create_server if rank == odd else real):
        wire = Wire(World(rank, tree_of(cluster_of((group.size(),))), group))
        wire.meet()
    wire.barrier()
    return wire._sockets is None


def test_all_ranks_use_gloo_if_one_cannot_be_reached(workers: Any) -> None:
    assert workers.run(3, unreachable, 1) == [True] * 3
    assert workers.run(3, unreachable, 7) == [False] * 3


def timed_out(rank: int, group: Any) -> str:
    """What a rank says that waits for one that does not come."""
    wire = wire_of(rank, group, by_gloo=False)
    wire._sockets._timeout_s = 0.2
    if rank:
        time.sleep(1)  # its connections stay open
        return ""
    try:
        wire.barrier()
    except LostRankError as error:
        return str(error)
    return "nothing"


def test_a_rank_that_does_not_answer_is_named(workers: Any) -> None:
    said = workers.run(2, timed_out)[0]
    assert said.startswith("no answer for 0.2 s")
    assert "from rank 1, which has said nothing" in said


def test_training_is_the_same_over_gloo(workers: Any) -> None:
    table = Table(name="t", num_embeddings=30, embedding_dim=4, features=("f",), pooling="sum")
    bands = (
        Band(start=0, stop=5, scope="device", tier="ram", sync="sparse"),
        Band(start=5, stop=18, scope="level0", tier="ram", coalesced=True),
        Band(start=18, stop=30, scope="level0", tier="ram", exchange="sums"),
    )
    profile = Profile(4, (counted(table, np.arange(30)[::-1].copy()),))
    case = Case(Plan.build("made", profile, cluster_of((3,)), {"t": bands}), 5, 4, exact=False)
    same(case.run(workers, 0.125), case.run(workers, 0.125, gloo=True))
