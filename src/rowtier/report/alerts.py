"""What a reader should know before trusting or running a plan, in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rowtier.cost.memory import Pool
from rowtier.evaluate.words import numbers
from rowtier.profile.look import alerts as table_alerts
from rowtier.report.facts import Facts
from rowtier.report.verdict import uncertainty
from rowtier.units import show_bytes

GAP, IMBALANCE, FULL, DOMINANT, SLOW = 0.05, 1.25, 0.95, 0.25, 0.05
THIN = 10  # lookups per touched row below which single rows are ranked by chance
THIN_SHARE = 0.2
UNCERTAIN = 0.1
UNSEEN = 0.01  # share of lookups to come on rows that the data never touched

_FULL_SAYS = {
    True: "it is the last tier, so larger tables will not fit",
    False: "the plan uses what is there; --reserve leaves room for other tensors",
}

Level = Literal["problem", "warning", "note"]
LEVELS: tuple[Level, ...] = ("problem", "warning", "note")


@dataclass(frozen=True)
class Alert:
    """One thing to know; `more` lists the cases it stands for."""

    level: Level
    text: str
    more: tuple[str, ...] = ()


def find_alerts(facts: Facts) -> list[Alert]:
    """All alerts, the gravest first."""
    found = [
        *_memory(facts),
        *_speed(facts),
        *_certificate(facts),
        *_constraints(facts),
        *_balance(facts),
        *_statistics(facts),
    ]
    return sorted(found, key=lambda alert: LEVELS.index(alert.level))


def _memory(facts: Facts) -> Iterator[Alert]:
    for tier in facts.plan.cluster.tier_names:
        found = [(pool, held) for pool, held in facts.pools if pool.tier == tier]
        filled = [sum(held.values()) / pool.capacity_bytes for pool, held in found]
        share, full = max(filled), sum(part > FULL for part in filled)
        fullest = found[filled.index(share)][0]
        if share > 1:
            yield Alert("problem", _over(fullest, share))
        elif full:
            last = tier == facts.plan.cluster.device.tiers[-1].name
            where = f"{tier} is {share:.1%} full on {fullest.place}"
            where += f" (over {FULL:.0%} in {full} of {len(filled)})" if len(filled) > 1 else ""
            yield Alert("warning" if last else "note", f"{where}: {_FULL_SAYS[last]}")


def _constraints(facts: Facts) -> Iterator[Alert]:
    wanted = facts.plan.constraints
    if wanted is not None:
        said = f"some things were decided by hand ({wanted.summary})"
        yield Alert("note", f"{said}: the plan keeps to them, and may be slower for it")


def _over(pool: Pool, share: float) -> str:
    """Room must be left for what planners do not place: buffers and remap tables."""
    return (
        f"{pool.tier} of {pool.place} is over its capacity of {show_bytes(pool.capacity_bytes)} by "
        f"{show_bytes((share - 1) * pool.capacity_bytes)} once exchange buffers, outputs "
        "and remap tables are counted: plan again with --fit all"
    )


def _speed(facts: Facts) -> Iterator[Alert]:
    best = facts.best_baseline
    if best is not None and best.step_s < facts.load.step_s:
        yield Alert(
            "warning",
            f"the baseline {best.name} is faster: {1e3 * best.step_s:.4g} ms a step against "
            f"{1e3 * facts.load.step_s:.4g} ms",
        )
    unfit = [b.name for b in facts.baselines if b.load is None]
    if unfit:
        yield Alert("note", f"no room for {', '.join(unfit)}: this plan fits where they do not")
    if facts.load.slow_share > SLOW:
        yield Alert(
            "note", f"{facts.load.slow_share:.1%} of all lookups are served by a slower tier"
        )


def _certificate(facts: Facts) -> Iterator[Alert]:
    certificate = facts.plan.certificate
    if certificate is None:
        yield Alert(
            "note",
            f"{facts.plan.method} proves nothing about how good it is: joint and recshard "
            "come with a bound",
        )
        return
    if certificate.gap > GAP:
        yield Alert(
            "warning",
            f"the gap is {certificate.gap:.1%}: a better placement may exist, or the bound may "
            "be loose",
        )
    uncertain = uncertainty(certificate) or 0.0
    if uncertain > UNCERTAIN:
        yield Alert(
            "warning",
            f"the statistics leave room for {uncertain:.1%}: so much longer it takes if hot rows "
            "are at the low end of their interval; profile more data",
        )


def _balance(facts: Facts) -> Iterator[Alert]:
    memory_s = facts.cost.time.memory_s
    busy = memory_s[memory_s > 0]
    if len(busy) and busy.max() > IMBALANCE * busy.mean():
        slowest = int(memory_s.argmax())
        yield Alert(
            "warning",
            f"memory time is uneven: {facts.plan.cluster.holder_name(slowest)} takes "
            f"{busy.max() / busy.mean():.2f}× the mean, and all others wait for it",
        )
    idle = np.flatnonzero(facts.cost.memory.rows.sum(axis=1) == 0)
    devices = [int(h) for h in idle if h < facts.plan.cluster.num_devices]
    if devices and len(devices) < facts.plan.cluster.num_devices:
        yield Alert("note", f"{len(devices)} devices hold no rows: {numbers(devices)}")
    top = facts.by_importance[0]
    if len(facts.shares) > 1 and facts.shares[top] > DOMINANT:
        name = facts.plan.profile.stats[top].table.name
        yield Alert("note", f"table {name!r} alone takes {facts.shares[top]:.0%} of the step")


def _statistics(facts: Facts) -> Iterator[Alert]:
    if facts.plan.order is None:
        yield Alert(
            "note",
            "the plan was made from a curve and has no row order: it can be predicted, but "
            "neither replayed nor trained",
        )
    else:
        yield from _thin(facts)
    said = [line for index in facts.by_importance for line in table_alerts(facts.looks[index])]
    unseen = any(look.unseen_share > UNSEEN for look in facts.looks)
    level: Level = "warning" if unseen else "note"
    if len(said) == 1:
        yield Alert(level, said[0])
    elif said:
        text = f"{len(said)} remarks on the statistics of single tables, the most important first"
        yield Alert(level, text, tuple(said))


def _thin(facts: Facts) -> Iterator[Alert]:
    """Tables that matter and whose rows were seen too rarely to be told apart."""
    thin = [
        (facts.shares[index], look)
        for index, look in enumerate(facts.looks)
        if look.touched
        and look.lookups < THIN * look.touched
        and len(facts.plan.bands[look.name]) > 1
    ]
    share = sum(part for part, _ in thin)
    if share > THIN_SHARE:
        yield Alert(
            "warning",
            f"the statistics are thin: tables with {share:.0%} of the step are cut by rows that "
            f"were seen fewer than {THIN} times on average; profile more data",
            tuple(
                f"{look.name!r}: {look.lookups / look.touched:.1f} lookups per touched row"
                for _, look in sorted(thin, key=lambda pair: -pair[0])
            ),
        )
