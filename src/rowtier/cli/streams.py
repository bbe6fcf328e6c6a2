"""Standard output and error in any state: closed, full, ASCII only, or of no width.

What cannot be printed is never lost without a word: a command whose output does not arrive fails
with `LostOutputError`. What cannot be said on standard error is dropped, as nobody listens.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO, cast

from rowtier.errors import UserError
from rowtier.foreign import PLAIN

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LEAST_COLUMNS = 20  # a terminal that claims fewer is not believed


class LostOutputError(UserError):
    """What a command printed did not arrive."""


class _Checked(io.FileIO):
    """A file descriptor for text: the first write that fails is told, what follows is dropped."""

    def __init__(self, number: int, tells: bool):
        super().__init__(number, "w", closefd=False)
        self._tells, self._lost = tells, False

    def write(self, data: ReadableBuffer, /) -> int:
        if not self._lost:
            try:
                return super().write(data)
            except OSError as error:
                self._lost = True
                if self._tells and not isinstance(error, BrokenPipeError):
                    raise LostOutputError(
                        f"standard output: cannot be written ({error.strerror}), so what the "
                        "command found is not all there; send it elsewhere and run it again"
                    ) from None
                if self._tells:
                    raise
        return memoryview(data).nbytes


def prepare() -> None:
    """Make the streams of this process safe to print to, or say that there is no output."""
    _fill_closed()
    narrow = os.environ.get("COLUMNS", "")
    if narrow and not (narrow.isdecimal() and int(narrow) >= LEAST_COLUMNS):
        del os.environ["COLUMNS"]
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        sys.stderr = _wrapped(sys.stderr, 2, tells=False)
    if sys.stdout is None:
        raise LostOutputError(
            "standard output is closed, so nothing can be shown; redirect it to a file, or to "
            "/dev/null"
        )
    if sys.stdout is sys.__stdout__:
        sys.stdout = _wrapped(sys.stdout, 1, tells=True)


def encoding() -> str:
    """The encoding of standard output."""
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def finish() -> None:
    """Send what is still held back, so that a failure is noticed while it can be told."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


def _fill_closed() -> None:
    """Open what is closed of the first three, so that no file of ours gets their numbers."""
    with contextlib.suppress(OSError):
        number = os.open(os.devnull, os.O_RDWR)
        while number <= 2:
            number = os.open(os.devnull, os.O_RDWR)
        os.close(number)


def _wrapped(stream: TextIO | None, number: int, tells: bool) -> TextIO:
    """A stream of the same encoding that writes through `_Checked`, and escapes what it lacks."""
    if stream is not None:
        try:
            if stream.fileno() != number:
                return stream
        except (OSError, ValueError):  # something in the place of a file
            return stream
        stream.flush()
    raw = _Checked(number, tells)
    made = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(stream, "encoding", None) or "utf-8",
        errors=PLAIN,
        line_buffering=raw.isatty() or number == 2,
    )
    return cast(TextIO, made)
