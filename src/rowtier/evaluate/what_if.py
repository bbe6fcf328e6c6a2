"""What if the machine were another one: planned anew, and what prices had promised.

tiers.hbm.capacity=40GiB   levels.cluster.bandwidth=50GB/s   batch_size=4096
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rowtier.cluster import Cluster
from rowtier.cost.memory import pools, used_bytes
from rowtier.cost.step import StepCost, step_cost
from rowtier.errors import InfeasibleError, InvalidError, UnitError, UserError
from rowtier.evaluate.parts import difference, reasons, step_parts
from rowtier.evaluate.phrases import ms
from rowtier.evaluate.shares import step_shares
from rowtier.evaluate.words import cuts, placement
from rowtier.fields import check_batch_size
from rowtier.files import try_parse
from rowtier.plan.make import METHODS, make_plan
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import GIGA, Plan
from rowtier.units import parse_bandwidth, parse_bytes, parse_count, parse_seconds

BATCH = "batch_size"
_READERS: Mapping[str, Any] = {
    "capacity": parse_bytes,
    "bandwidth": parse_bandwidth,
    "granularity": parse_bytes,
    "latency": parse_seconds,
    "size": parse_count,
    BATCH: parse_count,
}
_LESS = 0.999  # times as long: worth a word
_OF_TIER = ("capacity", "bandwidth", "granularity")
_OF_LEVEL = ("size", "bandwidth", "latency")


@dataclass(frozen=True)
class TableChange:
    """A table that is placed otherwise."""

    name: str
    share: float  # of the step, before
    before: str
    after: str


@dataclass(frozen=True, eq=False)
class WhatIf:
    """A plan, and the same tables planned anew by the same method for a changed machine."""

    changes: tuple[str, ...]
    plan: Plan
    replanned: Plan | None  # None where nothing fits
    why_not: str
    stays_s: float | None  # step of the old placement on the new machine; None if it does not fit
    promised_s: float | None  # the same less what prices say for the memory that was added

    @cached_property
    def before(self) -> StepCost:
        """The cost of the plan as it is."""
        return _cost(self.plan)

    @cached_property
    def after(self) -> StepCost | None:
        """The cost of the plan made anew."""
        return None if self.replanned is None else _cost(self.replanned)

    @property
    def gap_s(self) -> float | None:
        """Seconds by which the two steps may be above the best ones, together."""
        plans = (self.plan, self.replanned)
        found = [p.certificate for p in plans if p is not None and p.certificate is not None]
        if len(found) < 2 or not all(certificate.times_a_step for certificate in found):
            return None
        return sum(certificate.objective - certificate.bound for certificate in found)

    @property
    def verdict(self) -> str:
        """One sentence: what the changes do to the step."""
        asked = ", ".join(self.changes)
        if self.after is None:
            return f"with {asked} nothing fits: {self.why_not.splitlines()[0]}"
        was, now = self.before.step_s, self.after.step_s
        times = f", {was / now:.2f}× as fast" if now and was else ""
        return f"with {asked} a step takes {ms(now)} instead of {ms(was)}{times}"

    @property
    def says(self) -> list[str]:
        """What else there is to know, line by line."""
        if self.after is None or self.replanned is None:
            return []
        parts = difference(step_parts(self.before), step_parts(self.after))
        said = [f"the difference: {reasons(parts)}"]
        if self.stays_s is not None:
            better = ", which is less" if self.stays_s < _LESS * self.after.step_s else ""
            said.append(f"the old placement would take {ms(self.stays_s)} there{better}")
        if self.promised_s is not None:
            gap = "" if self.gap_s is None else f", where the gaps leave open {ms(self.gap_s)}"
            said.append(
                f"prices promised {ms(self.promised_s)}; planned anew it is "
                f"{ms(self.after.step_s)}{gap}"
            )
        for what, plan in (("binds", self.plan), ("would bind", self.replanned)):
            if plan.certificate is not None:
                said.append(f"what {what}: {plan.certificate.binding}")
        return said

    @cached_property
    def tables(self) -> list[TableChange]:
        """The tables that are placed otherwise, those with the largest share of the step first."""
        if self.replanned is None:
            return []
        new, shares = self.replanned, step_shares(self.before)
        told = [
            TableChange(table.name, share, _words(self.plan, table.name), _words(new, table.name))
            for (table, bands), share in zip(self.plan, shares, strict=True)
            if bands != new.bands[table.name]
        ]
        return sorted(told, key=lambda change: -change.share)

    @property
    def memory(self) -> list[tuple[str, int, int]]:
        """Per tier the bytes of rows on the fullest holder, before and after."""
        if self.after is None:
            return []
        names = dict.fromkeys((*self.before.cluster.tier_names, *self.after.cluster.tier_names))
        return [(n, _most(self.before, n), _most(self.after, n)) for n in names]

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        return {
            "verdict": self.verdict,
            "changes": list(self.changes),
            "says": self.says,
            "step_s": self.before.step_s,
            "new_step_s": None if self.after is None else self.after.step_s,
            "why_not": self.why_not or None,
            "stays_s": self.stays_s,
            "promised_s": self.promised_s,
            "gap_s": self.gap_s,
            "memory": [{"tier": n, "bytes": a, "new_bytes": b} for n, a, b in self.memory],
            "tables": [dict(vars(change)) for change in self.tables],
        }

    def __repr__(self) -> str:
        return f"<WhatIf: {self.verdict}>"


def what_if(plan: Plan, changes: str | Iterable[str], options: PlanOptions | None = None) -> WhatIf:
    """Plan the same tables anew by the same method, for a machine with some changes.

    A plan keeps its constraints but not its other options: give `options` to set them.
    """
    asked = (changes,) if isinstance(changes, str) else tuple(changes)
    if plan.method not in METHODS:
        raise UserError(
            f"the plan was made by {plan.method!r}, which is no method that can plan anew; "
            f"there are {', '.join(METHODS)}"
        )
    cluster, batch_size = changed(plan, asked)
    profile = replace(plan.profile, batch_size=batch_size)
    replanned, why_not = None, ""
    try:
        made = make_plan(profile, cluster, plan.method, options or PlanOptions.of(plan))
        replanned = replace(made, order=plan.hotness_order, vocabularies=plan.vocabularies)
    except InfeasibleError as error:
        why_not = str(error)
    moved = replace(plan, cluster=cluster, profile=profile)
    stays_s = _cost(moved).step_s if _still_fits(plan, moved) else None
    return WhatIf(asked, plan, replanned, why_not, stays_s, _promised(plan, moved, stays_s))


def _still_fits(plan: Plan, moved: Plan) -> bool:
    """Whether the same bands can be kept on a changed cluster."""
    sizes = [[level.size for level in p.cluster.levels] for p in (plan, moved)]
    if sizes[0] != sizes[1]:
        return False
    used, names = used_bytes(moved.bands, moved.profile, moved.cluster), moved.cluster.tier_names
    return all(
        used[list(pool.holders), names.index(pool.tier)].sum() <= pool.capacity_bytes
        for pool in pools(moved.cluster)
    )


def _promised(plan: Plan, moved: Plan, stays_s: float | None) -> float | None:
    """The step by prices: the old placement's, less what more memory would save."""
    certificate, cluster = plan.certificate, moved.cluster
    if certificate is None or not certificate.times_a_step or not certificate.prices:
        return None
    grown = {
        tier.name: _per_device(cluster, tier.name) - _per_device(plan.cluster, tier.name)
        for tier in plan.cluster.device.tiers
    }
    if stays_s is None:  # less memory: prices say what its loss costs, at the least
        if [level.size for level in plan.cluster.levels] != [lev.size for lev in cluster.levels]:
            return None
        stays_s = _cost(moved).step_s
    worth = {price.resource: price.saves / GIGA for price in certificate.prices if
             price.unit == "GB"}  # fmt: skip
    return stays_s - sum(worth.get(name, 0.0) * more for name, more in grown.items())


def _per_device(cluster: Cluster, tier: str) -> float:
    found = next(entry for entry in cluster.device.tiers if entry.name == tier)
    level = 0 if found.shared_by is None else cluster.level_of(found.shared_by)
    return found.capacity_bytes / cluster.group_size(level)


def changed(plan: Plan, changes: Iterable[str]) -> tuple[Cluster, int]:
    """The plan's cluster and batch size with changes such as tiers.hbm.capacity=40GiB."""
    data, batch_size = plan.cluster.to_data(), plan.profile.batch_size
    accepted = _accepted(plan.cluster)
    for change in changes:
        key, equals, text = (part.strip() for part in change.partition("="))
        if not equals or not text:
            raise UserError(f"{change!r}: write KEY=VALUE, such as {next(iter(accepted))}=40GiB")
        if key not in accepted:
            raise UserError(f"{key!r} cannot be changed; accepted keys: {', '.join(accepted)}")
        last = key.rpartition(".")[2]
        try:
            value = _READERS[last](text)
        except UnitError as error:
            raise UserError(f"{key}: {error}") from None
        if key == BATCH:
            batch_size = value
            continue
        accepted[key](data)[last] = text if last != "size" else value
    check_batch_size(batch_size)
    found, mistakes = try_parse(Cluster, data)
    if found is None:
        raise InvalidError("the changed cluster", mistakes)
    return found, batch_size


def _accepted(cluster: Cluster) -> dict[str, Any]:
    """The keys that can be changed, and where in the cluster's data each is."""

    def tier(index: int) -> Any:
        return lambda data: data["device"]["tiers"][index]

    def level(index: int) -> Any:
        return lambda data: data["levels"][index]

    def of_server(server: int, index: int) -> Any:
        return lambda data: data["servers"][server]["tiers"][index]

    keys: dict[str, Any] = {}
    for place, server in enumerate(cluster.servers):
        for index, entry in enumerate(server.tiers):
            keys |= {f"tiers.{entry.name}.{key}": of_server(place, index) for key in _OF_TIER}
    for index, entry in enumerate(cluster.device.tiers):
        keys |= {f"tiers.{entry.name}.{key}": tier(index) for key in _OF_TIER}
    for index, link in enumerate(cluster.levels):
        keys |= {f"levels.{link.name}.{key}": level(index) for key in _OF_LEVEL}
    return keys | {BATCH: None}


def _cost(plan: Plan) -> StepCost:
    return step_cost(plan.bands, plan.profile, plan.cluster, plan.order, plan.assumed)


def _words(plan: Plan, table: str) -> str:
    return placement(
        cuts(plan.bands[table], plan.cluster), plan.profile[table].table.num_embeddings
    )


def _most(cost: StepCost, tier: str) -> int:
    names = cost.cluster.tier_names
    return int(cost.memory.rows[:, names.index(tier)].max()) if tier in names else 0
