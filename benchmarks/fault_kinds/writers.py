"""Everything of rowtier that writes a file or a folder, in small, to be killed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fault_kinds.forks import Call, command, quietly, small_dataset, small_tables
from rowtier import Cluster, Plan, Profile, make_plan, make_profile


@dataclass(frozen=True)
class Writer:
    """A way to write version 0 or 1 of an output, and to name what is there (or to raise)."""

    name: str
    write: Callable[[Path, int], Call]
    again: Callable[[Path, int], Call]  # the next run; not always the same call
    read: Callable[[Path], str]
    share: float  # of all kills


def writers(folder: Path) -> Iterator[Writer]:
    """All of them; what they need is put into a folder."""
    tables = small_tables(folder / "tables.yaml")
    data = [small_dataset(folder / f"data-{i}", i, files=4) for i in range(2)]
    profiles = [make_profile(str(one), tables) for one in data]
    parts = [_parts(folder / f"parts-{i}", one, tables) for i, one in enumerate(data)]
    plans = [make_plan(profile, Cluster.preset("local"), "size") for profile in profiles]
    counted = folder / "counted"
    profiles[0].save(counted)

    yield from _of_files(plans)
    yield _same("profile.save", lambda path, i: lambda: profiles[i].save(path), _profile, 0.2)
    yield _same("plan.save", lambda path, i: lambda: plans[i].save(path), _plan, 0.2)
    methods = ("size", "lookup")

    def plan(path: Path, i: int) -> Call:
        given = ("--profile", counted, "--cluster", "local", "--method", methods[i])
        return command("plan", *given, "-o", path)

    def profile(path: Path, i: int) -> Call:
        return command("profile", data[i], "--tables", tables, "-o", path)

    def resumed(path: Path, i: int) -> Call:
        return command("profile", data[i], "--tables", tables, "-o", path, "--resume")

    def synth(path: Path, i: int) -> Call:
        sizes = ("--samples", "300", "--rows", "200", "--users", "50")
        return command("synth", "sequence", "--seed", str(i), *sizes, "-o", path)

    yield _same("rowtier plan", plan, _plan, 0.04)
    yield _same("rowtier profile", profile, _profile, 0.05)
    yield Writer("rowtier profile --resume", profile, resumed, _profile, 0.05)
    yield _same(
        "rowtier profile merge", lambda p, i: command("profile", "merge", *parts[i], "-o", p),
        _profile, 0.04,
    )  # fmt: skip
    yield _same("rowtier synth", synth, _folder, 0.04)


def _of_files(plans: list[Plan]) -> Iterator[Writer]:
    from rowtier.report.html import Report
    from rowtier.runtime.exchange.counters import Totals
    from rowtier.writing import write_atomic

    pages = [Report(f"<html>{i}" * 200_000, "", ()) for i in range(2)]
    facts: list[Any] = [
        SimpleNamespace(to_dict=lambda i=i: {"step": [i] * 20_000}) for i in range(2)
    ]
    texts = [f"# Measured {i}\n" + plans[i].cluster.name * 10**5 for i in range(2)]

    yield _same("report.save", lambda path, i: lambda: pages[i].save(path), _file, 0.1)
    yield _same("counters.save", lambda p, i: lambda: Totals.save(facts[i], p), _file, 0.08)
    yield _same("write_atomic", lambda p, i: lambda: write_atomic(p, texts[i]), _file, 0.1)
    clusters = [Cluster.preset(name) for name in ("local", "recshard-16")]
    yield _same("cluster.save", lambda p, i: lambda: clusters[i].save(p), _cluster, 0.1)


def _same(
    name: str, write: Callable[[Path, int], Call], read: Callable[[Path], str], share: float
) -> Writer:
    return Writer(name, write, write, read, share)


def _parts(folder: Path, data: Path, tables: Path) -> list[Path]:
    found = []
    for number, edge in enumerate(("--before", "--after")):
        found.append(folder / str(number))
        quietly(command("profile", data, "--tables", tables, edge, "50%", "-o", found[-1]))
    return found


def _file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _cluster(path: Path) -> str:
    return Cluster.load(path).fingerprint


def _profile(path: Path) -> str:
    return Profile.load(path).fingerprint


def _plan(path: Path) -> str:
    return Plan.load(path).fingerprint


def _folder(path: Path) -> str:
    """A dataset: every file must be what its manifest says."""
    from rowtier.manifest import read_manifest

    written = read_manifest(path, "write it")
    for name in written.files:
        written.check(path, name, "of the dataset", "write it")
    return hashlib.sha256(json.dumps(written.to_data()).encode()).hexdigest()
