"""A gate on counts: what is the same in every run (bytes, rows, slow reads, gaps) must not grow.

Times are never compared. A benchmark names its counts and what identifies a row:

    KEY = ("shape", "data", "contender")
    COUNTS = ("inter_node_bytes", "slow_reads")    # lower is better

One that does not is read by the names of its fields. Counts of the last accepted run stand in
results/counts_quick.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.claims.results import Data, constant
from harness.folders import BENCHMARKS

ACCEPTED = "counts_quick.json"
# Share by which a count may grow. Counts are the same for the same seed and versions; the room is
# for other versions of numpy and compilers, and on wires for what the system adds.
TOLERANCES = {"bytes": 0.02, "rows": 0.005, "reads": 0.02, "gap": 0.10, "other": 0.02}
LEAST_GAP = 1e-3  # below this a plan is as good as proven, and gaps are not compared
ENDINGS = ("_bytes", "_rows", "slow_reads", "slow_reads_per_step", "slow_lookups", "gap")
PARAMETERS = {
    "seed", "zipf", "batch", "ranks", "rate", "mbit_per_s", "budget", "nodes", "workers", "cache",
    "devices", "lookups",
}  # fmt: skip

Counts = dict[str, dict[str, dict[str, float]]]  # benchmark -> setting -> field -> count


Kind = Literal["worse", "gone", "better", "new", "absent"]
KINDS: tuple[Kind, ...] = ("worse", "gone", "better", "new", "absent")


@dataclass(frozen=True)
class Change:
    """A count that is not what it was.

    "gone" is a count that its row no longer has; "absent" one whose row was not measured, as
    on a machine without the data.
    """

    benchmark: str
    setting: str
    field: str
    old: float | None
    new: float | None
    kind: Kind

    def __str__(self) -> str:
        old, new = ("none" if value is None else f"{value:,.10g}" for value in (self.old, self.new))
        share = f" ({self.new / self.old - 1:+.2%})" if self.old and self.new is not None else ""
        return f"{self.kind}: {self.benchmark}, {self.setting}, {self.field}: {old} → {new}{share}"


def counts_of(name: str, data: Data, folder: Path = BENCHMARKS) -> dict[str, dict[str, float]]:
    """All counts of one result, by setting and field."""
    script = folder / f"{name}.py"
    fields, key = constant(script, "COUNTS"), constant(script, "KEY")
    found: dict[str, dict[str, float]] = {}
    for row in data["rows"]:
        named = [_plain(row[part]) for part in key or _key(row) if row.get(part) is not None]
        counts = {part: row[part] for part in row if _is_count(part, row, fields)}
        if counts:
            found[_free(", ".join(named), found)] = counts
    return found


def compare(old: Counts, new: Counts) -> list[Change]:
    """What changed in the benchmarks that both have, the worst first."""
    changes = []
    for name in old.keys() & new.keys():
        for setting in {**old[name], **new[name]}:
            was, now = old[name].get(setting, {}), new[name].get(setting, {})
            for field in {**was, **now}:
                pair = was.get(field), now.get(field)
                kind = _kind(field, *pair) if setting in new[name] else "absent"
                if kind:
                    changes.append(Change(name, setting, field, *pair, kind))
    return sorted(changes, key=lambda change: (KINDS.index(change.kind), str(change)))


def report(changes: Sequence[Change], unread: Iterable[str]) -> tuple[bool, str]:
    """Whether the gate opens, and what to tell."""
    lines = [str(change) for change in changes if change.kind in KINDS[:3]]
    fresh = sum(change.kind == "new" for change in changes)
    lines += [f"{fresh} counts are new"] if fresh else []
    absent: dict[str, list[str]] = {}
    for change in changes:
        if change.kind == "absent":
            absent.setdefault(change.benchmark, []).append(change.setting)
    for name, settings in absent.items():
        lines.append(f"{name}: {len(settings)} counts not measured here, as of {settings[0]}")
    lines += [f"{name}: not compared, no counts from this run" for name in unread]
    bad = sum(change.kind in ("worse", "gone") for change in changes)
    if not bad:
        return True, "\n".join([*lines, "counts: none is worse"])
    allowed = ", ".join(f"{kind} {share:.1%}" for kind, share in TOLERANCES.items())
    lines += [
        f"counts: {bad} worse or gone (allowed growth: {allowed}).",
        "If that is right, accept this run with `make results-accept`, commit "
        "benchmarks/results/counts_quick.json and say why.",
    ]
    return False, "\n".join(lines)


def load_counts(path: Path) -> Counts:
    """The accepted counts; none if there are none yet."""
    found: Counts = json.loads(path.read_text())["counts"] if path.exists() else {}
    return found


def save_counts(counts: Counts, path: Path) -> None:
    """Write the accepted counts, a setting a line so that a change can be read."""
    parts = []
    for name, settings in sorted(counts.items()):
        lines = [f"  {json.dumps(key)}: {json.dumps(found)}" for key, found in settings.items()]
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    text = '{"counts": {\n' + ",\n".join(parts) + "\n}}"
    beside = path.with_suffix(".json.new")
    beside.write_text(text + "\n")
    beside.replace(path)


def tolerance(field: str) -> float:
    """The share by which a count may grow, by its name."""
    for kind, share in TOLERANCES.items():
        if field.removesuffix("_per_step").endswith(kind):
            return share
    return TOLERANCES["other"]


def _kind(field: str, old: float | None, new: float | None) -> Kind | Literal[""]:
    if new is None:
        return "gone"
    if old is None:
        return "new"
    if field.endswith("gap") and max(old, new) <= LEAST_GAP:
        return ""
    room = tolerance(field) * abs(old) + 1e-12
    return "worse" if new > old + room else "better" if new < old - room else ""


def _is_count(field: str, row: Mapping[str, Any], fields: Sequence[str] | None) -> bool:
    value = row[field]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if fields is not None:
        return field in fields
    if field == "expected":  # a row that says in a field what it counts
        return str(row.get("unit", "")).startswith(("rows/", "bytes/"))
    return field.endswith(ENDINGS) and not field.startswith("measured")  # on a wire, say


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _key(row: Mapping[str, Any]) -> list[str]:
    return [key for key, value in row.items() if isinstance(value, str) or key in PARAMETERS]


def _free(name: str, taken: Mapping[str, object]) -> str:
    """A name that is not taken: rows that their key does not tell apart are numbered."""
    number, free = 2, name
    while free in taken:
        free, number = f"{name} #{number}", number + 1
    return free
