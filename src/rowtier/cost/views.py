"""The papers' objectives, and ours, as named views of the one cost model.

recshard    memory time per access of the slowest holder; no coalescing, no links
flexshard   link time, sync counted
sca         expected bytes through all links
step        step time
read-only   step time where rows are only read, as by a model that serves: no gradients return,
            neither rows nor optimizer state are written, copies need not be kept equal
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from rowtier.band import Bands
from rowtier.cluster import Cluster
from rowtier.cost.lookups import served_by_band
from rowtier.cost.options import DEFAULTS, CostOptions
from rowtier.cost.step import step_cost
from rowtier.cost.time import own_time_s
from rowtier.cost.tree import tree_of
from rowtier.errors import UserError
from rowtier.profile.curve import Floats
from rowtier.profile.order import RowOrder
from rowtier.profile.profile import Profile

Measure = Callable[[Bands, Profile, Cluster, RowOrder | None, CostOptions], float]


@dataclass(frozen=True)
class Objective:
    """One objective: less is better."""

    name: str
    unit: str
    says: str
    measure: Measure


def access_time_s(
    bands: Bands, profile: Profile, cluster: Cluster, order: RowOrder | None = None
) -> Floats:
    """RecShard's time of every holder: each lookup reads one row from the tier it lies in.

    batch · coverage · pooling · row bytes · (share/bandwidth, added over the tiers), over
    all devices that the holder serves. Of memory that devices share, each has its part of the
    bandwidth.
    """
    tree = tree_of(cluster)
    read = np.zeros((tree.holders, len(tree.columns)))
    for stats, band, holders, lookups in served_by_band(bands, profile, cluster, order):
        row_bytes = band.width(stats.table.embedding_dim) * stats.table.item_bytes
        read[holders, tree.columns[band.tier]] += lookups * row_bytes
    return own_time_s(tree, read)


def assumptions(view: str, assumed: CostOptions = DEFAULTS) -> CostOptions:
    """The papers' views assume what the papers do: SCA counts the forward exchange alone."""
    if view in ("step", "read-only"):
        return assumed if view == "step" else assumed.reading
    return CostOptions(training=view != "sca")


def objective(
    view: str,
    bands: Bands,
    profile: Profile,
    cluster: Cluster,
    order: RowOrder | None = None,
    options: CostOptions = DEFAULTS,
) -> float:
    """What a placement costs in a named view; `VIEWS` lists them."""
    if view not in VIEWS:
        raise UserError(f"no view {view!r}; there are {', '.join(VIEWS)}")
    return VIEWS[view].measure(bands, profile, cluster, order, options)


def _recshard(
    bands: Bands, profile: Profile, cluster: Cluster, order: RowOrder | None, _: CostOptions
) -> float:
    return float(access_time_s(bands, profile, cluster, order).max())


def _flexshard(
    bands: Bands, profile: Profile, cluster: Cluster, order: RowOrder | None, options: CostOptions
) -> float:
    return step_cost(bands, profile, cluster, order, options).time.links_s


def _sca(
    bands: Bands, profile: Profile, cluster: Cluster, order: RowOrder | None, options: CostOptions
) -> float:
    return float(step_cost(bands, profile, cluster, order, options).links.total_bytes.sum())


def _step(
    bands: Bands, profile: Profile, cluster: Cluster, order: RowOrder | None, options: CostOptions
) -> float:
    return step_cost(bands, profile, cluster, order, options).step_s


def _read_only(
    bands: Bands, profile: Profile, cluster: Cluster, order: RowOrder | None, options: CostOptions
) -> float:
    return step_cost(bands, profile, cluster, order, options.reading).step_s


VIEWS: Mapping[str, Objective] = {
    view.name: view
    for view in (
        Objective("recshard", "s", "memory time per access of the slowest holder", _recshard),
        Objective("flexshard", "s", "time of all links", _flexshard),
        Objective("sca", "bytes", "expected bytes through all links", _sca),
        Objective("step", "s", "time of a step", _step),
        Objective("read-only", "s", "time of a step that only reads", _read_only),
    )
}
