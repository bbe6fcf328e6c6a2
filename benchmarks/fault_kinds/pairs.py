"""Two `rowtier profile` at once into one output: one of the two profiles, never some of each.

Each pair is two processes that count different data in several parts, one begun a random time after
the other. Either may be refused (exit code 2); the output must be exactly one of the two results.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_kinds.forks import (
    command,
    drawn,
    duration_s,
    ended,
    forked,
    in_server,
    quietly,
    scratch,
    small_dataset,
    small_tables,
)


def run(
    count: int, seed: int = 0, progress: Callable[[float], None] = lambda _share: None
) -> dict[str, Any]:
    """Try `count` pairs; how many ended with a mixed profile, and how many runs were refused."""
    total: Counter[str] = Counter(pairs=0, mixed_profiles=0, refused=0, wrong_exit_codes=0)
    total["leftovers"] = 0
    for first in range(0, count, 100):
        total.update(in_server(_tried, first, min(first + 100, count), seed))
        progress(total["pairs"] / count)
    return dict(total)


def _tried(first: int, stop: int, seed: int) -> Counter[str]:
    with scratch() as folder:
        tables = small_tables(folder / "tables.yaml")
        data = [small_dataset(folder / f"data-{i}", seed * 2 + i) for i in range(2)]
        wanted = [_fingerprint_of(one, tables, folder / f"alone-{i}") for i, one in enumerate(data)]
        usual_s = duration_s(command("profile", data[0], "--tables", tables, "-o", folder / "once"))
        found: Counter[str] = Counter()
        for number in range(first, stop):
            outputs = folder / f"pair-{number}"
            outputs.mkdir()
            found.update(_pair(number, seed, outputs / "p", data, tables, wanted, usual_s))
        return found


def _pair(
    number: int, seed: int, output: Path, data: list[Path], tables: Path,
    wanted: list[str], usual_s: float,
) -> Counter[str]:  # fmt: skip
    from rowtier import Profile

    draw = drawn(seed, "pair", number)
    resume = ["--resume"] if draw.random() < 0.3 else []
    order = draw.sample(range(2), 2)
    pids = []
    for which in order:
        pids.append(
            forked(command("profile", data[which], "--tables", tables, "-o", output, *resume))
        )
        time.sleep(draw.uniform(0, usual_s) if len(pids) == 1 else 0)
    codes = [ended(pid) for pid in pids]
    done = {wanted[which] for which, code in zip(order, codes, strict=True) if code == 0}
    try:
        right = Profile.load(output).fingerprint in done
    except Exception:  # whatever it is, this is no profile of either
        right = False
    left = [path.name for path in output.parent.iterdir() if path != output]
    return Counter(
        pairs=1,
        mixed_profiles=not right,
        refused=sum(code == 2 for code in codes),
        wrong_exit_codes=sum(code not in (0, 2) for code in codes),
        leftovers=len(left),
    )


def _fingerprint_of(data: Path, tables: Path, output: Path) -> str:
    from rowtier import Profile

    quietly(command("profile", data, "--tables", tables, "-o", output))
    return Profile.load(output).fingerprint
