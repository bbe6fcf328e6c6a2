from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from cluster import RankError, Shaped, why_not  # noqa: E402
from cluster.namespaces import left_by  # noqa: E402

pytestmark = pytest.mark.xdist_group("cluster")  # one after the other: they take time
MIB = 2**20


@pytest.fixture(autouse=True, scope="module")
def _possible():
    if reason := why_not():
        pytest.skip(reason)


def exchange(rank, world, sent_bytes):  # noqa: ARG001
    import torch
    import torch.distributed as dist

    data = torch.zeros(sent_bytes, dtype=torch.uint8)
    got = torch.empty_like(data)
    dist.barrier()
    began = time.perf_counter()
    dist.all_to_all_single(got, data)
    return time.perf_counter() - began


def place(rank, world):
    return rank, world, os.environ["LOCAL_RANK"], os.environ["GROUP_RANK"], os.getpid()


def fail(rank, world, how):  # noqa: ARG001
    import torch
    import torch.distributed as dist

    if rank == 1 and how == "raise":
        raise KeyError("no such thing")
    if rank == 1 and how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.zeros(1))  # the others wait for rank 1


def found_link(rank, world):
    from rowtier.calibrate import links
    from rowtier.calibrate.job import Job

    links.SIZE_S, links.MESSAGE_BYTES = 0.05, (2**18, 2**19, 2**20)
    return links.time_links(Job(rank, world, 2), lambda: None)[-1]


def test_what_is_exchanged_is_counted_and_takes_as_long_as_the_rate_says():
    with Shaped(nodes=2, ranks_per_node=2, rate_bits_per_s=200e6) as cluster:
        cluster.call(exchange, 4096)
        before, got = cluster.sent_bytes(), cluster.received_bytes()
        cluster.call(exchange, 2 * MIB)
        payload = 2 * MIB  # two ranks, each with half of it for the other node
        for counted, start in ((cluster.sent_bytes(), before), (cluster.received_bytes(), got)):
            for after, earlier in zip(counted, start, strict=True):
                assert payload < after - earlier < 1.03 * payload
        # The slowest rank, of the quickest of some exchanges: other work makes times longer.
        fastest_s = min(max(cluster.call(exchange, 2 * MIB)) for _ in range(5))
        assert 0.5 < fastest_s / (payload * 8 / 200e6) < 3

        seen = cluster.call(place)
        assert [entry[:4] for entry in seen] == [
            (0, 4, "0", "0"), (1, 4, "1", "0"), (2, 4, "0", "1"), (3, 4, "1", "1"),
        ]  # fmt: skip
        assert seen == cluster.call(place)  # the same processes

        for _ in range(5):  # other work makes the line through three times as steep as it likes
            link = cluster.call(found_link)[0]  # as `rowtier calibrate` finds it
            level = link.level()
            if 0.3 < level.bandwidth_bytes_per_s / (200e6 / 8) < 1.3:
                break
        assert (level.name, level.size, level.per) == ("cluster", 2, "group")
        assert 0.3 < level.bandwidth_bytes_per_s / (200e6 / 8) < 1.3
        # Of the longest message: a short one may go out in one burst after a pause.
        for times in (link.all_to_all, link.copies, link.neighbour):
            assert 0.3 < 2 * times.sent_bytes[-1] / times.times_s[-1] / (200e6 / 8) < 1.3, times


def test_a_rank_that_fails_is_named_and_the_next_call_has_new_ones():
    with Shaped(nodes=2, ranks_per_node=1) as cluster:
        with pytest.raises(RankError, match="rank 1: the process is gone, killed by SIGKILL"):
            cluster.call(fail, "die")
        with pytest.raises(RankError, match=r"(?s)rank 1: .*no such thing") as caught:
            cluster.call(fail, "raise")
        assert caught.value.rank == 1


def test_everything_is_gone_after_an_exception():
    with pytest.raises(ZeroDivisionError), Shaped(nodes=2, ranks_per_node=1):
        assert len(left_by(os.getpid())) == 5  # two nodes, two links, a bridge
        raise ZeroDivisionError
    assert left_by(os.getpid()) == []


def test_launch_gives_every_rank_its_place_and_ends_the_others_when_one_fails():
    script = textwrap.dedent("""
        import os, sys, time
        print(*(os.environ[k] for k in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")))
        sys.stdout.flush()
        if sys.argv[1] == "bad":
            sys.exit(7) if os.environ["RANK"] == "2" else time.sleep(60)
    """)
    with Shaped(nodes=2, ranks_per_node=(1, 2), rate_bits_per_s=None) as cluster:
        done = cluster.launch([sys.executable, "-c", script, "good"])
        assert done.codes == (0, 0, 0)
        assert done.code == 0
        assert done.stdout == ("0 0 1 0\n", "1 0 2 1\n", "2 1 2 1\n")
        bad = cluster.launch([sys.executable, "-c", script, "bad"])
        assert (bad.first_failed, bad.code) == (2, 7)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_is_ended_leaves_nothing_for_long(number):
    script = textwrap.dedent(f"""
        import sys, time
        sys.path.append({str(BENCHMARKS)!r})
        from cluster import Shaped
        with Shaped(nodes=2, ranks_per_node=1) as cluster:
            print("up", flush=True)
            time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"up\n"
        assert left_by(program.pid)
        program.send_signal(number)
        program.wait(20)
    if number == signal.SIGKILL:
        assert left_by(program.pid)
        with Shaped(nodes=1, ranks_per_node=1):
            pass  # finds what the other left
    assert left_by(program.pid) == []
