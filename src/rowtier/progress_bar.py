"""A progress bar for whoever looks at a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

from rowtier.foreign import shown

TITLE_WIDTH = 60


@contextlib.contextmanager
def progress(
    what: str, quiet: bool = False, after_s: float = 0.0
) -> Iterator[Callable[[float], None]]:
    """A progress bar on a terminal, nothing elsewhere; call it with the share that is done.

    It is shown when the work has taken so many seconds.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda _share: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(escape(shown(what, TITLE_WIDTH)), total=1.0)
    begin = threading.Timer(after_s, bar.start)
    begin.start()
    try:
        yield lambda share: bar.update(task, completed=share)
    finally:
        begin.cancel()
        bar.stop()
