"""Every way to keep a row that a band can say, and the rounds it takes: for `prove.py` alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.plan.prove_facts import attached_level, memories
from rowtier.tables import EXCHANGES, Exchange


@dataclass(frozen=True)
class KeptRow:
    """A way to keep a row: a band of one row, which kind of holder has it, and in which memory."""

    band: Band
    kind: int  # 0: a device; else which servers
    memory: int
    attached: int  # level that its holder hangs at, 0 for a device
    level: int  # of its scope

    @property
    def owner(self) -> tuple[int, int] | None:
        """Level and kind of owners, if they send partial sums."""
        return (self.level, self.kind) if self.band.exchange == "sums" else None


@dataclass(frozen=True)
class RoundsNeeded:
    """How far anybody asks, and from which level on copies meet; 0: not at all."""

    asked: int
    met: int
    relayed: bool  # rows pass from gateway to gateway

    def lacks(self, kind: str) -> bool:
        """Whether there are no rounds of a kind."""
        has = {"exchange": self.asked > 0, "gateways": self.relayed, "copies": self.met > 0}
        return not has.get(kind, False)


def every_way(cluster: Cluster, exchanges: Sequence[Exchange] = EXCHANGES) -> Iterator[KeptRow]:
    """Every way that the fields of a band can say, but for those that cannot be better.

    Who of a kind holds a row, in which order, makes no difference to the mean; `coalesced` and
    `staged` say nothing of sums that would make them fewer, and nothing says anything of how
    a copy on every device is sent.
    """
    for memory, (tier, kind, attached) in enumerate(memories(cluster)):
        for scope, sync in product(cluster.scopes, ("dense", "sparse")):
            level = cluster.level_of(scope)
            if attached > level:
                continue
            member = 0 if kind == 0 else _first_place(cluster, kind, level)
            base = Band(start=0, stop=1, scope=scope, tier=tier.name, members=(member,), sync=sync)
            for rows in ({}, {"coalesced": True}, {"coalesced": True, "staged": True}):
                if level and "rows" not in exchanges:
                    break
                if level > 1 or "staged" not in rows:
                    yield KeptRow(base.model_copy(update=rows), kind, memory, attached, level)
            if "sums" in exchanges and level:
                sums = base.model_copy(update={"exchange": "sums"})
                yield KeptRow(sums, kind, memory, attached, level)


def _first_place(cluster: Cluster, kind: int, level: int) -> int:
    """The position of the first server of a kind in a group of a level, behind its devices."""
    place = cluster.group_size(level)
    for other in range(1, kind):
        if attached_level(cluster, other) <= level:
            inner = cluster.group_size(level) // cluster.group_size(attached_level(cluster, other))
            place += cluster.servers[other - 1].count * inner
    return place


def wide_levels(cluster: Cluster) -> list[int]:
    """Levels that join groups."""
    return [number for number, level in enumerate(cluster.levels, start=1) if level.size > 1]


def rounds_of(kept: KeptRow, cluster: Cluster) -> RoundsNeeded:
    """The rounds that a way takes part in."""
    wide = wide_levels(cluster)
    asked = [k for k in wide if k <= kept.level]
    if kept.attached and kept.attached not in asked:
        asked.append(kept.attached)
    met = [k for k in wide if k > kept.level]
    widest = max([k for k in asked if k >= kept.attached], default=0)
    relayed = kept.band.staged and kept.band.exchange == "rows"
    return RoundsNeeded(widest, min(met, default=0), relayed)


def allows(rounds: RoundsNeeded, other: RoundsNeeded) -> bool:
    """Whether plans that have no other rounds may have a way with these."""
    meets = not other.met or 0 < rounds.met <= other.met
    return other.asked <= rounds.asked and meets and other.relayed <= rounds.relayed


def waits_s(cluster: Cluster, level: int, peers: int) -> float:
    """What a round through a level waits at least."""
    own = cluster.levels[level - 1]
    waits = own.latency_s + own.message_s * peers
    # What runs beside it may take longer, but not all of it can be shorter than the mean.
    return waits / max([len(names) for names in cluster.overlap if own.name in names], default=1)
