"""Small good inputs of every kind, made by rowtier itself: what mutations start from.

A base is a folder; `files` of it are what mutations may touch.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

import rowtier
from rowtier.plan.make import make_plan
from rowtier.plan.options import PlanOptions
from rowtier.profile.make import make_profile

TABLES: dict[str, Any] = {
    "batch_size": 8,
    "tables": [
        {"name": "item", "num_embeddings": 40, "embedding_dim": 8, "pooling": "none",
         "features": ["history"]},
        {"name": "user", "num_embeddings": 30, "embedding_dim": 4, "features": ["user", "friend"],
         "ids": "hash", "optimizer": "adam"},
        {"name": "word", "num_embeddings": 20, "embedding_dim": 4, "features": ["word"],
         "ids": "vocabulary", "on_out_of_range": "hash", "num_shared": 2},
    ],
}  # fmt: skip
CLUSTER: dict[str, Any] = {
    "name": "small",
    "levels": [
        {"name": "node", "size": 2, "bandwidth": "10GB/s", "latency": "5us", "message": "1us"},
        {"name": "cluster", "size": 2, "bandwidth": "1GB/s", "per": "group"},
    ],
    "device": {
        "tiers": [
            {"name": "hbm", "capacity": "2KiB", "bandwidth": "100GB/s", "granularity": "32B"},
            {"name": "dram", "capacity": "1MiB", "bandwidth": "10GB/s", "shared_by": "node"},
        ]
    },
    "servers": [
        {"name": "store", "level": "cluster", "count": 1,
         "tiers": [{"name": "disk", "capacity": "1GiB", "bandwidth": "1GB/s"}]}
    ],
    "overlap": [["hbm", "dram"]],
    "work": {"step": "100us", "row": "1ns", "buffer": "10GB/s", "update": {"adam": "1ns"}},
}  # fmt: skip
CONSTRAINTS: dict[str, Any] = {
    "tables": {"item": {"exchange": "rows"}},
    "keep_together": [],
    "reserve": [{"tier": "hbm", "amount": "64B", "device": 0}],
    "links": {"cluster": "1MB"},
}
# Table t0 … of Meta's files, and C1 … of Criteo's.
CRITEO: dict[str, Any] = {
    "batch_size": 8,
    "tables": [
        {"name": "ad", "num_embeddings": 50, "embedding_dim": 4, "features": ["C1", "I2"],
         "ids": "modulo"},
    ],
}  # fmt: skip
BAGS: dict[str, Any] = {
    "batch_size": 8,
    "tables": [{"name": "bag", "num_embeddings": 50, "embedding_dim": 4, "features": ["t0", "t1"]}],
}
SAMPLES = 48


def write_corpus(folder: Path) -> None:
    """Write every base into a folder of its own."""
    for name, make in BASES.items():
        (folder / name).mkdir(parents=True)
        make(folder / name)


def _yaml(name: str, data: dict[str, Any]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).write_text(yaml.safe_dump(data, sort_keys=False))

    return make


def _columns() -> dict[str, Any]:
    rng = np.random.default_rng(7)
    lengths = rng.integers(0, 4, SAMPLES)
    history = [(rng.zipf(1.5, n) % 40).tolist() for n in lengths]
    return {
        "history": history,
        "user": (rng.zipf(1.3, SAMPLES) % 10**6).astype(np.int64),
        "friend": (rng.zipf(1.3, SAMPLES) % 10**6).astype(np.int64),
        "word": [f"w{n}" for n in rng.zipf(1.4, SAMPLES) % 30],
        "time": np.arange(SAMPLES),
    }


def _parquet(folder: Path) -> None:
    _yaml("tables.yaml", TABLES)(folder)
    pq.write_table(pa.table(_columns()), folder / "data.parquet", row_group_size=20)


def _npz(folder: Path) -> None:
    tables = {**TABLES, "tables": TABLES["tables"][:2]}
    _yaml("tables.yaml", tables)(folder)
    columns = _columns()
    values = np.array([v for row in columns["history"] for v in row], dtype=np.int64)
    lengths = np.array([len(row) for row in columns["history"]], dtype=np.int32)
    np.savez(
        folder / "data.npz",
        history_values=values,
        history_lengths=lengths,
        user=columns["user"],
        friend=np.stack([columns["friend"]] * 2, axis=1),
    )


def _criteo_lines() -> bytes:
    rng = np.random.default_rng(3)
    lines = []
    for label in rng.integers(0, 2, SAMPLES):
        whole = [str(n) if n % 5 else "" for n in rng.integers(-2, 1000, 13)]
        ids = [f"{n:08x}" if n % 5 else "" for n in rng.integers(0, 2**32, 26)]
        lines.append("\t".join([str(label), *whole, *ids]))
    return "\n".join([*lines, ""]).encode()


def _tsv(folder: Path) -> None:
    tables = {**CRITEO, "tables": [{**CRITEO["tables"][0], "features": ["C1", "C2"]}]}
    _yaml("tables.yaml", tables)(folder)
    (folder / "data.tsv").write_bytes(_criteo_lines())


def _tsv_gz(folder: Path) -> None:
    _tsv(folder)
    (folder / "data.tsv").unlink()
    (folder / "data.tsv.gz").write_bytes(gzip.compress(_criteo_lines(), mtime=0))


def _counted(folder: Path) -> None:
    _parquet(folder)
    found = make_profile(folder / "data.parquet", rowtier.Tables.load(folder / "tables.yaml"))
    for name in ("data.parquet", "tables.yaml"):
        (folder / name).unlink()
    found.save(folder / "profile")


def _curve(folder: Path) -> None:
    _counted(folder)
    rowtier.Profile.load(folder / "profile").to_curve().save(folder / "profile")


def _plan(method: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        _counted(folder)
        profile = rowtier.Profile.load(folder / "profile")
        cluster = rowtier.Cluster.model_validate(CLUSTER, by_alias=True)
        found = make_plan(profile, cluster, method, PlanOptions(tolerance=1.0))
        found.save(folder / "plan")
        for path in sorted((folder / "profile").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (folder / "profile").rmdir()

    return make


def _vocabulary(folder: Path) -> None:
    words = rowtier.Vocabulary([f"w{n}" for n in range(12)], np.arange(12, 0, -1))
    words.save(folder / "words.parquet")
    rowtier.Vocabulary(np.arange(9) * 7, np.arange(9, 0, -1)).save(folder / "numbers.parquet")


def _nothing(_: Path) -> None:
    """Texts and options need no file of their own."""


BASES: dict[str, Callable[[Path], None]] = {
    "tables": _yaml("tables.yaml", TABLES),
    "cluster": _yaml("cluster.yaml", CLUSTER),
    "constraints": _yaml("constraints.yaml", CONSTRAINTS),
    "counted": _counted,
    "curve": _curve,
    "plan": _plan("joint"),
    "plan-row-wise": _plan("row-wise"),
    "parquet": _parquet,
    "npz": _npz,
    "tsv": _tsv,
    "tsv-gz": _tsv_gz,
    "vocabulary": _vocabulary,
    "texts": _nothing,
    "options": _nothing,
}
