from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def workers() -> Iterator[object]:
    """Processes that are started once."""
    pytest.importorskip("torch", reason="torch is not installed")
    from pool import Workers

    made = Workers()
    yield made
    made.stop()
