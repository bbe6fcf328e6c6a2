"""Write tests/bad_inputs/: files and folders that `rowtier validate` must refuse.

Run it after a format change: `python tests/make_bad_inputs.py`. Each entry is a good
file with one thing (or a few) broken; single files are in `bad_entries.py`.
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
from bad_entries import (
    CLUSTER,
    EXPECTED,
    HERE,
    TABLES,
    cluster_entries,
    drop,
    put,
    tables_entries,
)

import rowtier
import rowtier.files
from rowtier.manifest import write_manifest
from rowtier.plan.plan import Plan
from rowtier.runtime.deltas.delta import DeltaIndex, DeltaTable, check_delta, index_text
from rowtier.runtime.deltas.tensor_file import Held, write_tensors


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


def listed(change: Callable[[Path], None]) -> Callable[[Path], None]:
    """Change a binary file and its entry in the manifest, so that only the content is wrong."""

    def apply(folder: Path) -> None:
        change(folder)
        write_manifest(folder)

    return apply


def flip(file: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        raw = bytearray((folder / file).read_bytes())
        raw[len(raw) // 2] ^= 1
        (folder / file).write_bytes(raw)

    return apply


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

    return listed(apply)


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
    one("cut-off-counts", cut("counts/item.parquet", 200), "table 'item'", "cut off: it has 200")
    one("no-parquet", listed(cut("counts/item.parquet", 200)), "not readable Parquet")
    one("flipped-counts", flip("counts/item.parquet"), "table 'item'", "changed", "profile again")
    one("no-manifest", remove("manifest.json"), "manifest.json", "missing", "profile again")
    one("cut-off-manifest", cut("manifest.json", 100), "manifest.json", "not valid JSON")
    one("unlisted-counts", _forget("counts/item.parquet"), "item.parquet", "does not name")
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

    band("gap", 1, "start", 120, "tables.item", "positions 100 to 120", "in no band")
    band("overlap", 1, "start", 80, "tables.item", "positions 80 to 100", "covered twice")
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
    one(
        "wish-below-zero",
        edit("plan.json", put("origin", value={"options": {"dense_s": -1.0}})),
        "origin.options.dense_s",
        "zero or more",
    )
    one(
        "serves-with-state",
        edit("plan.json", put("origin", value={"options": {"serve": True}})),
        "origin.options.serve",
        "a plan that serves has none",
        "plan again",
    )
    one(
        "serves-beside-dense",
        edit("plan.json", put("origin", value={"options": {"serve": True, "dense_s": 0.1}})),
        "origin.options",
        "a plan that serves has none; drop one",
    )
    one(
        "serves-int4",
        edit("plan.json", put("origin", value={"options": {"serve": True, "rows_as": "int4"}})),
        "origin.options.rows_as",
        "fp32",
        "fp16",
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
    one(
        "cut-off-order",
        cut("order.bin", 100),
        "order.bin",
        "table 'item', 'user'",
        "cut off",
        "plan again",
    )
    one("flipped-order", flip("order.bin"), "order.bin", "table 'item'", "changed", "plan again")
    one("no-manifest", remove("manifest.json"), "manifest.json", "missing", "plan again")
    one("flipped-curve", flip("curve/curves.parquet"), "curves.parquet", "changed")
    one("no-order", remove("order.bin"), "order.bin", "missing", "plan again")
    one("order-row-twice", listed(_copy_first_row), "order.item", "twice in the row order")
    one("order-of-nothing", edit("plan.json", drop("order", "user")), "order", "'user'")
    (HERE / "folder-of-nothing").mkdir()
    (HERE / "folder-of-nothing" / "notes.txt").write_text("nothing that rowtier wrote\n")
    EXPECTED["folder-of-nothing"] = ("plan.json, profile.json",)


def _forget(file: str) -> Callable[[Path], None]:
    return edit("manifest.json", drop("files", file), keep_seal=True)  # type: ignore[no-any-return]


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

    return listed(apply)


def vocabulary_entries(good: Path, kind: str) -> None:
    def one(name: str, change: Callable[[Path], None], *says: str) -> None:
        folder_entry(good, f"{kind}-vocabulary-{name}", change, *says)

    file = "vocabulary/user.parquet"
    one("missing", remove(file), "user.parquet", "'user' is missing", "profile again")
    one("cut-off", cut(file, 200), "user.parquet", "table 'user'", "cut off")
    one("no-parquet", listed(cut(file, 200)), "user.parquet", "not readable Parquet")
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


def good_delta(folder: Path) -> None:
    """Two rows of a table, as one rank would write them."""
    folder.mkdir(parents=True)
    table = DeltaTable(table="item", shape=(10, 2), dtype="F32", changed=2)
    index = DeltaIndex(
        name="fedcba9876543210", sequence=1, follows=("0123456789abcdef",),
        tables={"embedding_bags.item.weight": table}, files=("rows-00000.safetensors",),
    )  # fmt: skip
    ids, values = np.array([3, 7]), np.ones((2, 2), dtype=np.float32)
    with (folder / "rows-00000.safetensors").open("wb") as file:
        tensors = [Held("0|ids", "I64", ids), Held("0|0|embedding_bags.item.weight", "F32", values)]
        write_tensors(file, tensors)
    (folder / "delta.json").write_text(index_text(index))
    write_manifest(folder)


def delta_entries(good: Path) -> None:
    def one(name: str, change: Callable[[Path], None], *says: str) -> None:
        folder_entry(good, f"delta-{name}", change, *says)

    rows = "rows-00000.safetensors"
    one("flipped", flip(rows), rows, "changed after it was written", "copy the folder")
    one("cut-off", cut(rows, 60), rows, "cut off: it has 60")
    one("rows-missing", remove(rows), rows, "is missing")
    one("no-manifest", remove("manifest.json"), "manifest.json: is missing", "export")
    one("index-changed", cut("delta.json", 30), "delta.json", "cut off")
    one("no-sequence", listed(edit("delta.json", drop("sequence"), keep_seal=True)), "sequence")
    one(
        "unknown-key",
        listed(edit("delta.json", put("rows", value=3), keep_seal=True)),
        "rows",
        "unknown",
    )


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
    good_delta(good / "delta")
    check_delta(good / "delta")
    delta_entries(good / "delta")
    shutil.rmtree(good)
    expected = Path(__file__).parent / "bad_inputs_expected.yaml"
    said = {name: list(says) for name, says in sorted(EXPECTED.items())}
    expected.write_text(yaml.safe_dump(said, sort_keys=False, width=100))
    print(f"{len(EXPECTED)} entries")


if __name__ == "__main__":
    main()
