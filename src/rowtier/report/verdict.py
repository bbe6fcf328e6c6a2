"""The words of a report: verdict, key figures, comparison and where the plan comes from."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rowtier import __version__
from rowtier.cluster import PRESETS, Cluster
from rowtier.cost.views import VIEWS
from rowtier.evaluate.phrases import amount, assumptions, ms, rounds, work
from rowtier.plan.plan import Certificate, Plan
from rowtier.report.facts import Facts
from rowtier.report.sheet import Cell, Sheet
from rowtier.units import show_bytes, show_count, spell_bandwidth, spell_seconds

MAX_DRIFTED = 20  # tables; all of them are in the data
SHOWN_ELSEWHERE = {"view", "objective", "bound", "binding", "prices", "from_statistics"}


@dataclass(frozen=True)
class Tile:
    """One key figure."""

    label: str
    figure: str
    detail: str


@dataclass(frozen=True)
class Inputs:
    """What a plan was made from, and how to make it again."""

    facts: tuple[tuple[str, str], ...]
    commands: tuple[str, ...]


def headline(facts: Facts) -> str:
    """The verdict in one sentence or two."""
    said = f"A step takes {ms(facts.load.step_s)}"
    best = facts.best_baseline
    if best is not None and facts.load.step_s:
        ratio = best.step_s / facts.load.step_s
        faster = f"{ratio:.2f}× faster" if ratio >= 1 else f"{1 / ratio:.2f}× slower"
        said += f", {faster} than {best.name}, the best baseline"
    certificate = facts.plan.certificate
    if certificate is None:
        return said + ". This method proves no bound."
    what = "" if certificate.times_a_step else f" in its own measure, {_says(certificate)}"
    return said + (
        f". By its certificate it is at most {certificate.gap:.1%} above the best possible{what}."
    )


def drift_rows(sheet: Sheet) -> list[list[str]]:
    """The tables of the page's part on drift, as text: those that lost most lookups."""
    found = []
    for row in sheet.rows[:MAX_DRIFTED]:
        name, lookups, *shares = row[:6]
        moved = sum(float(amount or 0) for amount in row[6:])
        cells = [f"{float(share or 0):.1%}" for share in shares]
        found.append([str(name), show_count(float(lookups or 0)), *cells, show_bytes(moved)])
    return found


def tiles(facts: Facts) -> list[Tile]:
    """The figures to see first."""
    profile, cluster, load = facts.plan.profile, facts.plan.cluster, facts.load
    held = sum(stats.table.stored_bytes for stats in profile.stats)
    beside = "without" if facts.plan.serves else "with"
    return [
        Tile(
            "step time, predicted",
            ms(load.step_s),
            _unbroken(
                f"memory {ms(load.memory_s)} + work {ms(load.work_s)} + links {ms(load.links_s)}"
            ),
        ),
        Tile(
            "slowest of a hundred steps",
            ms(load.spread.p99_s),
            _unbroken(f"{ms(load.spread.p50_s)} p50, {ms(load.spread.expected_s)} on average"),
        ),
        *_certificate_tiles(facts.plan.certificate),
        Tile("model", show_bytes(held), f"{len(profile.stats):,} tables {beside} optimizer state"),
        Tile("machine", f"{cluster.num_devices:,} devices", cluster.name),
    ]


def _certificate_tiles(certificate: Certificate | None) -> Iterator[Tile]:
    if certificate is None:
        yield Tile("gap", "unknown", "this method proves no bound")
        return
    bound = amount(certificate, certificate.bound)
    measure = "" if certificate.times_a_step else f" ({_says(certificate)})"
    checked = "" if certificate.proof is None else "; rowtier verify recomputes it"
    yield Tile(
        "gap, as certified",
        f"{certificate.gap:.1%}",
        _unbroken(f"no placement is below {bound}{measure}{checked}"),
    )
    yield Tile("what binds", certificate.binding, "")


def certificate_facts(certificate: Certificate) -> Iterator[tuple[str, str]]:
    """All that a certificate says, fields that have no words of their own by their names."""
    yield "objective", f"{_says(certificate)}: {amount(certificate, certificate.objective)}"
    yield "bound, as certified", amount(certificate, certificate.bound)
    yield "gap, as certified", f"{certificate.gap:.3%}"
    yield "what binds", certificate.binding
    uncertain = uncertainty(certificate)
    if uncertain is not None:
        yield "statistics", f"the objective rises by {uncertain:.1%} if hot rows are at their least"
    for key, value in certificate.to_data().items():
        if key not in SHOWN_ELSEWHERE:
            yield key.replace("_", " "), _plain(value)


def uncertainty(certificate: Certificate) -> float | None:
    """The share by which the objective may be off because the statistics are, if known."""
    found = certificate.to_data().get("from_statistics")
    return None if found is None else float(found)


def inputs(facts: Facts, folder: str) -> Inputs:
    """Fingerprints, the machine, and the commands that lead here."""
    plan = facts.plan
    samples = max((stats.samples for stats in plan.profile.stats), default=0)
    lines = [
        ("plan", f"{plan.fingerprint}, method {plan.method}"),
        ("profile", f"{plan.made_for.profile}: {show_count(samples)} samples, batch size "
                    f"{plan.profile.batch_size:,} per device"),
        ("cluster", f"{plan.made_for.cluster}: {plan.cluster.name}"),
        *(_tier_line(plan.cluster)),
        *(_level_line(plan.cluster)),
        *(("work", said) for said in (work(facts.cost),) if said),
        *(("assumed", said) for said in assumptions(plan)),
        *(certificate_facts(plan.certificate) if plan.certificate else ()),
        *((f"origin: {key}", _plain(value)) for key, value in plan.origin.items()),
        ("rowtier", __version__),
    ]  # fmt: skip
    return Inputs(tuple(lines), tuple(_commands(facts, folder)))


def step_lines(facts: Facts) -> list[str]:
    """What is assumed, what the slowest holder works at, and the rounds of each exchange."""
    said = (*assumptions(facts.plan), work(facts.cost), rounds(facts.cost))
    return [line for line in said if line]


def level_rows(facts: Facts) -> list[tuple[str, ...]]:
    """Bytes and time of every level's links."""
    time, links, levels = facts.cost.time, facts.cost.links, facts.plan.cluster.levels
    return [
        (
            level.name,
            show_bytes(links.total_bytes[index]),
            ms(float(time.exchange_level_s[index])),
            ms(float(time.sync_level_s[index])),
            f"{links.phases.exchange_rounds[index] + links.phases.sync_rounds[index]}",
        )
        for index, level in enumerate(levels)
    ]


def comparison_rows(sheet: Sheet) -> list[dict[str, Any]]:
    """The comparison for people, beside its chart."""
    facts = [dict(zip(sheet.columns, row, strict=True)) for row in sheet.rows]
    own = next(float(f["step_s"]) for f in facts if f["this_plan"])  # type: ignore[arg-type]
    return [_comparison_row(f, own) for f in facts]


def _comparison_row(facts: dict[str, Cell], own_s: float) -> dict[str, Any]:
    row = {"plan": facts["plan"], "own": facts["this_plan"], "why_not": facts["why_not"]}
    if facts["step_s"] is None:
        return row
    names = ("step", "memory", "work", "links")
    step, memory, work, links = (float(facts[f"{name}_s"] or 0) for name in names)
    return row | {
        "cells": [
            *(ms(step), ms(memory), ms(work), ms(links), f"{step / own_s:.2f}×" if own_s else ""),
            f"{float(facts['imbalance'] or 0):.2f}",
            f"{float(facts['slow_share'] or 0):.1%}",
        ]
    }


def _unbroken(text: str) -> str:
    """The same text with figures that are never parted from their units."""
    return re.sub(r"(\d) (?=[^\W\d])", "\\1\u00a0", text)


def _says(certificate: Certificate) -> str:
    return VIEWS[certificate.view].says


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _tier_line(cluster: Cluster) -> Iterator[tuple[str, str]]:
    owners = [("", cluster.device.tiers), *((f" of {s.name}", s.tiers) for s in cluster.servers)]
    for owner, tiers in owners:
        for tier in tiers:
            shared = f", shared by each {tier.shared_by}" if tier.shared_by else ""
            size, speed = (
                show_bytes(tier.capacity_bytes),
                spell_bandwidth(tier.bandwidth_bytes_per_s),
            )
            yield f"memory {tier.name}{owner}", f"{size} at {speed}{shared}"


def _level_line(cluster: Cluster) -> Iterator[tuple[str, str]]:
    below = "device"
    for level in cluster.levels:
        speed, wait = spell_bandwidth(level.bandwidth_bytes_per_s), spell_seconds(level.latency_s)
        yield (
            f"links in a {level.name}",
            (
                f"{level.size} {below}{'s' if level.size > 1 else ''}, {speed} per {level.per}, "
                f"latency {wait}"
            ),
        )
        below = level.name


def _asked(plan: Plan) -> str:
    """The options that the plan was made with, as they are typed."""
    said = "" if plan.constraints is None else " --constraints constraints.yaml"
    for name, value in plan.origin.get("options", {}).items():
        if isinstance(value, bool):
            said += f" --{name}"
        elif name in ("reserve", "confidence"):
            said += f" --{name} {100 * value:g}%"
        elif name in ("fit", "rows_as"):
            said += f" --{name.replace('_', '-')} {value}"
        elif name == "dense_s":
            said += f" --dense {spell_seconds(value)}"
    return said


def _commands(facts: Facts, folder: str) -> Iterator[str]:
    cluster = facts.plan.cluster
    preset = cluster.name in PRESETS and Cluster.preset(cluster.name) == cluster
    plan = shlex.quote(folder)
    yield (
        f"rowtier plan --profile profile/ --cluster {cluster.name if preset else 'cluster.yaml'} "
        f"--method {facts.plan.method}{_asked(facts.plan)} -o {plan}"
    )
    yield f"rowtier verify {plan}"
    yield f"rowtier report {plan} -o report.html"
