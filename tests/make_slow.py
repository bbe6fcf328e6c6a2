"""Measure which tests are slow, and write them into tests/slow.txt.

    python tests/make_slow.py                      # everything that is not slow by its folder
    python tests/make_slow.py tests/cost           # a part; the rest of the list stays

A test is slow if a case of it takes more than a second of processor time, its fixtures and the
processes it starts included; other work on the machine makes it wait, but adds little to that.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIST = HERE / "slow.txt"
SECONDS = 1.0
NEW = "# not measured yet"  # after a file: left out until it is


def is_slow(test: str, entries: tuple[str, ...]) -> bool:
    """Whether a test, as path::name below tests/, is on the list or in a folder or file on it."""
    name = test.partition("[")[0]
    return any(name == entry or name.startswith((f"{entry}/", f"{entry}::")) for entry in entries)


def entries_of(text: str) -> tuple[str, ...]:
    """Folders, files and tests of a list; what follows a # is for readers."""
    lines = (line.partition("#")[0].strip().rstrip("/") for line in text.splitlines())
    return tuple(filter(None, lines))


def with_times(text: str, seconds: Mapping[str, float]) -> str:
    """The list after measuring some tests: entries of their files are made anew."""
    by_test: dict[str, list[float]] = defaultdict(list)
    for test, value in seconds.items():
        by_test[test.partition("[")[0]].append(value)
    files = {test.partition("::")[0] for test in by_test}
    lines = text.splitlines()
    chosen = [n for n in lines if "::" not in n and not (NEW in n and n.split()[0] in files)]
    kept = [n for n in lines if "::" in n and n.partition("::")[0] not in files]
    slow = [f"{test}  # {sum(s):.0f} s" for test, s in by_test.items() if max(s) > SECONDS]
    return "\n".join([*chosen, *sorted(kept + slow)]) + "\n"


class ProcessorTimes:
    """Takes down how long each test computes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Around a test with its fixtures."""
        before = sum(os.times()[:4])
        outcome = yield
        name = f"{item.path.relative_to(HERE)}::{item.nodeid.partition('::')[2]}"
        self.seconds[name] = sum(os.times()[:4]) - before
        return outcome  # type: ignore[return-value]


def main() -> None:
    """Run tests, and write the list even if one fails."""
    text, times = LIST.read_text(), ProcessorTimes()
    measured = "\n".join(line for line in text.splitlines() if NEW not in line)
    chosen = [entry for entry in entries_of(measured) if "::" not in entry]
    ignored = [f"--ignore={HERE / entry}" for entry in chosen]
    status = pytest.main([*(sys.argv[1:] or [str(HERE)]), "-n", "0", *ignored], [times])
    LIST.write_text(with_times(text, times.seconds))
    sys.exit(status)


if __name__ == "__main__":
    main()
