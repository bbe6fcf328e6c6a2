"""The figures of a step: the same list, predicted and replayed, so that the two can be compared.

A figure has a name ("forward"), belongs to the whole step, a tier, a link level, a group of
devices, a holder or a table (`of`), and where that is not enough to tell it apart, to a tier or
level of it (`at`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from rowtier.cluster import Cluster
from rowtier.cost.links import Flow
from rowtier.cost.options import DEFAULTS, CostOptions
from rowtier.cost.step_time import StepTime
from rowtier.profile.curve import Floats
from rowtier.profile.profile import Profile
from rowtier.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["step", "tier", "level", "group", "holder", "table"]
FLOWS = ("ids", "forward", "backward", "sync", "sync_ids")


class Label(NamedTuple):
    """Which figure it is."""

    kind: Kind
    of: str  # "" for the step
    name: str
    at: str
    unit: str  # s, bytes, lookups, rows, samples
    event_bytes: float = 1.0  # what one event adds at most, in the figure's unit


@dataclass(frozen=True, eq=False)
class StepFacts:
    """What one step does, or is expected to do. Rows of arrays are holders."""

    served: Floats  # lookups, holders × tiers
    read: Floats  # bytes, holders × tiers
    written: Floats
    flows: dict[str, Flow]  # by the names of FLOWS
    touched: tuple[Floats, ...]  # rows that each device touches, each node, … the whole cluster
    home_samples: float  # that look nothing up elsewhere
    time: StepTime
    tables: Floats  # tables × figures, see `table_labels`

    @property
    def distinct(self) -> Floats:
        """Rows that a device touches, a node, … the whole cluster: the mean over the groups."""
        return np.array([groups.mean() for groups in self.touched])

    def vector(self) -> Floats:
        """All figures in the order of `labels_of`."""
        time, links = self.time, [self.flows[name] for name in FLOWS]
        links_s = np.stack([time.exchange_level_s, time.sync_level_s], axis=1)
        totals = np.stack([flow.total for flow in links], axis=1)
        ways = [way for flow in links for way in (flow.sent, flow.received)]
        by_holder = np.stack([self.served, self.read, self.written], axis=1)
        parts = [
            [time.step_s, time.slowest_memory_s, time.slowest_work_s, time.links_s],
            [self.home_samples, self.served.sum(axis=1).max()],
            self.distinct,
            np.concatenate([links_s, totals], axis=1),
            by_holder.sum(axis=0).T,
            np.concatenate(self.touched),
            by_holder,
            np.concatenate(
                [time.memory_s[:, None], time.work_s[:, None], time.exchange_s, time.sync_s], axis=1
            ),
            np.stack(ways, axis=1),
            self.tables,
        ]
        return np.concatenate([np.asarray(part, dtype=np.float64).reshape(-1) for part in parts])


def labels_of(
    profile: Profile, cluster: Cluster, options: CostOptions = DEFAULTS
) -> tuple[Label, ...]:
    """The labels of `StepFacts.vector`."""
    return tuple(_labels(profile, cluster, options))


def _labels(profile: Profile, cluster: Cluster, options: CostOptions) -> Iterator[Label]:
    events = {stats.table.name: _event_bytes(stats.table, options) for stats in profile.stats}
    most = {flow: max(sizes[flow] for sizes in events.values()) for flow in FLOWS}
    tiers, levels = cluster.tier_names, [level.name for level in cluster.levels]
    holders = [cluster.holder_name(holder) for holder in range(cluster.num_holders)]
    for name in ("step", "memory", "work", "links"):
        yield Label("step", "", name, "", "s")
    yield Label("step", "", "samples at home", "", "samples")
    yield Label("step", "", "busiest holder", "", "lookups")
    for scope in cluster.scopes:
        yield Label("step", "", "rows touched", scope, "rows")
    for level in levels:
        yield Label("level", level, "exchange", "", "s")
        yield Label("level", level, "keeping equal", "", "s")
        for flow in FLOWS:
            yield Label("level", level, flow, "", "bytes", most[flow])
    for tier in tiers:
        yield from _memory("tier", tier, [""], most["forward"])
    for index, scope in enumerate(cluster.scopes):
        for group in range(cluster.num_groups(index)):
            yield Label("group", f"{scope} {group}", "rows touched", "", "rows")
    for holder in holders:
        yield from _memory("holder", holder, tiers, most["forward"])
    for holder in holders:
        yield Label("holder", holder, "memory", "", "s")
        yield Label("holder", holder, "work", "", "s")
        for name in ("exchange", "keeping equal"):
            for level in levels:
                yield Label("holder", holder, name, level, "s")
    for holder in holders:
        for flow in FLOWS:
            for way in ("sent", "received"):
                for level in levels:
                    yield Label("holder", holder, f"{flow} {way}", level, "bytes", most[flow])
    for name, sizes in events.items():
        yield from table_labels(name, tiers, levels, sizes)


def _event_bytes(table: Table, options: CostOptions) -> dict[str, float]:
    """What one event adds to each flow at most."""
    rows = dict.fromkeys(FLOWS, float(table.stored_row_bytes))
    ids = {"ids": options.bag_id_bytes(table), "sync_ids": options.id_bytes(table)}
    return rows | {flow: float(size) for flow, size in ids.items()}


def _memory(kind: Kind, of: str, at: list[str] | tuple[str, ...], size: float) -> Iterator[Label]:
    for tier in at:
        yield Label(kind, of, "lookups", tier, "lookups")
    for name in ("read", "written"):
        for tier in at:
            yield Label(kind, of, name, tier, "bytes", size)


def table_labels(
    table: str, tiers: tuple[str, ...], levels: list[str], event_bytes: dict[str, float]
) -> Iterator[Label]:
    """The labels of one table's figures."""
    yield Label("table", table, "lookups", "", "lookups")
    yield Label("table", table, "rows touched", "", "rows")
    for name in ("read", "written"):
        for tier in tiers:
            yield Label("table", table, name, tier, "bytes", event_bytes["forward"])
    for name in ("forward", "ids", "sync", "sync_ids"):
        for level in levels:
            yield Label("table", table, name, level, "bytes", event_bytes[name])


def frame_of(columns: dict[str, list[object]]) -> pa.Table:
    """Columns as an Arrow table; `.to_pandas()` makes a DataFrame of it."""
    import pyarrow as pa

    return pa.table(columns)


def label_columns(labels: tuple[Label, ...] | list[Label]) -> dict[str, list[object]]:
    """The labels as columns of a frame."""
    names = ("kind", "of", "name", "at", "unit")
    return {name: [getattr(label, name) for label in labels] for name in names}
