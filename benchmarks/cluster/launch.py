"""Start a command on every rank, with what torchrun would put into its environment."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from harness.ranks import SETTINGS

from .namespaces import entered
from .ranks import Place, end_with_parent

_POLL_S = 0.02
_GRACE_S = 3.0  # for others to fail by themselves and say why, after one did
TIMEOUT_CODE = 124  # as timeout(1) has it


@dataclass(frozen=True)
class Launched:
    """How a command ended, by rank: exit codes (negative: the signal), and what it printed."""

    codes: tuple[int, ...]
    stdout: tuple[str, ...]
    stderr: tuple[str, ...]
    first_failed: int | None  # the rank that failed first; the others may have been ended for it

    @property
    def code(self) -> int:
        """Zero if all went well, or how the first that failed ended, as a shell has it."""
        if self.first_failed is None:
            return 0
        code = self.codes[self.first_failed]
        return 128 - code if code < 0 else code


def launch(
    command: Sequence[str], places: Sequence[Place], show: bool, timeout_s: float
) -> Launched:
    """Run a command at every place; where one fails the others are ended."""
    with contextlib.ExitStack() as stack:
        files: list[IO[bytes]] = []
        if not show:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2 * len(places))]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for place in places:
                out, err = files[2 * place.rank : 2 * place.rank + 2] or (None, sys.stderr)
                processes.append(_start(command, place, out, err))
            failed = _wait(processes, time.monotonic() + timeout_s)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        texts = [_text(file) for file in files] or [""] * (2 * len(places))
        codes = [process.returncode for process in processes]
        if failed is not None and failed < 0:  # nobody failed, and somebody never ended
            failed = next(rank for rank, code in enumerate(codes) if code)
            codes[failed] = TIMEOUT_CODE
        return Launched(tuple(codes), tuple(texts[::2]), tuple(texts[1::2]), failed)


def _start(
    command: Sequence[str], place: Place, out: IO[bytes] | None, err: IO[bytes] | IO[str]
) -> subprocess.Popen[bytes]:
    parent = os.getpid()
    with entered(place.namespace):
        return subprocess.Popen(
            command,
            env={**os.environ, **SETTINGS, **place.environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            preexec_fn=lambda: end_with_parent(parent),
        )


def _wait(processes: Sequence[subprocess.Popen[bytes]], until: float) -> int | None:
    """The rank that failed first; None if none did, −1 if time was up before all ended."""
    first: int | None = None
    while True:
        codes = [process.poll() for process in processes]
        if first is None:
            first = next((rank for rank, code in enumerate(codes) if code), None)
            if first is not None:
                until = min(until, time.monotonic() + _GRACE_S)
        if None not in codes:
            return first
        if time.monotonic() > until:
            return -1 if first is None else first
        time.sleep(_POLL_S)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
