from collections.abc import Iterator

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use the worker processes share them, so one test process runs them all."""
    for item in items:
        for name in {"workers", "pretend_workers"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.xdist_group(name))


@pytest.fixture(scope="session")
def workers() -> Iterator[object]:
    """Processes that are started once."""
    yield from _started()


@pytest.fixture(scope="session")
def pretend_workers() -> Iterator[object]:
    """Others, in which torch knows the pretend accelerator, for good."""
    yield from _started()


def _started() -> Iterator[object]:
    pytest.importorskip("torch", reason="torch is not installed")
    from pool import Workers

    made = Workers()
    yield made
    made.stop()
