"""Ctrl-C and SIGTERM: what is under way is undone, one line is said, the exit code is 130."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

EXIT_CODE = 130  # as shells have it for Ctrl-C


class Stopped(BaseException):
    """Someone asked this process to stop. Not an Exception, so that nothing carries on."""

    def __init__(self, number: int):
        self.said = "interrupted" if number == signal.SIGINT else "stopped by SIGTERM"
        super().__init__(self.said)


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Let both signals raise `Stopped` meanwhile, where the process has not decided otherwise."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def stop(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a fork of ours: who started it says the line
            os._exit(EXIT_CODE)
        signal.signal(number, signal.SIG_DFL)  # who asks again does not want to wait
        raise Stopped(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours = [n for n, was in before.items() if was in (signal.SIG_DFL, signal.default_int_handler)]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def leave(stopped: Stopped) -> None:
    """Say so and end."""
    print(f"rowtier: {stopped.said}; nothing is half-written", file=sys.stderr, flush=True)
    sys.exit(EXIT_CODE)
