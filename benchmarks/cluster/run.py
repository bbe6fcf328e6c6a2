"""Run any torchrun-style command on several nodes of this one machine, with shaped links.

    python benchmarks/cluster/run.py --nodes 2 --ranks 2 --rate 1Gbit -- \\
        rowtier calibrate -o cluster.yaml

The command runs once per rank, with RANK, WORLD_SIZE, MASTER_ADDR and the like. In the end the
bytes that each node sent and received are printed; the exit code is that of the rank that failed
first, or 0.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster import Shaped, why_not

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


def rate_bits_per_s(text: str) -> float | None:
    """Read "1Gbit", "100Mbit" or "none"."""
    if text.lower() == "none":
        return None
    found = re.fullmatch(r"([\d.]+)([kmg]?)(bit|bit/s|bps)", text.lower())
    if found is None or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate: write 1Gbit, 100Mbit or none")
    return float(found[1]) * _UNITS[found[2]]


def ranks_per_node(text: str) -> tuple[int, ...]:
    """Read "2", or "1,2" for one number per node."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write 2, or 1,2") from None


def main(arguments: list[str] | None = None) -> int:
    """Read the command line, run, and tell."""
    parser = argparse.ArgumentParser(description="Several nodes on one machine.")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks", type=ranks_per_node, default=(2,), help="per node: 2, or 1,2")
    parser.add_argument("--rate", type=rate_bits_per_s, default="1Gbit", help="or none")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds")
    parser.add_argument("command", nargs="+", help="after --")
    asked = parser.parse_args(arguments)
    if reason := why_not():
        print(f"no cluster here: {reason}", file=sys.stderr)
        return 2
    ranks = asked.ranks[0] if len(asked.ranks) == 1 else asked.ranks
    with Shaped(asked.nodes, ranks, asked.rate) as cluster:
        done = cluster.launch(asked.command, show=True, timeout_s=asked.timeout)
        for node, (sent, got) in enumerate(
            zip(cluster.sent_bytes(), cluster.received_bytes(), strict=True)
        ):
            print(f"node {node}: sent {sent:,} bytes, received {got:,}", file=sys.stderr)
    if done.first_failed is not None:
        print(f"rank {done.first_failed} failed first: {done.codes}", file=sys.stderr)
    return done.code


if __name__ == "__main__":
    sys.exit(main())
