"""Names that people could give their tables, and what commands print of them."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np

from rowtier.cli.main import main
from rowtier.cluster import Cluster
from rowtier.foreign import columns, shown
from rowtier.tables import Table, Tables

WIDTH = 100
SAMPLES = 3000

NAMES = (
    "a[/b]", "emb[user]", "[bold red]alarm[/]", "[link=http://x]y", ":heart:", "back\\",
    "back\\[b]", "c1\x9b2J", "osc8\x9d8;;http://x\x9cy", "nel\x85line", "bidi\u202eelbat",
    "iso\u2066late\u2069", "zero\u200bwidth", "join\u200der", "bom\ufeffname", "soft\u00adhyphen",
    "line\u2028paragraph\u2029", "表" * 28, "埋め込み表" * 20, "한국어 이름 " * 8, "ｆｕｌｌ" * 10,
    "emoji👩\u200d🚀❤\ufe0f" * 5, "constructor", "__proto__", "toString", "hasOwnProperty",
    "valueOf", "</script><script>alert(1)</script>", "&<>\"'", "{{ 7*7 }}", "${x}`y`", "%s%n{0}",
    "=1+1", "a" * 200, "word " * 39 + "end", "e\u0301" * 60, "z" + "\u0336" * 150,
    "filler\u3164\u115f", "nbsp\u00a0name", "tag\U000e0041", "private\ue000", "-o", "--help",
    "שלום", " ", "'", "null",
)  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str


def run(*arguments: str) -> Ran:
    """Run the command line inside this process, printing to UTF-8."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in "12"]
    code: object = 0
    with (
        mock.patch.object(sys, "argv", ["rowtier", *arguments]),
        contextlib.redirect_stdout(streams[0]),
        contextlib.redirect_stderr(streams[1]),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    out, err = (stream.buffer.getvalue().decode() for stream in streams)
    return Ran(code if isinstance(code, int) else int(code is not None), out, err)


def accepted(names: Sequence[str]) -> list[str]:
    """Those of the names that tables may have."""
    found = []
    for name in names:
        with contextlib.suppress(ValueError):
            found.append(Table(name=name, num_embeddings=1, embedding_dim=1, features=("f",)).name)
    return found


def make_data(folder: Path, names: Sequence[str], seed: int = 0) -> None:
    """Data and tables with such names, and a cluster whose parts are called so, too."""
    rng = np.random.default_rng(seed)
    ids = {f"f{i}": rng.zipf(1.5, SAMPLES) % 50 for i in range(len(names))}
    np.savez(folder / "data.npz", **ids)  # type: ignore[arg-type]
    tables = tuple(
        Table(name=name, num_embeddings=50 + i, embedding_dim=8, features=(f"f{i}",))
        for i, name in enumerate(names)
    )
    Tables(batch_size=64, tables=tables).save(folder / "tables.yaml")
    few = [f"{names[i % len(names)][:190]}{i}" for i in range(5)]
    link = {"bandwidth": "10GB/s", "latency": "5us"}
    tiers = [
        {"name": few[0], "capacity": "40KiB", "bandwidth": "1TB/s"},
        {"name": few[1], "capacity": "1GiB", "bandwidth": "10GB/s"},
    ]
    levels = [{"name": few[2], "size": 2, **link}, {"name": few[3], "size": 2, **link}]
    data = {"name": few[4], "levels": levels, "device": {"tiers": tiers}}
    Cluster.model_validate(data).save(folder / "cluster.yaml")


def commands(folder: Path, names: Sequence[str]) -> Iterator[list[str]]:
    """Every command that prints names, in the order in which they can be run."""
    here = {name: str(folder / name) for name in ("data.npz", "tables.yaml", "cluster.yaml")}
    profile, trace, page = (str(folder / name) for name in ("profile", "trace.json", "page.html"))
    first, second = str(folder / f"plan {names[0]}".replace("/", "|")), str(folder / "other")
    yield ["profile", here["data.npz"], "--tables", here["tables.yaml"], "-o", profile]
    yield ["profile", "show", profile, "--full"]
    yield ["validate", here["tables.yaml"]]
    yield ["validate", here["cluster.yaml"]]
    for plan, method in ((first, "recshard"), (second, "row-wise")):
        given = ["--profile", profile, "--cluster", here["cluster.yaml"], "--method", method]
        yield ["plan", *given, "-o", plan]
    yield ["verify", first]
    yield ["predict", first, "--full", "--trace", trace]
    yield ["replay", first, here["data.npz"], "--full", "--steps", "4", "--trace", trace]
    yield ["compare", first, second, "--full"]
    yield ["compare", first, second, "--data", here["data.npz"], "--steps", "2"]
    yield ["explain", first, "--full"]
    for name in names[:4]:
        yield ["explain", first, "--", name]
    yield ["diff", first, second, "--full"]
    yield ["report", first, "-o", page]
    yield ["validate", first]


def faults_of(ran: Ran, code: int = 0, as_json: bool = False) -> list[str]:
    """What is wrong with what a command printed."""
    found = [] if ran.code == code else [f"exit code {ran.code}: {ran.err[-200:]}"]
    if "Traceback" in ran.err:
        found.append("traceback")
    for text in (ran.out, ran.err):
        found += [f"control character {c!r}" for c in sorted(set(text)) if _controls(c)]
        if not as_json:
            wide = [line for line in text.split("\n") if columns(line.rstrip()) > WIDTH]
            found += [
                f"{columns(line)} columns: {line[:60]}" for line in wide if " " in line.strip()
            ]
    if as_json:
        try:
            json.loads(ran.out, parse_constant=lambda word: int(word))
        except ValueError as error:
            found.append(f"invalid JSON: {error}")
    return found


def _controls(letter: str) -> bool:
    return letter != "\n" and unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def missing(out: str, names: Sequence[str]) -> list[str]:
    """Names of which a table does not show the beginning."""
    lines = [line.strip() for line in out.split("\n")]
    begins = {name: shown(name).strip()[:6].strip() for name in names}
    return [name for name, begin in begins.items() if not any(begin in line for line in lines)]
