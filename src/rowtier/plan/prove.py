"""Recompute bounds by code that shares nothing with the solvers.

A certificate of `joint` names prices for a byte of every memory, weights of holders, and where
shares of lookups that go by partial sums are cut. At any prices every row of every table may
choose its home alone, among all that a band can say; what that costs, less what all memory is
worth, is below the cost of every plan (README.md says why). So a bound is proved by adding up,
with nothing to search: this is that sum, bucket by bucket and home by home.

On RecShard's objective nothing is faster than if all fast memory were one and held the rows that
are read most per byte. Where tables stay whole, bounds have other reasons and are not proved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from rowtier.cluster import Cluster
from rowtier.cost.memory import output_bytes
from rowtier.cost.terms import row_terms
from rowtier.cost.time import link_s_per_byte
from rowtier.cost.touch import LOOKUPS, BagLengths, table_basis
from rowtier.cost.tree import tree_of
from rowtier.errors import Mistake
from rowtier.plan.plan import Plan, Proof
from rowtier.plan.prove_facts import (
    attached_level,
    capacity_bytes,
    form_mistakes,
    pooled_s,
    saves_when_cut,
)
from rowtier.plan.prove_ways import (
    KeptRow,
    RoundsNeeded,
    allows,
    every_way,
    rounds_of,
    waits_s,
    wide_levels,
)
from rowtier.profile.curve import Floats
from rowtier.profile.profile import TableStats
from rowtier.tables import EXCHANGES, Exchange, Table

KINDS = ("exchange", "gateways", "copies")  # of rounds
ROUNDING = 1e-10  # of all that is added up: more than sums of millions of numbers are off by
MANY = 64  # boxes of masses that are looked at together


def proved_s(plan: Plan) -> float | None:
    """Seconds that no plan beats; None if the certificate's bound needs other reasons."""
    found = prove(plan)
    return None if found is None else found.seconds


@dataclass(frozen=True)
class Proved:
    """Seconds that no plan beats, and that none beats without rounds of a kind (None: no plan)."""

    seconds: float
    without: Mapping[str, float | None]


def prove(plan: Plan) -> Proved | None:
    """What a plan's proof proves; nothing if it is not of the form that the arithmetic needs."""
    certificate = plan.certificate
    if certificate is None or certificate.proof is None:
        return None
    if any(proof_mistakes(plan)):
        return Proved(0.0, dict.fromkeys(KINDS, 0.0))  # no step takes less than nothing
    if certificate.view == "recshard":
        return Proved(pooled_s(plan), {})
    if not certificate.times_a_step:
        return None
    checked = _Check(plan, certificate.proof)
    return Proved(checked.least_s() or 0.0, {kind: checked.least_s(kind) for kind in KINDS})


def proof_mistakes(plan: Plan) -> Iterator[Mistake]:
    """What is not of the form that the arithmetic needs, if there is a proof."""
    certificate = plan.certificate
    if certificate is None or certificate.proof is None:
        return
    proof = certificate.proof
    if certificate.times_a_step:
        yield from form_mistakes(proof, plan.cluster, len(_Check(plan, proof).senders))
    elif certificate.view != "recshard":
        yield Mistake("", None, f"nothing proves bounds in view {certificate.view!r}; plan again")
    elif any(proof.model_dump(exclude={"capacity_bytes", "sync_weight"}).values()):
        yield Mistake("prices", None, "on RecShard's objective there are none; plan again")


@dataclass(frozen=True, eq=False)
class _Check:
    """One proof against everything that a band can say."""

    plan: Plan
    proof: Proof

    @property
    def _trains(self) -> bool:
        return not self.plan.serves

    @property
    def _passes(self) -> int:
        """Forward, and backward if the plan is for training."""
        return 1 + self._trains

    def least_s(self, without: str = "") -> float | None:
        """The least over what rounds a plan may have; of each the best that any prices prove."""
        every = range(len(self._levels))
        least = np.inf
        for rounds in (RoundsNeeded(*facts) for facts in product(every, every, (True, False))):
            if rounds.lacks(without) and self._exists(rounds):
                known = [s for other, s in self._proved if allows(other, rounds)]
                least = min(least, max(known) + self._fixed_s(rounds))
        return max(0.0, float(least) * (1 - 1e-9)) if least < np.inf else None

    @cached_property
    def _proved(self) -> list[tuple[RoundsNeeded, float]]:
        """What each case proves, but for the rounds."""
        levels = self._levels
        cases = [
            (RoundsNeeded(len(levels) - 1, int(self._trains), True), np.array(self.proof.prices))
        ]
        for case in self.proof.cases:
            rounds = RoundsNeeded(levels.index(case.widest), levels.index(case.meets), case.relayed)
            cases.append((rounds, np.array(case.prices)))
        capacity = np.array(capacity_bytes(self.plan))
        worth = np.array([prices @ capacity for _, prices in cases])
        paid = np.zeros(len(cases))
        for stats in self.plan.profile.stats:
            paid += self._table_s(stats, cases)
        # Where prices are high, the difference is small beside what it is made of. A case that
        # leaves some row no home at all has no plans.
        homes = np.isfinite(paid)
        found = np.where(homes, paid, 0.0) - worth
        found -= ROUNDING * (np.where(homes, paid, 0.0) + worth)
        found[~homes] = np.inf
        return [(rounds, float(s)) for (rounds, _), s in zip(cases, found, strict=True)]

    @property
    def _levels(self) -> list[str | None]:
        """The names of levels, by their numbers; none stands for nobody."""
        return [None, *(level.name for level in self.plan.cluster.levels)]

    @cached_property
    def _idle(self) -> bool:
        """Whether there are rows that are never looked up: gateways may pass on nothing else."""
        tables = [(stats.curve, stats.table.num_embeddings) for stats in self.plan.profile.stats]
        return any(c.positions < rows or not c.probabilities.all() for c, rows in tables)

    def _exists(self, rounds: RoundsNeeded) -> bool:
        """Whether some rows have just these rounds, and every row that is looked up has a home."""
        own = self._own_rounds
        asked, met = {r.asked for r in own} | {0}, {r.met for r in own} | {0}
        if rounds.asked not in asked or rounds.met not in met:
            return False
        if rounds.relayed and not any(r.relayed for r in own):
            return False
        return not any(s.lookups for s in self.plan.profile.stats) or any(
            allows(rounds, one) for one in own
        )

    @cached_property
    def _own_rounds(self) -> list[RoundsNeeded]:
        """The rounds of every way there is."""
        return [self._rounds(kept) for kept in every_way(self.plan.cluster)]

    def _rounds(self, kept: KeptRow) -> RoundsNeeded:
        """The rounds of a way; copies that nobody changes never meet."""
        found = rounds_of(kept, self.plan.cluster)
        return found if self._trains else replace(found, met=0)

    def _exchanges(self, table: Table) -> list[Exchange]:
        """What readers of a table may get: not sums where they need rows, and what a pin says."""
        wanted = self.plan.constraints
        pinned = None if wanted is None else wanted.pin(table.name).exchange
        summed = table.pooling != "none" and table.weights == "given"
        found = [one for one in EXCHANGES if one == "rows" or summed]
        return [one for one in found if pinned in (None, one)]

    def _table_s(self, stats: TableStats, cases: list[tuple[RoundsNeeded, Floats]]) -> Floats:
        """The least that a table costs if each row pays for its time and for its memory."""
        cluster, table = self.plan.cluster, stats.table
        exchanges = self._exchanges(table)
        basis = table_basis(stats, self.plan.profile, tree_of(cluster).sizes, rest=True)
        widths = np.append(stats.curve.widths, table.num_embeddings - stats.curve.positions)
        mass = np.append(stats.curve.probabilities, 0.0)
        whole = widths > 0
        mass, widths = mass[whole], widths[whole].astype(np.float64)
        ways = list(every_way(self.plan.cluster, exchanges))
        seconds, share = self._seconds(ways, table, basis[:, whole])
        by_sums = "sums" in exchanges and bool(stats.lookups) and bool(self._owners)
        boxes = self._boxes(stats, share) if by_sums else None
        found = []
        for rounds, prices in cases:
            fetched = np.full(len(mass), np.inf)
            owned = {owner: fetched.copy() for owner in self._owners}
            for kept, each in zip(ways, seconds, strict=True):
                size = table.stored_row_bytes / cluster.group_size(kept.level)
                cost = each + share * prices[kept.memory] * size
                if not allows(rounds, self._rounds(kept)):
                    cost = np.where(mass > 0, np.inf, cost)
                # Where nothing is looked up there are no sums, however rows would be sent.
                into = owned[kept.owner] if by_sums and kept.owner else fetched
                np.minimum(into, cost, out=into)
            least = float(fetched @ widths)
            if boxes is not None:
                by_owner = np.stack([owned[owner] for owner in self._owners])
                least = min(least, self._with_sums_s(stats, fetched, by_owner, mass, widths, boxes))
            found.append(least)
        return np.array(found)

    def _seconds(
        self, ways: list[KeptRow], table: Table, basis: Floats
    ) -> tuple[list[Floats], float]:
        """What a row of each way costs beside memory, and the share of it that must lie there.

        A row whose columns lie apart may save what is moved for granularity's sake. Then it asks
        twice, or one column has a copy on every device.
        """
        cluster = self.plan.cluster
        whole = [self._weighed(kept, table, basis, cluster) for kept in ways]
        dim = table.embedding_dim
        if dim == 1 or not saves_when_cut(table, cluster):
            return whole, 1.0
        fine = [self._weighed(kept, table, basis, self._ungrained) for kept in ways]
        asks = [
            link_s_per_byte(tree_of(cluster)) @ terms.id_bytes / terms.group_devices
            for kept in ways
            if kept.level
            for terms in [row_terms(kept.band, table, basis, cluster, self.plan.assumed)]
        ]
        again = self._weight(0) * cluster.work.lookup_s * basis[LOOKUPS]
        here = np.min([f for kept, f in zip(ways, fine, strict=True) if not kept.level], axis=0)
        found, rest = [], 1 / dim
        for kept, one, other in zip(ways, whole, fine, strict=True):
            if kept.level:
                twice = other + np.min(asks, axis=0) + again
                other = np.minimum(twice, (1 - rest) * other + rest * here)
            found.append(np.minimum(one, other))
        return found, 1 - rest

    def _weighed(self, kept: KeptRow, table: Table, basis: Floats, cluster: Cluster) -> Floats:
        terms = row_terms(kept.band, table, basis, cluster, self.plan.assumed)
        busy = (terms.memory_s + terms.serving_s) * self._each(kept.kind)
        sync = self.proof.sync_weight * terms.sync_s.sum(axis=0) if kept.kind == 0 else 0.0
        read = self._weight(0) * terms.reading_s
        return np.asarray(
            self._weight(kept.kind) * busy + read + terms.exchange_s.sum(axis=0) + sync
        )

    def _with_sums_s(
        self, stats: TableStats, fetched: Floats, owned: Floats, mass: Floats, widths: Floats,
        boxes: tuple[Floats, Floats],
    ) -> float:  # fmt: skip
        """The least over boxes of masses: chords of what a reader needs, and means at the end."""
        lookups = self.plan.profile.lookups_per_step(stats)
        twice = self._weight(0) * self.plan.cluster.work.lookup_s * lookups
        alone = np.where(mass > 0, np.inf, fetched)  # no row that is looked up is fetched
        best = float(fetched @ widths)
        starts, rises = boxes
        order = np.argsort(starts)
        for first in range(0, len(order), MANY):
            some = order[first : first + MANY]
            by_sums = (owned[None] + rises[some][:, :, None] * mass).min(axis=1)
            for others, more in ((fetched, twice), (alone, 0.0)):
                rows = np.minimum(others, by_sums) @ widths
                best = min(best, float((rows + starts[some]).min()) + more)
            if starts[some[-1]] >= best:
                break
        return best

    def _boxes(self, stats: TableStats, share: float) -> tuple[Floats, Floats]:
        """What sums cost at least in each box, and more for a share of lookups, by owner."""
        unit, batch = share * self._sum_s(stats.table), self.plan.profile.batch_size
        starts = np.zeros(len(self._box_list))
        rises = np.zeros((len(self._box_list), len(self._owners)))
        for dim, (who, distances) in enumerate(self.senders):
            masses, box = np.array(self.proof.masses[dim]), self._box_list[:, dim]
            needed = BagLengths.of(stats).sums(masses) * batch
            slope = np.diff(needed) / np.diff(masses)
            seconds = unit[np.ix_(who, distances)]
            cheapest = seconds.min(axis=0)
            starts += cheapest.sum() * (needed[:-1] - slope * masses[:-1])[box]
            dearer = np.multiply.outer(needed[1:] / masses[1:], (seconds - cheapest).sum(axis=1))
            rises[:, who] += (cheapest.sum() * slope)[box, None] + dearer[box]
        return starts, rises

    @cached_property
    def _box_list(self) -> NDArray[np.int64]:
        """All boxes that some plan is in: who sends at one distance has no more than all there."""
        cuts = [np.array(masses) for masses in self.proof.masses]
        kept = []
        for box in product(*(range(len(cut) - 1) for cut in cuts)):
            low = [cut[at] for cut, at in zip(cuts, box, strict=True)]
            high = [cut[at + 1] for cut, at in zip(cuts, box, strict=True)]
            pairs = product(range(len(cuts)), repeat=2)
            if not any(self._within(a, b) and high[b] <= low[a] for a, b in pairs if a != b):
                kept.append(box)
        return np.array(kept, dtype=np.int64).reshape(len(kept), len(cuts))

    def _within(self, one: int, other: int) -> bool:
        return set(self.senders[one][0]) <= set(self.senders[other][0])

    @cached_property
    def _owners(self) -> list[tuple[int, int]]:
        """Levels and kinds of owners."""
        return sorted(
            {kept.owner for kept in every_way(self.plan.cluster) if kept.owner is not None}
        )

    @cached_property
    def senders(self) -> list[tuple[list[int], list[int]]]:
        """Owners that send anything at some distances, and the distances: those alike together."""
        reached = [self._readers(*owner) > 0 for owner in self._owners]
        found: dict[tuple[bool, ...], list[int]] = {}
        for distance in range(len(self.plan.cluster.levels) + 1):
            who = tuple(bool(one[distance]) for one in reached)
            if any(who):
                found.setdefault(who, []).append(distance)
        return [
            ([at for at, sends in enumerate(who) if sends], found[who])
            for who in sorted(found, reverse=True)
        ]

    def _readers(self, level: int, kind: int) -> Floats:
        """The share of readers at each distance from an owner; 0 is the owner itself."""
        cluster = self.plan.cluster
        sizes = np.array([cluster.group_size(k) for k in range(level + 1)], dtype=np.float64)
        found = np.zeros(len(cluster.levels) + 1)
        attached = attached_level(cluster, kind)
        found[: level + 1] = np.diff(sizes, prepend=0.0)
        if attached:
            found[attached] = found[: attached + 1].sum()
            found[:attached] = 0.0
        return np.asarray(found / sizes[-1])

    def _sum_s(self, table: Table) -> Floats:
        """Owners × distances: seconds for a sum of every sample, packed, sent and unpacked."""
        cluster = self.plan.cluster
        links = np.append(0.0, self._passes * table.row_bytes * link_s_per_byte(tree_of(cluster)))
        copy = self._passes * cluster.work.sum_copy_s(table.row_bytes)
        found = []
        for level, kind in self._owners:
            work = copy * (self._weight(0) + self._weight(kind) * self._each(kind))
            found.append(self._readers(level, kind) * (links + work))
        return np.stack(found)

    def _weight(self, kind: int) -> float:
        return self.proof.holder_weights[kind]

    def _each(self, kind: int) -> float:
        """Devices for each holder of a kind."""
        cluster = self.plan.cluster
        if kind == 0:
            return 1.0
        return cluster.num_devices / len(cluster.server_members(cluster.servers[kind - 1]))

    @cached_property
    def _ungrained(self) -> Cluster:
        """The same cluster if an access moved no more than it needs."""
        data = self.plan.cluster.to_data()
        for owner in (data["device"], *data.get("servers", [])):
            for tier in owner["tiers"]:
                tier.pop("granularity", None)
        return Cluster.model_validate(data)

    def _fixed_s(self, rounds: RoundsNeeded) -> float:
        """Work of every step, and the rounds through levels that join groups."""
        cluster, profile = self.plan.cluster, self.plan.profile
        work = cluster.work
        kinds = {s.table.name if s.table.pooling == "none" else "" for s in profile.stats}
        fixed = work.step_s + work.table_s * len(profile.stats) + work.band_s * len(kinds)
        held = output_bytes(profile, tree_of(cluster))
        fixed += self._weight(0) * self._passes * work.output_byte_s * float(held.max())
        fixed -= self.proof.sync_weight * self.plan.assumed.dense_s * work.hidden
        if rounds.asked:
            near = cluster.levels[rounds.asked - 1].size - 1
            peers = near if rounds.relayed else near * cluster.group_size(rounds.asked - 1)
            fixed += (1 + self._passes) * (work.round_s + waits_s(cluster, rounds.asked, peers))
        for level in wide_levels(cluster):
            waits = waits_s(cluster, level, cluster.levels[level - 1].size - 1)
            if rounds.relayed and not self._idle and level <= 2 and level < rounds.asked:
                fixed += (1 + self._passes) * (work.round_s + waits)
            if 0 < rounds.met <= level:
                fixed += 2 * (work.round_s + self.proof.sync_weight * waits)
        return fixed
