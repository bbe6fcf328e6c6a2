"""What holds for all tests.

Property tests draw the same examples everywhere, so that a failure can be seen again;
ROWTIER_RANDOM_TESTS=1 draws new ones each time. Tests listed in slow.txt are marked `slow`.
"""

import os
from pathlib import Path

import pytest
from hypothesis import settings
from make_slow import HERE, LIST, entries_of, is_slow

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("random")
settings.load_profile("random" if os.environ.get("ROWTIER_RANDOM_TESTS") else "repeatable")
ENTRIES = entries_of(LIST.read_text())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Spare `make quick` the imports of files that it leaves out whole."""
    if config.option.markexpr != "not slow" or not collection_path.is_relative_to(HERE):
        return None
    return collection_path.relative_to(HERE).as_posix() in ENTRIES or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make quick` leaves out."""
    for item in items:
        name = item.nodeid.partition("::")[2]
        if is_slow(f"{item.path.relative_to(HERE)}::{name}", ENTRIES):
            item.add_marker(pytest.mark.slow)
