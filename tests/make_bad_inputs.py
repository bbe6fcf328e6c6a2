"""Write tests/bad_inputs/: files and folders that `rowtier validate` must refuse.

Run it after a format change: `python tests/make_bad_inputs.py`. Each entry is a good
file with one thing (or a few) broken; `EXPECTED` says what the refusal must name.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

import rowtier
import rowtier.files
from rowtier.plan.plan import Plan

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
        "mend it",
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
    one("batch-zero", put("batch_size", value=0), "batch_size", "at least 1")
    one("none-listed", put("tables", value=[]), "tables", "at least one")
    one("number-as-name", put("tables", 0, "name", value=7), "tables[0].name", "quotes")


def profile() -> rowtier.Profile:
    rng = np.random.default_rng(7)
    stats = []
    for table in rowtier.Tables.model_validate(TABLES).tables:
        counts = rowtier.RowCounts.from_dense(rng.poisson(3, table.num_embeddings))
        total, parts = int(counts.counts.sum()), len(table.features)
        lookups = [total // parts + (i < total % parts) for i in range(parts)]
        features = tuple(
            rowtier.FeatureStats(name=feature, present=amount // 2, lookups=amount)
            for feature, amount in zip(table.features, lookups, strict=True)
        )
        stats.append(rowtier.TableStats.counted(table, 4000, features, counts))
    return rowtier.Profile(TABLES["batch_size"], tuple(stats))


def folder_entry(good: Path, name: str, change: Callable[[Path], None], *says: str) -> None:
    shutil.copytree(good, HERE / name)
    change(HERE / name)
    EXPECTED[name] = says


def edit(file: str, *changes: Callable[[Any], None], keep_seal: bool = False) -> Any:
    """Change a JSON file and drop its fingerprint, so that only the change is wrong."""

    def apply(folder: Path) -> None:
        data = json.loads((folder / file).read_text())
        if not keep_seal:
            data.pop("fingerprint")
        for change in changes:
            change(data)
        (folder / file).write_text(rowtier.files.dump_json(data))

    return apply


def cut(file: str, size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:size]) and None


def remove(file: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).unlink()


def write_counts(rows: list[int], counts: list[int | None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        pq.write_table(pa.table({"row": rows, "count": counts}), folder / "counts/item.parquet")
        edit("profile.json")(folder)

    return apply


def profile_entries(good: Path) -> None:
    def one(name: str, change: Callable[[Path], None], *says: str) -> None:
        folder_entry(good, f"profile-{name}", change, *says)

    one("cut-off-json", cut("profile.json", 300), "profile.json", "not valid JSON")
    one(
        "version-9",
        edit("profile.json", put("format_version", value=9)),
        "format_version",
        "9",
        "1",
    )
    one("unknown-form", edit("profile.json", put("form", value="guessed")), "form", "'counted'")
    one(
        "no-statistics",
        edit("profile.json", drop("statistics", "user")),
        "statistics",
        "'user'",
        "add them",
    )
    one(
        "unknown-table",
        edit(
            "profile.json",
            put("statistics", "x", value={"samples": 1, "touched": 1, "features": []}),
        ),
        "statistics.x",
        "no such table",
    )
    one(
        "changed-after",
        edit("profile.json", put("batch_size", value=65), keep_seal=True),
        "fingerprint",
        "profile again",
    )
    one(
        "present-over-samples",
        edit("profile.json", put("statistics", "item", "samples", value=3)),
        "statistics.item.features.history.present",
        "samples, 3",
    )
    one(
        "lookups-do-not-add-up",
        edit("profile.json", put("statistics", "item", "features", 0, "lookups", value=10**6)),
        "statistics.item.lookups",
        "add up",
    )
    one(
        "lookups-under-present",
        edit("profile.json", put("statistics", "item", "features", 0, "lookups", value=3)),
        "statistics.item.features[0].lookups",
        "at least present",
    )
    one("no-counts", remove("counts/item.parquet"), "item.parquet", "missing", "profile again")
    one("cut-off-counts", cut("counts/item.parquet", 200), "item.parquet", "not readable Parquet")
    one("row-twice", write_counts([5, 7, 5], [9, 8, 7]), "statistics.item.row", "5", "twice")
    one("row-outside", write_counts([5, 1000], [9, 8]), "statistics.item.row", "1000", "0 to 999")
    one("not-hottest-first", write_counts([5, 7], [1, 8]), "statistics.item.count", "hottest first")
    one("count-zero", write_counts([5, 7], [1, 0]), "statistics.item.count", "at least 1")
    one("count-null", write_counts([5, 7], [1, None]), "count", "null")


def plan_entries(good: Path) -> None:
    def one(name: str, change: Any, *says: str) -> None:
        folder_entry(good, f"plan-{name}", change, *says)

    def band(name: str, index: int, key: str, value: Any, *says: str) -> None:
        change = edit("plan.json", put("tables", "item", index, key, value=value))
        one(name, change, *says)

    band("gap", 1, "start", 120, "tables.item", "ranks 100 to 120", "in no band")
    band("overlap", 1, "start", 80, "tables.item", "ranks 80 to 100", "covered twice")
    band("stop-before-start", 1, "stop", 50, "tables.item[1].stop", "50", "greater than start")
    band("past-the-end", 1, "stop", 1200, "tables.item[1].stop", "1200", "1000 rows")
    band("columns-overlap", 1, "columns", [0, 5], "columns 5 to 8", "in no band")
    band("columns-past-the-end", 1, "columns", [0, 9], "tables.item[1].columns", "8 columns")
    band("columns-one-number", 1, "columns", [4], "tables.item[1].columns", "two whole numbers")
    band("member-nobody", 1, "members", [1, 4], "tables.item[1].members", "[4]", "0 to 3")
    band("member-twice", 1, "members", [1, 1], "tables.item[1].members", "once")
    band("members-word", 1, "members", "everyone", "tables.item[1].members", "all")
    band("unknown-tier", 1, "tier", "ssd", "tables.item[1].tier", "ssd", "hbm, dram")
    band("unknown-scope", 1, "scope", "rack", "tables.item[1].scope", "device, node, cluster")
    band("sums-of-a-sequence", 1, "exchange", "sums", "tables.item[1].exchange", "accepted: rows")
    band("unknown-order", 1, "order", "random", "tables.item[1].order", "'spread' or 'blocks'")
    band("unknown-key", 1, "teir", "hbm", "tables.item[1].teir", "did you mean 'tier'")
    one("no-bands", edit("plan.json", drop("tables", "user")), "tables", "'user'", "needs a home")
    one("unknown-table", edit("plan.json", put("tables", "x", value=[])), "tables.x", "drop it")
    tier = ("cluster", "device", "tiers")
    one(
        "over-capacity",
        edit("plan.json", put(*tier, 0, "capacity", value="4KiB")),
        "cluster.hbm.capacity",
        "4.0 KiB",
        "raise the capacity",
    )
    one(
        "over-shared-capacity",
        edit("plan.json", put(*tier, 1, "capacity", value="8KiB")),
        "cluster.dram.capacity",
        "node 0",
        "raise the capacity",
    )
    one(
        "other-cluster",
        edit("plan.json", put("made_for", "cluster", value="0" * 16)),
        "made_for.cluster",
        "0000000000000000",
        "plan again",
    )
    one(
        "changed-after",
        edit("plan.json", put("method", value="mine"), keep_seal=True),
        "fingerprint",
        "plan again",
    )
    one("version-7", edit("plan.json", put("format_version", value=7)), "format_version", "7", "1")
    one("cut-off-json", cut("plan.json", 200), "plan.json", "not valid JSON")
    one(
        "no-curve",
        lambda folder: shutil.rmtree(folder / "curve"),
        "curve",
        "there is no",
        "profile folder",
    )
    one("cut-off-order", cut("order.bin", 100), "order.bin", "cut off", "plan again")
    one("no-order", remove("order.bin"), "order.bin", "missing", "plan again")
    one("order-row-twice", _copy_first_row, "order.item", "twice in the row order")
    one("order-of-nothing", edit("plan.json", drop("order", "user")), "order", "'user'")
    (HERE / "folder-of-nothing").mkdir()
    (HERE / "folder-of-nothing" / "notes.txt").write_text("nothing that rowtier wrote\n")
    EXPECTED["folder-of-nothing"] = ("plan.json, profile.json",)


def _copy_first_row(folder: Path) -> None:
    raw = (folder / "order.bin").read_bytes()
    (folder / "order.bin").write_bytes(raw[:4] + raw[:4] + raw[8:])
    edit("plan.json")(folder)


def with_vocabulary() -> rowtier.Profile:
    table = {**TABLES["tables"][1], "ids": "vocabulary"}
    tables = rowtier.Tables.model_validate({"batch_size": 64, "tables": [table]})
    words = [f"user {i % 7}" for i in range(40)]
    return rowtier.make_profile([{"user": words, "friend": words[::-1]}], tables)


def write_vocabulary(ids: list[Any], rows: list[int] | None = None) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        columns = {"row": rows or list(range(len(ids))), "id": ids, "count": [9] * len(ids)}
        pq.write_table(pa.table(columns), folder / "vocabulary/user.parquet")

    return apply


def vocabulary_entries(good: Path, kind: str) -> None:
    def one(name: str, change: Callable[[Path], None], *says: str) -> None:
        folder_entry(good, f"{kind}-vocabulary-{name}", change, *says)

    file = "vocabulary/user.parquet"
    one("missing", remove(file), "user.parquet", "'user' is missing", "profile again")
    one("cut-off", cut(file, 200), "user.parquet", "not readable Parquet")
    one("id-twice", write_vocabulary(["a", "b", "a"]), "id", "'a'", "more than once")
    one("row-order", write_vocabulary(["a", "b"], [1, 0]), "row", "0, 1, 2")
    one("too-many", write_vocabulary(list(range(500))), "500", "rows for 499", "num_shared")
    one("other", write_vocabulary(["a", "b"]), "fingerprint", "of another profile")
    one("null", write_vocabulary(["a", None]), "id", "null")
    one("no-ids", write_vocabulary([0.5]), "id", "whole numbers or strings")


def good_plan(of: rowtier.Profile) -> Plan:
    bands = {
        "item": (
            rowtier.Band(start=0, stop=100, scope="device", tier="hbm"),
            rowtier.Band(start=100, stop=1000, scope="cluster", tier="dram", coalesced=True),
        ),
        "user": (rowtier.Band(start=0, stop=500, scope="node", tier="hbm", exchange="sums"),),
    }
    return Plan.build("by-hand", of, rowtier.Cluster.model_validate(CLUSTER), bands)


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    good = HERE / ".good"
    counted = profile()
    counted.save(good / "profile")
    good_plan(counted).save(good / "plan")
    rowtier.load(good / "profile")
    rowtier.load(good / "plan")
    cluster_entries()
    tables_entries()
    profile_entries(good / "profile")
    plan_entries(good / "plan")
    words = with_vocabulary()
    words.save(good / "profile-words")
    placed = (rowtier.Band(start=0, stop=500, scope="node", tier="hbm", exchange="sums"),)
    cluster = rowtier.Cluster.model_validate(CLUSTER)
    Plan.build("by-hand", words, cluster, {"user": placed}).save(good / "plan-words")
    vocabulary_entries(good / "profile-words", "profile")
    vocabulary_entries(good / "plan-words", "plan")
    shutil.rmtree(good)
    expected = Path(__file__).parent / "bad_inputs_expected.yaml"
    listed = {name: list(says) for name, says in sorted(EXPECTED.items())}
    expected.write_text(yaml.safe_dump(listed, sort_keys=False, width=100))
    print(f"{len(EXPECTED)} entries")


if __name__ == "__main__":
    main()
