"""What no plan beats: the least over the rounds that plans may have.

Every kind of exchange that a plan has at all costs its rounds, whoever uses it. So plans are told
apart by how far anybody asks, and from which level on copies meet (`Phase`): for each such case
rows choose among the homes that it leaves (`dual.py`), and its rounds come on top. The bound of
all plans is the least over cases; one that has fewer homes than another, and rounds that save
little, is not priced anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

import numpy as np

from rowtier.cluster import Cluster
from rowtier.cost.options import CostOptions
from rowtier.cost.tally import outputs_work_s
from rowtier.cost.time import ASKING, SYNCING, turn_shares
from rowtier.cost.tree import Tree, tree_of
from rowtier.plan.joint.dual import MASSES, SAFETY, Priced, at_prices, best_prices, edges
from rowtier.plan.joint.homes import NO_SUMS, Phase
from rowtier.plan.joint.problem import FlatTables, Pricing
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Proof, ProvedCase
from rowtier.profile.curve import Floats
from rowtier.profile.profile import Profile

_THIRDS = 10  # the interval of weights is shortened by a third so often
_WORTH_PRICING = 1e-3  # of a bound, that the rounds of a case must save


@dataclass(frozen=True, eq=False)
class BoundCase:
    """Plans that have no other rounds than some: what rows choose, and prices that prove most."""

    phase: Phase
    fits: Priced  # what rows choose where it fits, by and large
    proof: Priced  # at the prices that prove most


@dataclass(frozen=True, eq=False)
class Least:
    """The bound of a problem, from the cases that were worth pricing; the first leaves all open."""

    pricing: Pricing
    tables: FlatTables
    cases: tuple[BoundCase, ...]

    @cached_property
    def seconds(self) -> float:
        """What no plan beats."""
        return min(self.seconds_of(phase) for phase in self.phases)

    def seconds_of(self, phase: Phase) -> float:
        """What no plan beats that has no other rounds: some case that leaves it open says most."""
        proved = [case.proof.seconds for case in self.cases if case.phase.allows(phase)]
        return max(0.0, SAFETY * (max(proved) + fixed_s(self.pricing, phase, self.tables)))

    @property
    def phases(self) -> list[Phase]:
        """All cases that there are plans for."""
        return possible_phases(self.tables)

    @cached_property
    def placeable(self) -> FlatTables:
        """The tables with rows whose columns lie together, as rows are placed."""
        if not self.pricing.cuts_columns:
            return self.tables
        return self.pricing.tables(self.tables.weights, MASSES, cut=False)

    @cached_property
    def without_owners_s(self) -> float:
        """What no plan beats in which nothing goes by sums."""
        kept = (self.tables.sums_of == NO_SUMS).astype(np.float64)
        first = self.cases[0]
        dearer = at_prices(self.tables, first.proof.prices, kept).seconds - first.proof.seconds
        return self.seconds_of(first.phase) + dearer


def least_of(profile: Profile, cluster: Cluster, options: PlanOptions, cost: CostOptions) -> Least:
    """Bound every case, with sync taken in full, and if some is hidden, for free as well."""
    hidden = cost.dense_s * cluster.work.hidden > 0
    found = [
        _least(Pricing.of(profile, cluster, options, cost, weight))
        for weight in ((1.0, 0.0) if hidden else (1.0,))
    ]
    return max(found, key=lambda least: least.seconds)


def _least(pricing: Pricing) -> Least:
    tables = _best_weights(pricing)
    found = Least(pricing, tables, ())
    for phase in found.phases:
        if found.cases and found.seconds_of(phase) >= found.seconds * (1 + _WORTH_PRICING):
            continue  # known to be worse than the best
        if found.cases and _saved_s(found, phase) < _WORTH_PRICING * found.seconds:
            continue
        fits, best = best_prices(tables, allowed_shelves(tables, phase))
        proof = at_prices(tables, best.prices, allowed_shelves(tables, phase), fine=True)
        found = Least(pricing, tables, (*found.cases, BoundCase(phase, fits, proof)))
    return found


def _saved_s(found: Least, phase: Phase) -> float:
    """Seconds of rounds that a case has less than the one that leaves all open."""
    all_s, own_s = (fixed_s(found.pricing, p, found.tables) for p in (found.cases[0].phase, phase))
    return all_s - own_s


def _best_weights(pricing: Pricing) -> FlatTables:
    """The tables with weights of holders that prove most: the bound is concave in them."""
    kinds = 1 + len(pricing.cluster.servers)

    def tables(devices: float, kind: int) -> FlatTables:
        weights = np.zeros(kinds)
        weights[kind], weights[0] = 1 - devices, devices
        return pricing.tables(weights, MASSES)

    if kinds == 1:
        return tables(1.0, 0)
    tried = [(tables(1.0, 1), 1.0)]
    best, best_s = tried[0][0], -np.inf
    for kind in range(1, kinds):
        low, high = 0.0, 1.0
        for _ in range(_THIRDS):
            pair = (low + (high - low) / 3, high - (high - low) / 3)
            values = []
            for share in pair:
                one = tables(share, kind)
                values.append(best_prices(one)[1].seconds + _outputs_s(pricing, one.weights))
                if values[-1] > best_s:
                    best, best_s = one, values[-1]
            low, high = (pair[0], high) if values[0] < values[1] else (low, pair[1])
    return best


@lru_cache(maxsize=8)
def possible_phases(tables: FlatTables) -> list[Phase]:
    """All cases that there are plans for, those that leave more open first."""
    phases = phases_of(tables)
    return [phase for phase in phases if is_possible(tables, allowed_shelves(tables, phase))]


def phases_of(tables: FlatTables) -> list[Phase]:
    """Every case, those that leave more open first."""
    own = {shelf.phase for shelf in tables.shelves}
    widest = sorted({0, *(phase.widest for phase in own)}, reverse=True)
    lowest = sorted({phase.lowest for phase in own if phase.lowest})
    relayed = sorted({phase.relayed for phase in own}, reverse=True)
    return [Phase(*facts) for facts in product(widest, (*lowest, 0), relayed)]


def allowed_shelves(tables: FlatTables, phase: Phase) -> Floats:
    """1 for each shelf whose rows take part in no other rounds."""
    return np.array([float(phase.allows(shelf.phase)) for shelf in tables.shelves])


def is_possible(tables: FlatTables, allowed: Floats) -> bool:
    """Whether every row that is looked up has a home on some shelf."""
    return bool(tables.reached[:, allowed > 0].any(axis=1).all())


def fixed_s(pricing: Pricing, phase: Phase, tables: FlatTables) -> float:
    """Seconds of work and of waiting that no plan with these rounds avoids, less what is hidden.

    Tables that are not pooled run alone, and all others are one band at least. What goes directly
    waits at its widest level alone, for a message to each device of other groups; gateways send
    one to each group, but at least through the two lowest levels one after the other, unless all
    that they pass on is never looked up. Where levels run side by side, bytes of another one may
    take longer.
    """
    work, cost = pricing.cluster.work, pricing.cost
    pooled = [stats.table.pooling != "none" for stats in pricing.profile.stats]
    alone = len(pooled) - sum(pooled)
    found = work.step_s + len(pooled) * work.table_s + work.band_s * (alone + any(pooled))
    found += _outputs_s(pricing, tables.weights)
    found -= pricing.sync_weight * cost.dense_s * work.hidden
    tree = tree_of(pricing.cluster)
    rounds = ASKING + (2 if cost.training else 1)
    if phase.widest:
        peers = _peers(tree, phase.widest, direct=not phase.relayed)
        found += rounds * (work.round_s + _wait_s(pricing.cluster, phase.widest, peers))
    idle = bool(tables.widths[tables.mass == 0.0].any())
    for level in range(1, min(phase.widest, 3) if phase.relayed and not idle else 0):
        if tree.fan_out(level) > 1:
            peers = _peers(tree, level, direct=False)
            found += rounds * (work.round_s + _wait_s(pricing.cluster, level, peers))
    for level in _meeting(phase, pricing.cluster):
        wait_s = _wait_s(pricing.cluster, level, _peers(tree, level, direct=False))
        found += SYNCING * (work.round_s + pricing.sync_weight * wait_s)
    return found


def _peers(tree: Tree, level: int, *, direct: bool) -> int:
    """Whom a device sends messages to through a level: all devices there, or one of each group."""
    return tree.sizes[level] - tree.sizes[level - 1] if direct else tree.fan_out(level) - 1


def _wait_s(cluster: Cluster, level: int, peers: int) -> float:
    own, share = cluster.levels[level - 1], turn_shares(tree_of(cluster), "levels")[level - 1]
    return float(share) * (own.latency_s + peers * own.message_s)


def _meeting(phase: Phase, cluster: Cluster) -> Iterator[int]:
    tree = tree_of(cluster)
    if phase.lowest:
        yield from (k for k in range(phase.lowest, tree.levels + 1) if tree.fan_out(k) > 1)


def _outputs_s(pricing: Pricing, weights: Floats) -> float:
    """Work of devices for what the model gets."""
    facts = (pricing.profile, pricing.cluster, pricing.cost)
    return float(weights[0]) * sum(outputs_work_s(s, *facts) for s in pricing.profile.stats)


def proof_of(least: Least) -> Proof:
    """What it takes to recompute the bound."""
    tables, first = least.tables, least.cases[0]
    names = [None, *(level.name for level in least.pricing.cluster.levels)]
    cuts = edges(tables.sums.sends.shape[1], fine=True)
    return Proof(
        prices=_numbers(first.proof.prices),
        sync_weight=least.pricing.sync_weight,
        holder_weights=_numbers(tables.weights),
        masses=tuple(_numbers(MASSES[cut]) for cut in cuts),
        cases=tuple(
            ProvedCase(
                widest=names[case.phase.widest],
                meets=names[case.phase.lowest],
                relayed=case.phase.relayed,
                prices=_numbers(case.proof.prices),
            )
            for case in least.cases[1:]
        ),
    )


def _numbers(values: Floats) -> tuple[float, ...]:
    found: list[float] = values.tolist()
    return tuple(found)
