"""`PendingSave`: a save that is written behind training."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from rowtier.runtime.checkpoint.save_writing import Meeting, SaveWriting


class PendingSave:
    """A save whose content was copied and is being written; training may go on.

    `wait()` returns its folder when it is whole, or raises what went wrong: then the save before
    it still is the checkpoint. The next save waits by itself, and raises it if nobody waited.
    Python waits before it ends.
    """

    def __init__(self, writing: SaveWriting, meeting: Meeting, then: Callable[[], None]):
        self.save = writing.save
        self._then, self._error, self._reported = then, None, False
        self._ended = False  # as far as the module knows
        # Not a daemon: the interpreter joins it before it ends.
        self._thread = threading.Thread(
            target=self._run, args=(writing, meeting), name="rowtier save"
        )
        global _last
        _last = self
        self._thread.start()

    _error: Exception | None

    def _run(self, writing: SaveWriting, meeting: Meeting) -> None:
        self._error = writing.run(meeting)

    @property
    def done(self) -> bool:
        """Whether nothing is left to do; `wait` then returns, or raises, at once."""
        return not self._thread.is_alive()

    def wait(self) -> Path:
        """Wait until the save is whole; returns its folder, or raises what went wrong."""
        self._thread.join()
        if self._error is not None:
            self._reported = True
            raise self._error
        if not self._ended:
            self._ended = True
            self._then()
        return self.save

    def finish(self) -> None:
        """Wait, and raise what went wrong unless somebody was told before."""
        self._thread.join()
        if not self._reported:
            self.wait()

    def tell(self) -> None:
        """Say what went wrong, if nobody asked."""
        self._thread.join()
        if self._error is not None and not self._reported:
            print(f"rowtier: a save behind training failed: {self._error}", file=sys.stderr)


_last: PendingSave | None = None


def finish_pending() -> None:
    """Wait for the save that this process writes behind training, if there is one."""
    global _last
    last, _last = _last, None
    if last is not None:
        last.finish()


@atexit.register
def _tell_at_exit() -> None:
    if _last is not None:
        _last.tell()
