from collections.abc import Iterator

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use the worker processes share them, so one test process runs them all."""
    for item in items:
        if "workers" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("workers"))


@pytest.fixture(scope="session")
def workers() -> Iterator[object]:
    """Processes that are started once."""
    pytest.importorskip("torch", reason="torch is not installed")
    from pool import Workers

    made = Workers()
    yield made
    made.stop()
