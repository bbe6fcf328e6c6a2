"""Bits that change in files and on disks: every one must be an error that names the file.

Faults are single bits (most), a file cut short, a run of zeros, and two blocks that changed places.
They are done to every file of checkpoints that one and two ranks wrote, to an export, to pages of
the disk tier, and to the order of rows and the curves of a plan if that has checksums
(`manifest.json`). A fault always changes the file. It is found if reading raises a RowtierError
with the file's name in it; white space in JSON files counts like anything else.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from fault_kinds.small_model import fill, load, parts_of, plan_of, save
from rowtier import Plan
from rowtier.errors import RowtierError
from rowtier.runtime.checkpoint.export import export
from rowtier.runtime.checkpoint.exported import check_export
from rowtier.runtime.store.pages import PAGE_BYTES, Pages
from rowtier.torch import ShardedEmbeddings, save_checkpoint

ROWS, DIM, PAGES = 300, 8, 64
FAULTS = ("bit",) * 7 + ("cut", "zeros", "swap")


@dataclass(frozen=True)
class _Target:
    """Files that are read together."""

    kind: str
    files: tuple[Path, ...]
    read: Callable[[], object]


def run(
    count: int, seed: int = 0, progress: Callable[[float], None] = lambda _: None
) -> dict[str, Any]:
    """So many faults; how many were not found, in all and by kind."""
    dice = random.Random(seed)
    done, missed = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="rowtier-flips-") as folder:
        targets = _targets(Path(folder))
        for target in targets:
            target.read()  # without a fault there is no error
        pages = _Disk(Path(folder) / "disk")
        for number in range(count):
            if number % 10 == 9:
                kind, found = "pages", pages.finds(dice)
            else:
                target = targets[number % len(targets)]
                kind, found = target.kind, _finds(target, dice)
            done[kind] += 1
            missed[kind] += not found
            progress((number + 1) / count)
    return {
        "flips": count,
        "checkpoint_flips": sum(n for kind, n in done.items() if kind.startswith("checkpoint")),
        "flips_undetected": sum(missed.values()),
        "flips_by_kind": dict(done),
        "undetected_by_kind": {kind: n for kind, n in missed.items() if n},
    }


def _targets(folder: Path) -> list[_Target]:
    embeddings = ShardedEmbeddings(plan_of(ROWS, DIM))
    save(folder / "one", embeddings, 7)
    _save_on_two(folder / "two")
    export(folder / "one", folder / "tables.safetensors")
    found = [
        _Target(f"checkpoint of {name}", _files(folder / name), _loader(folder / name, embeddings))
        for name in ("one", "two")
    ]
    exported = folder / "tables.safetensors"
    found.append(_Target("export", (exported,), lambda: check_export(exported)))
    plan_of(ROWS, DIM).save(folder / "plan")
    if (folder / "plan" / "manifest.json").exists():
        read = lambda: Plan.load(folder / "plan")  # noqa: E731
        data = tuple(path for path in _files(folder / "plan") if path.suffix != ".json")
        found.append(_Target("plan", data, read))
    return found


def _files(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for path in folder.rglob("*") if path.is_file()))


def _loader(folder: Path, embeddings: ShardedEmbeddings) -> Callable[[], object]:
    return lambda: load(folder, embeddings)


def _finds(target: _Target, dice: random.Random) -> bool:
    """Change a file, read, and put it back; whether the change was found."""
    path = dice.choice(target.files)
    before = path.read_bytes()
    path.write_bytes(_changed(before, dice))
    try:
        return _is_named(target.read, path.name)
    finally:
        path.write_bytes(before)


def _is_named(read: Callable[[], object], name: str) -> bool:
    """Whether reading is an error of rowtier's that names the file; any other is a miss."""
    try:
        read()
    except RowtierError as error:
        return name in str(error)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
    return False


def _changed(before: bytes, dice: random.Random) -> bytes:
    """Bytes with one fault, which are never the same."""
    while True:
        after, fault = bytearray(before), dice.choice(FAULTS)
        at = dice.randrange(len(after))
        if fault == "bit":
            after[at] ^= 1 << dice.randrange(8)
        elif fault == "cut":
            del after[at:]
        elif fault == "zeros":
            length = min(dice.choice((1, 64, 4096)), len(after) - at)
            after[at : at + length] = bytes(length)
        else:
            size = min(dice.choice((1, 64, 512)), len(after) // 2)
            other = dice.randrange(len(after) - size + 1)
            at = min(at, len(after) - size)
            if abs(at - other) < size:
                continue
            after[at : at + size] = before[other : other + size]
            after[other : other + size] = before[at : at + size]
        if after != before:
            return bytes(after)


class _Disk:
    """Pages of a disk tier, all of them written."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._pages = Pages(folder, buffer_bytes=4 * PAGES * PAGE_BYTES)
        self._pages.allot(PAGES)
        self._pages.name(0, PAGES - 1, "item")
        frames = self._pages.hold(np.arange(PAGES))
        words = np.frombuffer(self._pages.buffer, dtype=np.int64).reshape(self._pages.frames, -1)
        words[frames] = np.random.default_rng(0).integers(0, 2**62, (PAGES, words.shape[1]))
        self._pages.change(frames)
        self._forget()

    def finds(self, dice: random.Random) -> bool:
        """Change a page, read it, and put it back."""
        page, handle = dice.randrange(PAGES), self._pages._file.handle
        room = mmap.mmap(-1, PAGE_BYTES)  # whole pages in their places: the file has no cache
        os.preadv(handle, [room], page * PAGE_BYTES)
        before = room[:]
        room[:] = _changed(before, dice).ljust(PAGE_BYTES, b"\0")
        if room[:] == before:
            room[0] ^= 1
        os.pwritev(handle, [room], page * PAGE_BYTES)
        if dice.random() < 0.5:
            self._pages.prefetch(np.array([page]), 0)
        try:
            self._pages.hold(np.array([page]))
        except RowtierError as error:
            return str(self._folder) in str(error) and f"page {page} with rows of" in str(error)
        finally:
            room[:] = before
            os.pwritev(handle, [room], page * PAGE_BYTES)
            self._forget()
        return False

    def _forget(self) -> None:
        self._pages.settle()
        self._pages.close()
        self._pages.settle()


def _save_on_two(folder: Path) -> None:
    """A checkpoint of two ranks, which are processes of their own."""
    store = folder.with_suffix(".store")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(_save_on, [(rank, str(store), str(folder)) for rank in range(2)], 1)


def _save_on(rank: int, store: str, folder: str) -> None:
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    embeddings = ShardedEmbeddings(plan_of(ROWS, DIM, ranks=2))
    fill(embeddings, 7)
    save_checkpoint(folder, **parts_of(embeddings, 7))
    dist.destroy_process_group()


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))
