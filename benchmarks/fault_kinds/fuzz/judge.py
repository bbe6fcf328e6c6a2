"""One case: change a copy of its base, do what users do, and judge what came of it."""

from __future__ import annotations

import resource
import shutil
import signal
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_kinds.fuzz.changes import apply
from fault_kinds.fuzz.draw import Case
from fault_kinds.fuzz.targets import run_target
from rowtier.errors import RowtierError

LONGEST_S = 5.0
MOST_MIB = 1024  # beyond what the process has before the case


class TooLong(BaseException):
    """Raised by the alarm; no `except Exception` takes it for something else."""


@dataclass(frozen=True)
class Outcome:
    """What came of a case: "done", "refused", or what is wrong."""

    what: str
    seconds: float
    mib: float
    detail: str = ""

    @property
    def fine(self) -> bool:
        """Whether it was right to do so."""
        return self.what in ("done", "refused")


def judge(case: Case, work: Path, corpus: Path) -> Outcome:
    """Run a case in a folder of its own."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(corpus / case.base, work)
    if case.base not in ("texts", "options"):
        for change in case.changes:
            apply(work, change)
    before, start = _peak_mib(), time.perf_counter()
    with _limits():
        what, detail = _tried(case, work, corpus)
    seconds, mib = time.perf_counter() - start, _peak_mib() - before
    if what in ("done", "refused") and mib > MOST_MIB:
        what, detail = "memory", f"{mib:.0f} MiB"
    return Outcome(what, seconds, mib, detail)


def _tried(case: Case, work: Path, corpus: Path) -> tuple[str, str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            run_target(case, work, corpus)
        except RowtierError as error:
            wanting = "not enough memory" in str(error)
            return ("memory" if wanting else "refused"), str(error)[:300]
        except TooLong:
            return "hang", _where()
        except MemoryError:
            return "memory", _where()
        except BaseException as error:
            return "crash", f"{type(error).__name__}: {str(error)[:200]} {_where()}"
    found = [str(entry.message) for entry in said if issubclass(entry.category, RuntimeWarning)]
    return ("warning", found[0][:300]) if found else ("done", "")


def _where() -> str:
    """The innermost lines of rowtier in the traceback."""
    lines = [line.strip() for line in traceback.format_exc().splitlines() if "File " in line]
    mine = [line for line in lines if "/rowtier/" in line]
    return " < ".join(line.split("/rowtier/")[-1] for line in mine[-3:][::-1])


@contextmanager
def _limits() -> Iterator[None]:
    """A limit of memory and an alarm."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    here = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (here + MOST_MIB * 2**20, hard))
    before = signal.signal(signal.SIGALRM, _alarm)
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _alarm(*_: Any) -> None:
    raise TooLong


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
