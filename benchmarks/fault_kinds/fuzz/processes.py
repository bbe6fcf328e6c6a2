"""Many cases in processes of their own, so that one that dies takes nothing with it.

A process warms up on every base as it is, so that all is compiled. It forks a child that runs case
after case and says what came of each. A child that dies, or that even the alarm does not stop, is
noted as the failure of the case it was at, and the next child goes on behind it.
"""

from __future__ import annotations

import os
import pickle
import select
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import yaml

from fault_kinds.fuzz.corpus import BASES, write_corpus
from fault_kinds.fuzz.draw import Case, draw
from fault_kinds.fuzz.judge import LONGEST_S, Outcome, judge
from fault_kinds.fuzz.targets import run_target
from rowtier.errors import RowtierError

CASES_PER_CHILD = 500
SILENCE_S = 3 * LONGEST_S  # after which a child is beyond hope
_PLAIN: dict[str, tuple[dict[str, Any], ...]] = {
    "texts": ({"op": "text", "key": "batch_size", "value": "4"},),
    "options": ({"op": "options", "value": ["predict", "{plan}"]},),
}


@dataclass(frozen=True)
class Drawn:
    """Cases of a seed."""

    seed: int
    count: int

    def case(self, corpus: Path, number: int) -> Case:
        """The case of a number."""
        return draw(corpus, self.seed, number)


@dataclass(frozen=True)
class Kept:
    """Cases from a file: what was found once."""

    cases: tuple[Case, ...]

    @classmethod
    def load(cls, path: Path) -> Kept:
        """From a YAML list of bases and changes."""
        entries = yaml.safe_load(path.read_text())
        return cls(tuple(Case(entry["base"], tuple(entry["changes"])) for entry in entries))

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.cases)

    def case(self, _: Path, number: int) -> Case:
        """The case of a number."""
        return self.cases[number]


Cases = Drawn | Kept


@dataclass
class Outcomes:
    """What came of all cases."""

    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    bases: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, Case, Outcome]] = field(default_factory=list)
    worst_s: float = 0.0
    worst_mib: float = 0.0

    def add(self, number: int, case: Case, outcome: Outcome) -> None:
        """Note a case."""
        self.cases += 1
        self.outcomes[outcome.what] += 1
        self.bases[case.base] += 1
        self.worst_s = max(self.worst_s, outcome.seconds)
        self.worst_mib = max(self.worst_mib, outcome.mib)
        if not outcome.fine:
            self.failures.append((number, case, outcome))


def run_cases(
    cases: Cases, processes: int = 1, progress: Callable[[float], None] = lambda _: None
) -> Outcomes:
    """All cases, by so many processes."""
    found = Outcomes()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # files come and go
    with (
        tempfile.TemporaryDirectory(prefix="rowtier-fuzz-", dir=memory) as name,
        ThreadPoolExecutor() as pool,
    ):
        corpus = Path(name) / "corpus"
        write_corpus(corpus)

        def collect(first: int) -> None:
            numbers = range(first, cases.count, processes)
            for number, outcome in _in_process(cases, numbers, corpus, Path(name, f"work-{first}")):
                found.add(number, cases.case(corpus, number), outcome)
                progress(found.cases / cases.count)

        list(pool.map(collect, range(processes)))
    found.failures.sort(key=lambda failure: failure[0])
    return found


def _in_process(
    cases: Cases, numbers: Sequence[int], corpus: Path, work: Path
) -> Iterator[tuple[int, Outcome]]:
    context = get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, cases, numbers, corpus, work))
    process.start()
    theirs.close()
    try:
        while True:
            yield mine.recv()
    except EOFError:
        process.join()
    if process.exitcode:
        raise RuntimeError(f"the fuzzer itself ended with exit code {process.exitcode}")


def _serve(
    pipe: Connection, cases: Cases, numbers: Sequence[int], corpus: Path, work: Path
) -> None:
    """Warm up, then run children over the cases."""
    warm_up(work, corpus)
    at = 0
    while at < len(numbers):
        for number, outcome in in_child(cases, numbers[at : at + CASES_PER_CHILD], corpus, work):
            pipe.send((number, outcome))
            at += 1
    pipe.close()


def warm_up(work: Path, corpus: Path) -> None:
    """Every base as it is must be fine, and all that it needs is compiled then."""
    for base in BASES:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(corpus / base, work)
        try:
            run_target(Case(base, _PLAIN.get(base, ())), work, corpus)
        except RowtierError as error:
            raise AssertionError(f"the base {base!r} is refused: {error}") from error


def in_child(
    cases: Cases, numbers: Sequence[int], corpus: Path, work: Path
) -> Iterator[tuple[int, Outcome]]:
    """Outcomes of cases that a child runs; ends after the case that it dies of."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _run_all(cases, numbers, corpus, work, writer)
    os.close(writer)
    with os.fdopen(reader, "rb", buffering=0) as results:
        for number in numbers:
            start = time.monotonic()
            outcome = _next(results)
            seconds = time.monotonic() - start
            if outcome is None:
                what = "hang" if seconds >= SILENCE_S else "died"
                if what == "hang":
                    os.kill(child, signal.SIGKILL)
                status = os.waitpid(child, 0)[1]
                yield number, Outcome(what, seconds, 0.0, f"status {status}")
                return
            yield number, outcome
    os.waitpid(child, 0)


def _run_all(cases: Cases, numbers: Sequence[int], corpus: Path, work: Path, writer: int) -> None:
    """What the child does; it does not return."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):  # what libraries say of broken files is no news
            os.dup2(nowhere, stream)
        with os.fdopen(writer, "wb") as out:
            for number in numbers:
                pickle.dump(judge(cases.case(corpus, number), work, corpus), out)
                out.flush()
    finally:
        os._exit(0)


def _next(results: Any) -> Outcome | None:
    ready, _, _ = select.select([results], [], [], SILENCE_S)
    if not ready:
        return None
    try:
        found: Outcome = pickle.load(results)
    except EOFError:
        return None
    return found
