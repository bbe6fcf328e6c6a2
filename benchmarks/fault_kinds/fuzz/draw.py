"""Drawing changes at random: which file, which place, and something unlikely to put there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_kinds.fuzz.changes import Change, read_tree
from fault_kinds.fuzz.corpus import BASES

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 7, 2**16, 2**16 + 1, 2**20, 2**31 - 1, 2**31, 2**32, 2**40, 2**40 + 1, 2**48,
    2**53, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, 2**70, 10**30, -(2**31), -(2**63), -(2**64),
    0.0, -0.0, 0.5, 1.5, -1.5, 1e-9, 1e-300, 5e-324, 1e15, 1e18, 1e300, 1.7e308, float("nan"),
    float("inf"), float("-inf"),
)  # fmt: skip
WORDS = (
    "", " ", "all", "null", "~", "item", "user", "word", "hbm", "dram", "disk", "device", "node",
    "cluster", "store", "sums", "rows", "blocks", "../../etc/passwd", "a/b", "..", "con", "=", "<<",
    "x" * 201, "x" * 70000, "é", "e\u0301", "\u202eabc", "\u2028", "\x85", "\x07", "\x1b[31m",
    "\ufeff", "\ud800", "\U0001f4a3", "\0", "[red]", "{0}", "%s", "\t", "a\nb", "nan", "inf",
    "-inf", "true", "1e999", "0x10", "1_000", "1:30", "2020-01-01", "٣", "½",
)  # fmt: skip
QUANTITIES = (
    "0B", "1B", "-1B", "1e30B", "24GiB", "9223372036854775807B", "9223372036854775808B", "1e300GB",
    "1EiB", "2EiB", "0.5B", "1e18B/s", "0B/s", "1B/s", "1e-300B/s", "1e300B/s", "5e-324s", "1e308s",
    "0s", "-5us", "1e9s", "2e9s", "80M", "1e300", "0.1%", "101%", "1e-400s", "9" * 5000, "1e999999",
    "1e-999999", "4.6P", "999P", "1__0", "5µs", "5 us", "∞", "NaNs", "1GB/s", "200Gbit/s", "1kB",
)  # fmt: skip
SHAPES: tuple[Any, ...] = (
    None, True, False, [], {}, [[]], [{}], {"a": 1}, [None], [1, 2], [0, 0], [-1], [2**63],
    {"name": "x"}, [["item"]], [[1, 2], [3]], {"": ""}, {"0": 0}, "all",
)  # fmt: skip
TEXTS = (
    "[", "{", "]", "}", ",", ":", ": ", "- ", "? ", "&a ", "*a", "!!", "!!python/object:os.system ",
    "!!binary ", "!!set ", "!!float ", "| ", "> ", "%YAML 9.9\n", "---\n", "...\n", "#", "'", '"',
    "\t", "\r", "\\", "<<: *a\n", "\ufeff", "\u2028", "\U0010ffff", "NaN", "Infinity", "-", "1e999",
    "9" * 400, "9" * 5000, "x" * 3000, "&a [*a]", "0x", "0o8", "0b2", "\\ud800", "\\u0000",
)  # fmt: skip
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
HEADERS = (
    "{'descr': '<i8', 'fortran_order': False, 'shape': (1125899906842624,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (48, 1125899906842624), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (9223372036854775808,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (0,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (), }",
    "{'descr': '<i8', 'fortran_order': True, 'shape': (4, 12), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (48,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (48,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (48, 0), }",
    "{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (48,), }",
    "{'descr': '|V1000000000', 'fortran_order': False, 'shape': (48,), }",
    "{'descr': '<i8', 'shape': (48,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (2.5,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (True,), }",
    "__import__('os').system('true')",
    "((((((((((((((((((((((((((((((((((((((((((((((((((((",
)
ARROW_TYPES = (
    "int8", "int16", "int32", "uint8", "uint32", "uint64", "float32", "float64", "string", "binary",
    "bool", "date32", "timestamp[ns]", "large_string", "halffloat",
)  # fmt: skip
NUMPY_TYPES = ("i1", "u1", "<i4", ">i8", "<u8", "f4", "f8", "c16", "U4", "O", "M8[s]", "?")
COMMANDS = (
    "validate {plan}", "predict {plan}", "verify {plan}", "explain {plan}", "explain {plan} user",
    "explain {plan} --what-if {change}", "predict {plan} --batch-size {number}",
    "predict {plan} --dense {quantity}", "predict {plan} --ids {word}",
    "predict {plan} --weighted {word}", "predict {plan} --batches {word}",
    "explain {plan} {word}", "profile show {counted}", "profile show {counted} --cut {quantity}",
    "profile show {counted} --horizon {number}", "profile show {word}",
    "profile {parquet}/data.parquet --tables {parquet}/tables.yaml -o {out} --sample {quantity}",
    "profile {parquet}/data.parquet --tables {parquet}/tables.yaml -o {out} --seed {number}",
    "profile {parquet}/data.parquet --tables {parquet}/tables.yaml -o {out} --memory {quantity}",
    "profile {parquet}/data.parquet --tables {parquet}/tables.yaml -o {out} --before {quantity}",
    "profile {parquet}/data.parquet --tables {parquet}/tables.yaml -o {out} --after {word}",
    "profile {parquet}/data.parquet --tables {parquet}/tables.yaml -o {out} --time {word}",
    "profile {parquet}/data.parquet --tables {parquet}/tables.yaml -o {out} --first-sample "
    "{number}",
    "profile {parquet}/data.parquet --tables {parquet}/tables.yaml -o {out} --horizon {number}",
    "plan {counted} --cluster {cluster} --method row-wise -o {out} --reserve {quantity}",
    "plan {counted} --cluster {cluster} --method {word} -o {out}",
    "plan {counted} --cluster {cluster} --method row-wise -o {out} --confidence {number}",
    "plan {counted} --cluster {word} --method row-wise -o {out}",
    "plan {counted} --cluster {cluster} --method size -o {out} --dense {quantity}",
    "synth sequence --samples 10 --rows {number} -o {out}",
    "synth sequence --samples 10 --rows 10 --embedding-dim {number} -o {out}",
    "synth drift --samples 10 --rows 10 --seed {number} -o {out}",
    "diff {plan} {plan}", "export {plan} -o {out}", "{word}", "{word} {word}",
)  # fmt: skip
WHAT_IF = (
    "tiers.hbm.capacity", "tiers.hbm.bandwidth", "tiers.hbm.granularity", "tiers.dram.capacity",
    "tiers.disk.capacity", "levels.node.size", "levels.cluster.size", "levels.cluster.bandwidth",
    "levels.node.latency", "batch_size", "nothing", "", "tiers..capacity",
)  # fmt: skip
_SEALED = {"counted": "profile", "curve": "profile", "plan": "plan", "plan-row-wise": "plan"}
_WEIGHTS = {"options": 2, "texts": 5, "plan": 6, "plan-row-wise": 16, "counted": 20}


@dataclass(frozen=True)
class Case:
    """A base, and what is done to it."""

    base: str
    changes: tuple[Change, ...]


def draw(corpus: Path, seed: int, number: int) -> Case:
    """Case `number` of a seed: the same on every machine, whatever ran before."""
    rng = random.Random(f"rowtier fuzz {seed} {number}")
    names = list(BASES)
    base = rng.choices(names, [_WEIGHTS.get(name, 10) for name in names])[0]
    if base in ("texts", "options"):
        return Case(base, (_text(rng) if base == "texts" else _options(rng),))
    files = sorted(str(p.relative_to(corpus / base)) for p in (corpus / base).rglob("*.*"))
    files = [name for name in files if (corpus / base / name).is_file()]
    count = rng.choice((1, 1, 1, 2, 3))
    changes = [_change(rng, corpus / base, rng.choice(files), files) for _ in range(count)]
    if base in _SEALED and rng.random() < 0.8:
        changes.append({"op": "seal", "file": _SEALED[base]})
    return Case(base, tuple(changes))


def _change(rng: random.Random, folder: Path, file: str, files: list[str]) -> Change:
    kinds: list[tuple[Callable[[], Change], int]] = [
        (lambda: _bytes(rng, file), 3),
        (lambda: _file(rng, file, files), 1),
    ]
    if file.endswith((".json", ".yaml")):
        places = list(_places(read_tree(folder / file)))
        kinds += [(lambda: _node(rng, file, places), 12), (lambda: _insert(rng, file), 3)]
    if file.endswith(".tsv"):
        kinds.append((lambda: _insert(rng, file), 4))
    if file.endswith(".parquet"):
        kinds.append((lambda: _column(rng, file), 8))
    if file.endswith(".npz"):
        kinds.append((lambda: _member(rng, file), 8))
    return rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]()


def _places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(data, (dict, list)):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield from _places(data[key], (*path, key))


def _value(rng: random.Random) -> Any:
    kind = rng.choices(("number", "word", "quantity", "shape"), (8, 3, 4, 4))[0]
    if kind == "number" and rng.random() < 0.3:
        return rng.choice(
            (rng.randrange(100), -rng.randrange(100), rng.random(), 2.0 ** rng.randrange(-60, 70))
        )
    return rng.choice(
        {"number": NUMBERS, "word": WORDS, "quantity": QUANTITIES, "shape": SHAPES}[kind]
    )


def _node(rng: random.Random, file: str, places: list[tuple[Any, ...]]) -> Change:
    where = {"file": file, "path": list(rng.choice(places))}
    op = rng.choices(("put", "drop", "rename", "again", "wrap"), (12, 3, 2, 2, 1))[0]
    if op in ("put", "rename"):
        value = _value(rng) if op == "put" else rng.choice(WORDS)
        return {"op": op, **where, "value": value}
    if op == "drop":
        return {"op": op, **where, "value": None}
    return {"op": op, **where, "times": rng.choice((1, 2, 20, 100))}


def _insert(rng: random.Random, file: str) -> Change:
    text, times = rng.choice((*TEXTS, *WORDS, BOMB)), rng.choice((1, 1, 1, 2, 100))
    at = 0 if text == BOMB else rng.randrange(10**6)
    return {"op": "insert", "file": file, "at": at, "text": text, "times": times}


def _bytes(rng: random.Random, file: str) -> Change:
    op = rng.choice(("flip", "splice", "cut", "repeat", "lines"))
    at = rng.randrange(10**6)
    if op == "flip":
        return {
            "op": op,
            "file": file,
            "bits": [rng.randrange(10**7) for _ in range(rng.choice((1, 1, 3, 20)))],
        }
    if op == "splice":
        put = rng.choice((b"\0", b"\xff" * 8, b"\x7f" * 4, rng.randbytes(rng.randrange(1, 9))))
        return {
            "op": op,
            "file": file,
            "at": at,
            "hex": put.hex(),
            "delete": rng.choice((0, 1, len(put))),
        }
    if op == "cut":
        return {"op": op, "file": file, "at": at}
    if op == "repeat":
        size, times = rng.choice((1, 8, 64)), rng.choice((1, 3, 50))
        return {"op": op, "file": file, "at": at, "size": size, "times": times}
    return {"op": op, "file": file, "at": at, "times": rng.choice((0, 2, 3))}


def _file(rng: random.Random, file: str, files: list[str]) -> Change:
    op = rng.choice(("remove", "empty", "folder", "swap", "swap"))
    return {"op": op, "file": file, **({"other": rng.choice(files)} if op == "swap" else {})}


def _column(rng: random.Random, file: str) -> Change:
    do = rng.choices(
        ("drop", "rename", "cast", "list", "put", "all", "rows"), (1, 1, 4, 1, 10, 3, 2)
    )[0]
    where = {"op": "column", "file": file, "column": rng.randrange(100), "do": do}
    if do == "rename":
        return {**where, "value": rng.choice((*WORDS, "row", "count", "stop"))}
    if do == "cast":
        return {**where, "value": rng.choice(ARROW_TYPES)}
    if do in ("put", "all"):
        return {
            **where,
            "at": rng.randrange(100),
            "value": rng.choice((*NUMBERS, *WORDS, None, None)),
        }
    return {**where, "at": rng.randrange(100), "times": rng.choice((1, 1, 2, 3))}


def _member(rng: random.Random, file: str) -> Change:
    do = rng.choice(("drop", "rename", "header", "header", "cast", "put", "cut", "flip"))
    where = {"op": "member", "file": file, "column": rng.randrange(100), "do": do}
    value: Any = None
    if do == "rename":
        value = rng.choice(("user.npy", "user_values.npy", "x.npy", "user", "../x.npy"))
    elif do == "header":
        value = rng.choice(HEADERS)
    elif do == "cast":
        value = rng.choice(NUMPY_TYPES)
    elif do == "put":
        value = rng.choice([n for n in NUMBERS if isinstance(n, int)])
    packed = rng.random() < 0.3
    return {**where, "at": rng.randrange(10**6), "value": value, "packed": packed}


def _text(rng: random.Random) -> Change:
    key = rng.choice(WHAT_IF)
    text = rng.choice((*QUANTITIES, *WORDS, *map(str, NUMBERS)))
    return {"op": "text", "key": key, "value": text}


def _options(rng: random.Random) -> Change:
    parts = [
        part.replace("{word}", rng.choice(WORDS))
        .replace("{number}", str(rng.choice(NUMBERS)))
        .replace("{quantity}", rng.choice((*QUANTITIES, *map(str, NUMBERS))))
        .replace("{change}", f"{rng.choice(WHAT_IF)}={rng.choice((*QUANTITIES, *WORDS))}")
        for part in rng.choice(COMMANDS).split(" ")
    ]
    return {"op": "options", "value": parts}
