"""What tables ask of every holder, in a form that adds up: for solvers that try many plans.

A step's time is not the sum of its tables' times, as the slowest holder counts. But bytes
add up, and so a plan that differs from another in one table costs one table to price.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add

import numpy as np

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.bundling import bundle_key
from rowtier.cost.deal import known_rows
from rowtier.cost.links import Flow
from rowtier.cost.options import DEFAULTS, CostOptions
from rowtier.cost.tally import Tally
from rowtier.cost.time import Phases, step_time
from rowtier.cost.tree import tree_of
from rowtier.profile.curve import Floats, Ints
from rowtier.profile.profile import Profile, TableStats


@dataclass(frozen=True, eq=False)
class Load:
    """Bytes per holder and tier, or holder and level; further axes count placements."""

    kept: Floats  # holders × tiers, of rows
    moved: Floats  # holders × tiers, per step
    # Holders; but for what a step and its rounds take, and bands that are run with other tables'.
    work_s: Floats
    ids: Flow
    forward: Flow
    sync: Flow
    rounds: Floats  # kinds × levels: how many tables ask, answer, go by gateways, add up, sync

    @classmethod
    def of(
        cls,
        stats: TableStats,
        bands: tuple[Band, ...],
        profile: Profile,
        cluster: Cluster,
        options: CostOptions = DEFAULTS,
    ) -> Load:
        """The load of one table."""
        return chosen(cls.of_each(stats, [bands], profile, cluster, options), 0)

    @classmethod
    def of_each(
        cls,
        stats: TableStats,
        placements: Sequence[tuple[Band, ...]],
        profile: Profile,
        cluster: Cluster,
        options: CostOptions = DEFAULTS,
    ) -> Load:
        """Loads of one table that is placed in several ways, side by side."""
        tree = tree_of(cluster)
        tally = Tally.of_plans(tree, options, stats, placements, profile)
        shared = [bundle_key(stats.table, bands, tree) is not None for bands in placements]
        return cls._of(tally, tally.pieces_s * np.array(shared))

    @classmethod
    def of_all(
        cls, bands: Bands, profile: Profile, cluster: Cluster, options: CostOptions = DEFAULTS
    ) -> Load:
        """The load of all tables together, with the work of bands as they are run."""
        tally = Tally(tree_of(cluster), options, len(profile.stats))
        for stats in profile.stats:
            tally.add(stats, bands[stats.table.name], profile, known_rows(stats, None))
        return cls._of(tally, 0.0)

    @classmethod
    def _of(cls, tally: Tally, shared_s: float | Floats) -> Load:
        own = tally.by_holder()
        ids, forward = tally.ids.flow().back, tally.forward.flow()
        synced = (own.sync + own.sync_ids).swapaxes(0, 1)
        sync = Flow(synced, synced)
        busy = (ids.busy, forward.busy, tally.relayed, tally.forward.extra_rounds, sync.busy)
        return cls(
            np.rint(own.weights + own.state).swapaxes(0, 1),
            (own.read + own.written).swapaxes(0, 1),
            tally.work_s(own) - shared_s,
            ids,
            forward,
            sync,
            np.stack(busy).astype(np.float64),
        )

    def __add__(self, other: Load) -> Load:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Load(*(mine + its for mine, its in pairs))

    def __sub__(self, other: Load) -> Load:
        return self + other * -1.0

    def __mul__(self, factor: float) -> Load:
        return Load(*(mine * factor for mine in vars(self).values()))

    def of_holders(self, holders: Ints) -> Load:
        """The same with what other holders have to do: the i-th gets that of `holders[i]`."""
        flows = (self.ids, self.forward, self.sync)
        ids, forward, sync = (Flow(f.sent[holders], f.received[holders]) for f in flows)
        kept, moved, work_s = (part[holders] for part in (self.kept, self.moved, self.work_s))
        return Load(kept, moved, work_s, ids, forward, sync, self.rounds)

    @property
    def evened(self) -> Load:
        """The same as if every holder had as much to do."""

        def mean(part: Floats) -> Floats:
            return np.broadcast_to(part.mean(axis=0), part.shape)

        flows = (self.ids, self.forward, self.sync)
        ids, forward, sync = (Flow(mean(f.sent), mean(f.received)) for f in flows)
        kept, moved, work_s = (mean(part) for part in (self.kept, self.moved, self.work_s))
        return Load(kept, moved, work_s, ids, forward, sync, self.rounds)

    def step_s(self, cluster: Cluster, options: CostOptions = DEFAULTS) -> Floats:
        """Seconds of a step with this load, one for each placement."""
        asked, answered, relayed, added_up, synced = self.rounds > 0.5
        phases = Phases(asked, answered, relayed, added_up, synced, options.training)
        exchange = [self.ids, self.forward, self.forward.back * float(options.training)]
        tree = tree_of(cluster)
        time = step_time(tree, self.moved, self.work_s, exchange, self.sync, phases, options)
        return time.each_step_s


def total_load(loads: Iterable[Load]) -> Load:
    """The load of several tables together."""
    return reduce(add, loads)


def stacked(loads: Sequence[Load]) -> Load:
    """Several loads side by side, along a new last axis."""
    return _joined(loads, partial(np.stack, axis=-1))


def side_by_side(loads: Sequence[Load]) -> Load:
    """Stacked loads, one behind the other along the last axis."""
    return _joined(loads, partial(np.concatenate, axis=-1))


def chosen(loads: Load, at: Ints | int) -> Load:
    """Some of stacked loads, by their places along the last axis."""
    return _joined([loads], lambda parts: parts[0][..., at])


def _joined(loads: Sequence[Load], join: Callable[[list[Floats]], Floats]) -> Load:
    def flow(name: str) -> Flow:
        flows: list[Flow] = [getattr(load, name) for load in loads]
        return Flow(join([f.sent for f in flows]), join([f.received for f in flows]))

    names = ("kept", "moved", "work_s", "rounds")
    kept, moved, work_s, rounds = (join([getattr(load, name) for load in loads]) for name in names)
    return Load(kept, moved, work_s, flow("ids"), flow("forward"), flow("sync"), rounds)
