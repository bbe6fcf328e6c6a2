"""A process that decides beside training: ranks go on while the first one's process plans.

It runs on its own with low priority, reads questions from its input and answers them in order, and
ends when its input does, as it does when the rank ends for whatever reason.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import IO, Any

from rowtier.errors import RowtierError

_POLITE = 10  # added to its niceness
_SIZE_BYTES = 8


class PlanningProcess:
    """Calls functions elsewhere; one question is open at a time."""

    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, sys.path))  # it finds rowtier where this one did
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        weakref.finalize(self, _end, self._process)

    def ask(self, call: Callable[..., Any], *args: Any) -> None:
        """Have `call(*args)` worked out; both must be picklable."""
        assert self._process.stdin is not None
        # It may still be starting, and a pipe holds little.
        asking = (self._process.stdin, pickle.dumps((call, args)))
        threading.Thread(target=_write, args=asking, daemon=True).start()

    def answer(self) -> Any:
        """What the call returned; waits for it."""
        assert self._process.stdout is not None
        found = _read(self._process.stdout)
        if found is None:
            raise RowtierError(
                f"the process that plans ended with code {self._process.wait()}: look at what it "
                "wrote to standard error, or plan while ranks wait, with due=0"
            )
        return pickle.loads(found)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it, whatever it is at."""
    process.kill()
    process.communicate()


def _write(pipe: IO[bytes], data: bytes) -> None:
    try:
        pipe.write(len(data).to_bytes(_SIZE_BYTES, "little") + data)
        pipe.flush()
    except (BrokenPipeError, ValueError):
        pass  # it ended, which who reads the answer is told


def _read(pipe: IO[bytes]) -> bytes | None:
    """A message; None: there is no other."""
    head = pipe.read(_SIZE_BYTES)
    if len(head) < _SIZE_BYTES:
        return None
    size = int.from_bytes(head, "little")
    data = pipe.read(size)
    return data if len(data) == size else None


def main() -> None:
    """Answer questions until there are none."""
    os.nice(_POLITE)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody prints is no answer
    while (asked := _read(sys.stdin.buffer)) is not None:
        call, args = pickle.loads(asked)
        _write(answers, pickle.dumps(call(*args)))


if __name__ == "__main__":
    main()
