"""Kill writers at random moments: what was there, or what comes, is there as a whole.

Every writer replaces one version of an output by another in a process of its own, which is killed
(SIGKILL) after a time drawn evenly from what the write takes. Then the output must load and be one
of the two, and after the next run it must be the new one, with nothing left beside it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_kinds.forks import (
    HANG_S,
    drawn,
    duration_s,
    ended,
    forked,
    group_members,
    in_server,
    scratch,
    small_dataset,
    small_tables,
)

COMMANDS = 0.005  # of all kills: whole commands, which start Python and workers
ON_DISK = 0.1
_BATCH = 400  # kills between two reports of progress


def run(
    count: int, seed: int = 0, progress: Callable[[float], None] = lambda _share: None
) -> dict[str, Any]:
    """Kill `count` writes; how many lost a result, and what was left after the next run."""
    commands = round(COMMANDS * count)
    total: Counter[str] = Counter(kills=0, kills_lost=0, leftovers_after_next_run=0)
    by_writer: Counter[str] = Counter()
    todo = count - commands
    for number, start in enumerate(range(0, todo, _BATCH)):
        found, each = in_server(_forked_kills, min(_BATCH, todo - start), seed, number)
        total.update(found)
        by_writer.update(each)
        progress(total["kills"] / count)
    total["orphans"] = 0
    for number in range(commands):
        found = _command_kill(seed, number)
        total.update(found)
        by_writer["rowtier profile --workers 2, started anew"] += found["kills"]
    progress(1.0)
    return {**total, "kills_by_writer": dict(by_writer)}


def _forked_kills(count: int, seed: int, batch: int) -> tuple[Counter[str], Counter[str]]:
    """In a process that forks: kills of all writers, by their shares."""
    from fault_kinds.writers import writers

    total: Counter[str] = Counter()
    by_writer: Counter[str] = Counter()
    draw = drawn(seed, "kills", batch)
    with scratch(on_disk=draw.random() < ON_DISK) as folder:
        (folder / "given").mkdir()
        known = list(writers(folder / "given"))
        chosen = Counter(draw.choices(known, [one.share for one in known], k=count))
        for writer, amount in chosen.items():
            place = folder / writer.name.replace(" ", "-")
            place.mkdir()
            total.update(_killed(writer, place / "out", amount, draw))
            by_writer[writer.name] += amount
    return total, by_writer


def _killed(writer: Any, target: Path, amount: int, draw: Any) -> Counter[str]:
    found: Counter[str] = Counter(kills=0, kills_lost=0, leftovers_after_next_run=0)
    versions, usual_s = [], 0.0
    for version in (0, 1):
        usual_s = duration_s(writer.write(target, version))
        versions.append(writer.read(target))
    after = 1
    while found["kills"] < amount:
        after = 1 - after  # the other one is there
        pid = forked(writer.write(target, after))
        time.sleep(draw.uniform(0, usual_s))
        os.kill(pid, signal.SIGKILL)
        if ended(pid) != -signal.SIGKILL:
            usual_s *= 0.98  # it was done already
            continue
        lost = _read(writer.read, target) not in versions
        code = ended(forked(writer.again(target, after)))
        lost |= code != 0 or _read(writer.read, target) != versions[after]
        left = [path for path in target.parent.iterdir() if path != target]
        found.update(kills=1, kills_lost=lost, leftovers_after_next_run=len(left))
    return found


def _read(read: Callable[[Path], str], target: Path) -> str:
    try:
        return read(target)
    except Exception:  # whatever it is, the result is lost
        return "lost"


def _command_kill(seed: int, number: int) -> Counter[str]:
    """Kill a whole command that has workers: its result, and whether the workers end."""
    from rowtier import Profile

    draw = drawn(seed, "command", number)
    with scratch() as folder:
        tables = small_tables(folder / "tables.yaml")
        data = [small_dataset(folder / f"data-{i}", i) for i in range(2)]
        output = folder / "out" / "p"
        start = [sys.executable, "-m", "rowtier", "profile"]
        arguments = ["--tables", str(tables), "-o", str(output), "--workers", "2", "--json"]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        begun = time.monotonic()
        subprocess.run([*start, str(data[0]), *arguments], check=True, timeout=HANG_S, **quiet)
        usual_s = time.monotonic() - begun
        before = Profile.load(output).fingerprint
        running = subprocess.Popen(
            [*start, str(data[1]), *arguments], start_new_session=True, **quiet
        )
        time.sleep(draw.uniform(usual_s / 4, usual_s))
        running.kill()
        killed = running.wait() == -signal.SIGKILL  # it may be done already
        orphans = not _all_end(running.pid)
        there = _read(lambda path: Profile.load(path).fingerprint, output)
        again: list[str] = [*start, str(data[1]), *arguments, *draw.choice([[], ["--resume"]])]
        done = subprocess.run(again, check=False, timeout=HANG_S, **quiet)
        now = _read(lambda path: Profile.load(path).fingerprint, output)
        lost = done.returncode != 0 or now == before or there not in (before, now)
        left = len(list(output.parent.iterdir())) - 1
    return Counter(kills=killed, kills_lost=lost, leftovers_after_next_run=left, orphans=orphans)


def _all_end(group: int) -> bool:
    """Whether all processes of a group end by themselves; if not, they are killed."""
    until = time.monotonic() + HANG_S / 4
    while members := group_members(group):
        if time.monotonic() > until:
            for pid in members:
                os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.02)
    return True
