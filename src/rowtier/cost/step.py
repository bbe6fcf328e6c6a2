"""What one training step of a whole plan costs: the place to start reading.

The bands are walked once (`tally.py`); bytes per holder, tier and level come out, and
seconds follow from them. Everything but the times and the messages is additive over
tables: the cost of a profile with one table is that table's part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from rowtier.band import Bands
from rowtier.cluster import Cluster
from rowtier.cost.amounts import Parts
from rowtier.cost.bundling import PiecesRun
from rowtier.cost.deal import known_rows
from rowtier.cost.links import Flow
from rowtier.cost.memory import MemoryUse, all_remap_bytes, in_first_tier, output_bytes
from rowtier.cost.options import DEFAULTS, CostOptions
from rowtier.cost.spread import StepSpread, spread_of
from rowtier.cost.step_time import StepTime
from rowtier.cost.tally import Tally
from rowtier.cost.time import Phases, step_time
from rowtier.cost.tree import Tree, tree_of
from rowtier.cost.variance import CostRequest
from rowtier.profile.curve import Floats
from rowtier.profile.order import RowOrder
from rowtier.profile.profile import Profile


@dataclass(frozen=True, eq=False)
class TableCost:
    """What one table asks of all holders together: bytes per step, by level or by tier.

    Gradients return the `forward_bytes`, if training is counted.
    """

    name: str
    read_bytes: Floats
    written_bytes: Floats
    forward_bytes: Floats
    id_bytes: Floats
    sync_bytes: Floats
    sync_id_bytes: Floats
    work_s: float = 0.0  # of all ranks, but for what bands and rounds take

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        amounts = {k: v.tolist() for k, v in vars(self).items() if isinstance(v, np.ndarray)}
        return {"name": self.name, "work_s": self.work_s} | amounts


@dataclass(frozen=True, eq=False)
class LinkUse:
    """What goes through the links in a step: bytes per holder (row) and level (column)."""

    ids: Flow
    forward: Flow  # rows or partial sums
    backward: Flow  # their gradients
    sync: Flow  # gradients of copies
    sync_ids: Flow
    messages: Floats  # that each holder sends; all tables travel together
    phases: Phases  # what the plan exchanges at all

    @property
    def flows(self) -> dict[str, Flow]:
        """The flows by name."""
        names = ("ids", "forward", "backward", "sync", "sync_ids")
        return {name: getattr(self, name) for name in names}

    @property
    def total_bytes(self) -> Floats:
        """Bytes through each level, all flows together, every transfer counted once."""
        return np.asarray(sum(flow.total for flow in self.flows.values()))


@dataclass(frozen=True, eq=False)
class StepCost:
    """Cost of a step. Rows of arrays are holders, columns are tiers or levels, bytes per step."""

    cluster: Cluster
    read_bytes: Floats
    written_bytes: Floats
    links: LinkUse
    memory: MemoryUse
    time: StepTime
    tables: tuple[TableCost, ...]
    own_work_s: Floats  # of every holder, but for what a step and its rounds take
    pieces: PiecesRun  # that the runtime runs: bands of tables that are alike are one
    asked: CostRequest

    @property
    def step_s(self) -> float:
        """Seconds of a step whose loads are the mean ones."""
        return self.time.step_s

    @cached_property
    def spread(self) -> StepSpread:
        """How much steps differ, and what that makes of their mean; found when asked for."""
        links = self.links
        exchange = [links.ids, links.forward, links.backward]
        moved = self.read_bytes + self.written_bytes
        return spread_of(self.asked, moved, exchange, links.sync + links.sync_ids, self.time)

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        time = self.time
        return {
            "step_s": self.step_s,
            "spread": self.spread.to_dict(),
            "memory_s": time.slowest_memory_s,
            "work_s": time.slowest_work_s,
            "work_parts_s": self.work_parts(),
            "links_s": time.links_s,
            "sync_kept": time.sync_kept,
            "phases": self.phases(),
            "levels": [self._level(index) for index in range(len(self.cluster.levels))],
            "tiers": list(self.cluster.tier_names),
            "holders": [self._holder(holder) for holder in range(self.cluster.num_holders)],
            "tables": [table.to_dict() for table in self.tables],
        }

    def phases(self) -> dict[str, int]:
        """The kinds of exchange that the plan has at all, and the rounds that each of them costs.

        Dropping the last band that needs one drops its rounds.
        """
        return self.links.phases.named()

    def work_parts(self) -> dict[str, float]:
        """Seconds of the slowest holder's work, by what they are for."""
        work = self.cluster.work
        parts = {
            "the step": work.step_s,
            "rounds": work.round_s * sum(self.phases().values()),
            "tables": work.table_s * len(self.tables),
            "bands": self.pieces.work_s(work, self.links.phases.training),
        }
        whole_s = float(self.time.work_s[self.time.slowest])
        return parts | {"lookups and rows": max(0.0, whole_s - sum(parts.values()))}

    def _level(self, index: int) -> dict[str, Any]:
        return {
            "name": self.cluster.levels[index].name,
            "exchange_s": float(self.time.exchange_level_s[index]),
            "sync_s": float(self.time.sync_level_s[index]),
            "exchange_rounds": int(self.links.phases.exchange_rounds[index]),
            "sync_rounds": int(self.links.phases.sync_rounds[index]),
            **{f"{name}_bytes": float(f.total[index]) for name, f in self.links.flows.items()},
        }

    def _holder(self, holder: int) -> dict[str, Any]:
        flows = self.links.flows
        return {
            "name": self.cluster.holder_name(holder),
            "memory_s": float(self.time.memory_s[holder]),
            "work_s": float(self.time.work_s[holder]),
            "exchange_s": self.time.exchange_s[holder].tolist(),
            "sync_s": self.time.sync_s[holder].tolist(),
            "read_bytes": self.read_bytes[holder].tolist(),
            "written_bytes": self.written_bytes[holder].tolist(),
            "messages": self.links.messages[holder].tolist(),
            "sent_bytes": {name: flow.sent[holder].tolist() for name, flow in flows.items()},
            "received_bytes": {n: flow.received[holder].tolist() for n, flow in flows.items()},
            "kept_bytes": {n: kept[holder].tolist() for n, kept in vars(self.memory).items()},
        }


def step_cost(
    bands: Bands,
    profile: Profile,
    cluster: Cluster,
    order: RowOrder | None = None,
    options: CostOptions = DEFAULTS,
) -> StepCost:
    """What a step costs under a placement, per holder, and how long it takes.

    `order` is only needed for `blocks` bands: without it, and without counted statistics,
    every block of row ids counts as equally hot.
    """
    tree = tree_of(cluster)
    tally = Tally(tree, options, len(profile.stats))
    for stats in profile.stats:
        rows = known_rows(stats, order)
        tally.add(stats, bands[stats.table.name], profile, rows)
    own = tally.by_holder()
    work_s = tally.work_s(own)
    links = _links(tree, tally, own, options)
    buffers = own.waiting[0] + sum(
        (flow.sent + flow.received).sum(axis=1) for flow in (links.ids, links.forward)
    )
    return StepCost(
        cluster,
        own.read.T,
        own.written.T,
        links,
        MemoryUse(
            weights=np.rint(own.weights.T).astype(np.int64),
            state=np.rint(own.state.T).astype(np.int64),
            remap=all_remap_bytes(bands, profile, cluster, options),
            buffers=in_first_tier(buffers, cluster),
            outputs=in_first_tier(output_bytes(profile, tree), cluster),
        ),
        step_time(
            tree,
            (own.read + own.written).T,
            work_s,
            [links.ids, links.forward, links.backward],
            links.sync + links.sync_ids,
            links.phases,
            options,
        ),
        _tables(profile, tally),
        work_s,
        tally.pieces,
        CostRequest(bands, profile, cluster, order, options),
    )


def _tables(profile: Profile, tally: Tally) -> tuple[TableCost, ...]:
    each = tally.by_table()
    forward = each.forward.T + tally.sums_bytes
    amounts = (each.read.T, each.written.T, forward, each.ids.T, each.sync.T, each.sync_ids.T)
    made = [
        TableCost(stats.table.name, *parts)
        for stats, *parts in zip(profile.stats, *amounts, strict=True)
    ]
    work_s: list[float] = tally.table_work_s().tolist()
    return tuple(replace(table, work_s=own) for table, own in zip(made, work_s, strict=True))


def _links(tree: Tree, tally: Tally, own: Parts, options: CostOptions) -> LinkUse:
    ids, forward = tally.ids.flow().back, tally.forward.flow()
    asks, replies = tally.ids.messages().back, tally.forward.messages()
    passes = 2 if options.training else 1
    fans = np.array([tree.fan_out(level) - 1 for level in range(1, tree.levels + 1)], dtype=float)
    sync, sync_ids = Flow(own.sync.T, own.sync.T), Flow(own.sync_ids.T, own.sync_ids.T)
    messages = asks.sent + replies.sent + (passes - 1) * replies.received
    return LinkUse(
        ids=ids,
        forward=forward,
        backward=forward.back * (passes - 1),
        sync=sync,
        sync_ids=sync_ids,
        messages=messages + 2 * (sync.sent > 0) * fans,
        phases=Phases(
            ids.busy,
            forward.busy,
            tally.relayed,
            tally.forward.extra_rounds,
            sync.busy,
            options.training,
        ),
    )
