"""Shared memory that is too small: another place or an error, never a crash (SIGBUS)."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plans import plan_for

from rowtier import Table, UserError
from rowtier.plan import memory_files

TABLE = Table(name="t", num_embeddings=400_000, embedding_dim=4, features=("f",))


@pytest.fixture(scope="module")
def plan() -> Any:
    return plan_for(TABLE)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A file system of 1 MiB in the place of /dev/shm; the tables take three."""
    folder = tmp_path / "shm"
    folder.mkdir()
    made = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(made, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("mounting needs root")
    monkeypatch.setattr(memory_files, "SHARED", str(folder))
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_tables_that_do_not_fit_into_shared_memory_are_kept_in_a_file(
    plan: Any, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.warns(UserWarning, match=r"need 3\.1 MiB .*No space left.*may be slower"):
        remapper = plan.remapper()
    assert Path(remapper.path).parent == tmp_path
    assert list(tiny.iterdir()) == []
    ids = np.arange(0, 400_000, 1000)
    addresses = remapper({"f": ids[:, None]})["f"].values
    assert np.array_equal(remapper.tables["t"].rows()[addresses], ids)
    remapper.forget()
    assert not list(tmp_path.glob("rowtier-remap-*"))


def test_no_room_anywhere_is_an_error_that_says_how_much_is_needed(
    plan: Any, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tiny))
    with pytest.raises(UserError, match=r"need 3\.1 MiB, and there is no room.*TMPDIR"):
        plan.remapper()
    assert list(tiny.iterdir()) == []


def test_what_killed_processes_left_is_removed_wherever_it_is(
    plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shm"
    shared.mkdir()
    monkeypatch.setattr(memory_files, "SHARED", str(shared))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = 2**22 + 1  # above any number that Linux gives
    left = [folder / f"rowtier-remap-{gone}-x" for folder in (shared, tmp_path)]
    mine = tmp_path / f"rowtier-remap-{os.getpid()}-x"
    for path in (*left, mine):
        path.touch()
    plan.remapper()
    assert [path.exists() for path in (*left, mine)] == [False, False, True]
