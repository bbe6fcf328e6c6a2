"""The entries of tests/bad_inputs/ that are single files, and what all entries are made with.

`EXPECTED` says what the refusal of each must name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent / "bad_inputs"

CLUSTER: dict[str, Any] = {
    "name": "small",
    "levels": [
        {"name": "node", "size": 2, "bandwidth": "10GB/s", "latency": "5us"},
        {"name": "cluster", "size": 2, "bandwidth": "1GB/s", "latency": "20us"},
    ],
    "device": {
        "tiers": [
            {"name": "hbm", "capacity": "64KiB", "bandwidth": "100GB/s", "granularity": "32B"},
            {"name": "dram", "capacity": "1MiB", "bandwidth": "10GB/s", "shared_by": "node"},
        ]
    },
}
TABLES: dict[str, Any] = {
    "batch_size": 64,
    "tables": [
        {"name": "item", "num_embeddings": 1000, "embedding_dim": 8, "pooling": "none",
         "features": ["history"]},
        {"name": "user", "num_embeddings": 500, "embedding_dim": 4, "features": ["user", "friend"]},
    ],
}  # fmt: skip

# entry -> what the message must contain: the key, and the way out
EXPECTED: dict[str, tuple[str, ...]] = {}


def yaml_entry(name: str, base: dict[str, Any], change: Callable[[Any], Any], *says: str) -> None:
    data = json.loads(json.dumps(base))
    change(data)
    (HERE / f"{name}.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    EXPECTED[f"{name}.yaml"] = says


def text_entry(name: str, content: str | bytes, *says: str) -> None:
    raw = content.encode() if isinstance(content, str) else content
    (HERE / name).write_bytes(raw)
    EXPECTED[name] = says


def put(*path: Any, value: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return change


def drop(*path: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        del data[path[-1]]

    return change


def cluster_entries() -> None:
    def one(name: str, change: Callable[[Any], Any], *says: str) -> None:
        yaml_entry(f"cluster-{name}", CLUSTER, change, *says)

    level, tier = ("levels", 0), ("device", "tiers", 0)
    one(
        "unknown-unit",
        put(*tier, "capacity", value="24 parsecs"),
        "device.tiers[0].capacity",
        "24 parsecs",
        "24GiB",
    )
    one("no-unit", put(*tier, "capacity", value=24), "device.tiers[0].capacity", "no unit", "24GiB")
    one(
        "bits-or-bytes",
        put(*level, "bandwidth", value="25Gb/s"),
        "levels[0].bandwidth",
        "did you mean 'GB/s'",
        "200Gbit/s",
    )
    one("time-as-size", put(*tier, "granularity", value="5us"), "granularity", "5us", "32B")
    one("negative-size", put(*level, "size", value=-8), "levels[0].size", "-8", "at least 1")
    one("zero-size", put(*level, "size", value=0), "levels[0].size", "at least 1")
    one("fractional-size", put(*level, "size", value=2.5), "levels[0].size", "whole number")
    one("negative-latency", put(*level, "latency", value="-5us"), "latency", "zero or more")
    one(
        "infinite-bandwidth",
        put(*level, "bandwidth", value=float("inf")),
        "levels[0].bandwidth",
        "25GB/s",
    )
    one("boolean-capacity", put(*tier, "capacity", value=True), "capacity", "bool", "24GiB")
    one("duplicate-level", put("levels", 1, "name", value="node"), "levels[1].name", "own name")
    one("level-named-device", put(*level, "name", value="device"), "levels[0].name", "level 0")
    one(
        "duplicate-tier",
        put("device", "tiers", 1, "name", value="hbm"),
        "device.tiers[1].name",
        "own name",
    )
    one(
        "unknown-key",
        put(*level, "bandwith", value="1GB/s"),
        "levels[0].bandwith",
        "did you mean 'bandwidth'",
    )
    one("missing-device", drop("device"), "device", "required", "add it")
    one("no-tiers", put("device", "tiers", value=[]), "device.tiers", "at least one")
    one("tiers-not-a-list", put("device", "tiers", value="hbm"), "device.tiers", "list")
    one(
        "shared-by-nobody",
        put("device", "tiers", 1, "shared_by", value="rack"),
        "device.tiers[1].shared_by",
        "rack",
        "node, cluster",
    )
    one(
        "server-nowhere",
        put(
            "servers",
            value=[
                {
                    "name": "cloud",
                    "level": "sky",
                    "tiers": [{"name": "ram", "capacity": "1GiB", "bandwidth": "1GB/s"}],
                }
            ],
        ),
        "servers[0].level",
        "sky",
        "node, cluster",
    )
    one(
        "version-2", put("format_version", value=2), "format_version", "reads format_version 1", "2"
    )
    one("no-efficiency", put(*level, "exchange_efficiency", value=0), "exchange_efficiency", "0")
    one("sync-above-one", put(*level, "sync_efficiency", value=1.2), "sync_efficiency", "1.2")
    one("negative-message", put(*level, "message", value="-1us"), "levels[0].message", "-1us")
    one("message-of-bytes", put(*level, "message", value="8B"), "levels[0].message", "5us")
    one("work-key", put("work", value={"lookups": "1ns"}), "work.lookups", "lookup")
    one("work-unit", put("work", value={"round": "10MB"}), "work.round", "10MB", "5us")
    one("work-buffer", put("work", value={"buffer": "10us"}), "work.buffer", "10us", "25GB/s")
    one("work-update", put("work", value={"update": {"lamb": "1ns"}}), "work.update.lamb", "adam")
    one("work-hidden", put("work", value={"hidden": 1.5}), "work.hidden", "1.5")
    one("overlap-one", put("overlap", value=[["hbm"]]), "overlap[0]", "less than two")
    one("overlap-mixed", put("overlap", value=[["hbm", "node"]]), "overlap[0]", "all levels")
    one("overlap-unknown", put("overlap", value=[["node", "rack"]]), "overlap[0]", "node, cluster")
    one(
        "overlap-twice",
        put("overlap", value=[["node", "cluster"], ["cluster", "node"]]),
        "overlap[1]",
        "listed twice",
    )
    one("per-what", put(*level, "per", value="rack"), "levels[0].per", "'device' or 'group'")

    def several(data: Any) -> None:
        put(*level, "size", value=-1)(data)
        put(*tier, "capacity", value="much")(data)
        put("levels", 1, "name", value="node")(data)
        put("colour", value="red")(data)

    one(
        "four-mistakes",
        several,
        "4 mistakes",
        "levels[0].size",
        "device.tiers[0].capacity",
        "levels[1].name",
        "colour",
    )
    text_entry("cluster-key-twice.yaml", "name: a\nname: b\n", "'name'", "twice")
    text_entry("cluster-list.yaml", "- name: a\n- name: b\n", "list", "docs/files.md")
    text_entry(
        "cluster-cut-off.yaml",
        yaml.safe_dump(CLUSTER, default_flow_style=True)[:150],
        "not valid YAML",
        "fix it",
    )
    text_entry("empty.yaml", "", "empty", "docs/files.md")
    text_entry("binary.yaml", bytes(range(256)) * 4, "not text")
    text_entry("zero-bytes.yaml", "name: a\0b\n", "binary")
    text_entry("unknown-kind.yaml", "colour: red\n", "colour", "a cluster file has name, levels")


def tables_entries() -> None:
    def one(name: str, change: Callable[[Any], Any], *says: str) -> None:
        yaml_entry(f"tables-{name}", TABLES, change, *says)

    one(
        "negative-rows",
        put("tables", 0, "num_embeddings", value=-80),
        "tables[0].num_embeddings",
        "-80",
        "80M",
    )
    one(
        "fractional-rows",
        put("tables", 0, "num_embeddings", value="1.0005k"),
        "tables[0].num_embeddings",
        "whole number",
    )
    one(
        "rows-in-bytes",
        put("tables", 0, "num_embeddings", value="80MB"),
        "tables[0].num_embeddings",
        "unknown unit 'MB'",
        "80M",
    )
    one(
        "word-as-dim",
        put("tables", 1, "embedding_dim", value="wide"),
        "tables[1].embedding_dim",
        "wide",
        "whole number",
    )
    one("duplicate-table", put("tables", 1, "name", value="item"), "tables[1].name", "its own")
    one("unknown-dtype", put("tables", 0, "dtype", value="fp12"), "tables[0].dtype", "'fp32'")
    one("unknown-pooling", put("tables", 0, "pooling", value="max"), "tables[0].pooling", "'mean'")
    one(
        "unknown-weights",
        put("tables", 1, "weights", value="lerned"),
        "tables[1].weights",
        "'given'",
    )
    one(
        "learned-weights-of-a-sequence",
        put("tables", 0, "weights", value="learned"),
        "tables[0].weights",
        "not pooled",
        "drop it",
    )
    one(
        "unknown-optimizer",
        put("tables", 0, "optimizer", value="lion"),
        "tables[0].optimizer",
        "'rowwise_adagrad'",
    )
    one("no-features", put("tables", 0, "features", value=[]), "tables[0].features", "at least one")
    one(
        "feature-twice",
        put("tables", 1, "features", value=["user", "user"]),
        "tables[1].features[1]",
        "once",
    )
    words = {"ids": "vocabulary"}

    def table(**changes: Any) -> Callable[[Any], None]:
        return lambda data: data["tables"][1].update(changes)

    one(
        "unknown-policy",
        table(on_out_of_range="wrap"),
        "tables[1].on_out_of_range",
        "'clip'",
    )
    one("unknown-ids", table(ids="crc"), "tables[1].ids", "'vocabulary'")
    one("min-count-of-a-hash", table(ids="hash", min_count=3), "tables[1].min_count", "drop it")
    one("shared-of-a-hash", table(num_shared="2"), "tables[1].num_shared", "`ids: vocabulary`")
    one(
        "all-rows-shared",
        table(**words, num_shared="500"),
        "tables[1].num_shared",
        "less than num_embeddings, 500",
    )
    one(
        "clipped-vocabulary",
        table(**words, on_out_of_range="clip"),
        "tables[1].on_out_of_range",
        "error, drop or hash",
    )
    one(
        "evicting-vocabulary",
        table(**words, evict="lru"),
        "tables[1].evict",
        "`ids: grow`",
    )
    one("growing-without-shared", table(ids="grow", num_shared="0"), "num_shared", "1 or more")
    one("admitted-never", table(ids="grow", admit_after="70k"), "admit_after", "at most 65535")
    one("capacity-and-rows", table(ids="grow", capacity="9"), "capacity", "one of both")
    one("batch-zero", put("batch_size", value=0), "batch_size", "at least 1")
    one("none-listed", put("tables", value=[]), "tables", "at least one")
    one("number-as-name", put("tables", 0, "name", value=7), "tables[0].name", "quotes")
