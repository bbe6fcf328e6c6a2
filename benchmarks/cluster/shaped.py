"""A cluster on one machine: one network namespace per node, all on one bridge, links shaped.

A node has one full-duplex link, shaped in both directions by a token bucket (`tc tbf`). Ranks of
a node talk over its loopback. Bytes are counted at the far end of each node's link, outside the
ranks. They contain packet headers and acknowledgements. Packets are large, several at a time pass
the token bucket as one, and each such train has one header: together below 1 % of what is sent.
The bucket holds little more than that, so that short messages are as slow as the rate says.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from .launch import Launched, launch
from .namespaces import NetworkError, batch, entered, new_name, quiet, remove, remove_orphans
from .ranks import Place, Ranks

MTU_BYTES = 9_000
TRAIN_BYTES = 65_536  # the most that the kernel hands on as one: less work for its cores
BURST_S, LEAST_BURST_BYTES = 6e-4, 20_000  # a bucket must hold two packets, and outlast a timer
QUEUE_BYTES = 256 * 2**20  # nothing is dropped: what a sender may have under way fits
PORT = 29_500
_SUBNET = "10.77.0"
# Nothing gets lost here, and what waits in a queue must not be sent twice. Windows fill the
# link, and leave little more than that waiting.
_PATIENCE = "rto_min 10s"
_TCP = {
    "tcp_early_retrans": "0",
    "tcp_congestion_control": "reno",
    "tcp_slow_start_after_idle": "0",
    "tcp_rmem": "4096 131072 4194304",
    "tcp_wmem": "4096 131072 4194304",
}


class Shaped:
    """So many nodes with so many ranks each (one number, or one for every node).

    `rate_bits_per_s` is that of a node's link, each way; None leaves links as fast as the
    machine is.
    """

    def __init__(
        self,
        nodes: int = 2,
        ranks_per_node: int | Sequence[int] = 2,
        rate_bits_per_s: float | None = 1e9,
    ):
        if isinstance(ranks_per_node, int):
            ranks_per_node = (ranks_per_node,) * nodes
        self.ranks_per_node = tuple(ranks_per_node)
        if nodes < 1 or len(self.ranks_per_node) != nodes or min(self.ranks_per_node) < 1:
            raise ValueError(f"{nodes} nodes with {ranks_per_node} ranks: each needs at least one")
        self.nodes, self.rate_bits_per_s = nodes, rate_bits_per_s
        self.world = sum(self.ranks_per_node)
        self._name = ""
        self._ranks: Ranks | None = None
        self._port = PORT
        self._handler: Any = None

    def __enter__(self) -> Shaped:
        if reason := why_not():
            raise NetworkError(reason)
        remove_orphans()
        self._name = new_name()
        self._catch_term()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.close()

    def call(self, function: Callable[..., Any], *args: Any, timeout_s: float = 1200) -> list[Any]:
        """What `function(rank, world, *args)` returned on every rank, which stay for more calls.

        There is a process group, gloo, over all of them. If a rank fails or dies, all are
        ended and a `RankError` names it; the next call starts new ones.
        """
        if self._ranks is None:
            self._ranks = Ranks(self._places())
        try:
            return self._ranks.call(function, args, timeout_s)
        except BaseException:
            self._stop_ranks()
            raise

    def launch(
        self, command: Sequence[str], *, show: bool = False, timeout_s: float = 1200
    ) -> Launched:
        """Run a command on every rank, with the environment that torchrun gives.

        Where one fails the others are ended. `show` leaves output where it is; else it is kept.
        """
        return launch(command, self._places(), show, timeout_s)

    def sent_bytes(self) -> tuple[int, ...]:
        """Bytes that left each node since it was made."""
        return self._counted("rx_bytes")

    def received_bytes(self) -> tuple[int, ...]:
        """Bytes that reached each node since it was made."""
        return self._counted("tx_bytes")

    def close(self) -> None:
        """End all ranks and remove the nodes."""
        self._stop_ranks()
        if self._name:
            remove(self._name)
            self._name = ""
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
            self._handler = None

    def _counted(self, which: str) -> tuple[int, ...]:
        folder = Path("/sys/class/net")
        return tuple(
            int((folder / self._link(node) / "statistics" / which).read_text())
            for node in range(self.nodes)
        )

    def _stop_ranks(self) -> None:
        if self._ranks is not None:
            self._ranks.stop()
            self._ranks = None

    def _places(self) -> list[Place]:
        self._port += 1  # the last one may still be waiting for late packets
        places, rank = [], 0
        for node, local_world in enumerate(self.ranks_per_node):
            for local in range(local_world):
                environment = {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(self.world),
                    "LOCAL_RANK": str(local),
                    "LOCAL_WORLD_SIZE": str(local_world),
                    "GROUP_RANK": str(node),
                    "GROUP_WORLD_SIZE": str(self.nodes),
                    "MASTER_ADDR": _address(0),
                    "MASTER_PORT": str(self._port),
                    "GLOO_SOCKET_IFNAME": "eth0",
                    "TORCH_CPP_LOG_LEVEL": "ERROR",  # it would miss the names of hosts
                }
                places.append(Place(rank, self._node(node), environment))
                rank += 1
        return places

    def _node(self, node: int) -> str:
        return f"{self._name}n{node}"

    def _link(self, node: int) -> str:
        return f"{self._name}v{node}"

    def _build(self) -> None:
        bridge = f"{self._name}b"
        lines = [f"link add {bridge} type bridge mcast_snooping 0"]
        for node in range(self.nodes):
            inside, link = self._node(node), self._link(node)
            size = f"mtu {MTU_BYTES} gso_max_size {min(TRAIN_BYTES, self._burst_bytes * 9 // 10)}"
            peer = f"peer name eth0 netns {inside} {size} address {_hardware(node)}"
            lines += [f"netns add {inside}", f"link add {link} {size} type veth {peer}"]
        batch("ip", lines)
        quiet(bridge)
        for node in range(self.nodes):
            quiet(self._link(node))
            self._shape(self._link(node))
            self._furnish(node)
        ups = [f"link set {self._link(n)} master {bridge} up" for n in range(self.nodes)]
        batch("ip", [*ups, f"link set {bridge} mtu {MTU_BYTES} up"])

    def _furnish(self, node: int) -> None:
        """Everything inside a node: its address, and where the others are, so that nobody asks."""
        inside = self._node(node)
        with entered(inside):
            quiet()
            for key, value in _TCP.items():
                Path(f"/proc/sys/net/ipv4/{key}").write_text(value)
        others = [
            f"neigh replace {_address(n)} lladdr {_hardware(n)} dev eth0 nud permanent"
            for n in range(self.nodes)
            if n != node
        ]
        lines = [
            "link set lo up",
            f"address add {_address(node)}/32 dev eth0",
            "link set eth0 up",
            f"route add {_SUBNET}.0/24 dev eth0 scope link {_PATIENCE}",
        ]
        batch("ip", [*lines, *others], inside)
        self._shape("eth0", inside)

    @property
    def _burst_bytes(self) -> int:
        """What the token bucket holds; without a rate there is none, and nothing to fit into."""
        rate = float("inf") if self.rate_bits_per_s is None else self.rate_bits_per_s / 8
        return int(min(max(LEAST_BURST_BYTES, rate * BURST_S), 2**30))

    def _shape(self, link: str, inside: str | None = None) -> None:
        if self.rate_bits_per_s is None:
            return
        rate = f"rate {int(self.rate_bits_per_s)}bit burst {self._burst_bytes} limit {QUEUE_BYTES}"
        batch("tc", [f"qdisc add dev {link} root tbf {rate}"], inside)

    def _catch_term(self) -> None:
        """Leave by the door when asked to end; only where nobody else decided about it."""
        here = threading.current_thread() is threading.main_thread()
        if here and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._handler = signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _address(node: int) -> str:
    return f"{_SUBNET}.{node + 1}"


def _hardware(node: int) -> str:
    return f"02:00:00:00:77:{node + 1:02x}"


def why_not() -> str | None:
    """Why there can be no shaped cluster on this machine, in a sentence; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root; run as root, or in a container that may make them"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed; it comes with iproute2"
    name = new_name()
    try:
        lines = [
            f"netns add {name}n0",
            f"link add {name}b type bridge",
            f"link add {name}v0 type veth peer name eth0 netns {name}n0",
        ]
        batch("ip", lines)
        batch("tc", [f"qdisc add dev {name}v0 root tbf rate 1gbit burst 128kb limit 1mb"])
        with entered(f"{name}n0"):
            pass
    except (NetworkError, OSError) as error:
        return f"this kernel or container lacks namespaces, veth, bridge or tbf ({error})"
    finally:
        remove(name)
    return None
