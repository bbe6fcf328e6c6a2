from __future__ import annotations

import errno
import gzip
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from reader_helpers import numbers_of, refused, samples_of

from rowtier.errors import UserError
from rowtier.profile.readers import open_source

torch = pytest.importorskip("torch")

BAGS = [[[1, 2], [], [3]], [[], [4, 5, 6], [7]]]  # table, sample


def triple(last: bool = True) -> tuple[Any, Any, Any]:
    lengths = torch.tensor([[len(bag) for bag in table] for table in BAGS])
    indices = torch.tensor([v for table in BAGS for bag in table for v in bag])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])
    return indices, offsets if last else offsets[:-1], lengths


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("legacy", [True, False])
def test_tables_are_features(tmp_path: Path, last: bool, packed: bool, legacy: bool) -> None:
    path = tmp_path / "a.pt"
    torch.save(triple(last), path, _use_new_zipfile_serialization=not legacy)
    if packed:
        raw = path.read_bytes()
        path.unlink()
        path = tmp_path / "a.pt.gz"
        path.write_bytes(gzip.compress(raw))
    for found in (path, tmp_path):
        source = open_source(found, ["t1", "t0"])
        assert samples_of(source, ["t1", "t0"]) == {"t0": BAGS[0], "t1": BAGS[1]}
    assert numbers_of(source, ["t0"]) == [0, 1, 2]
    bare = path.rename(tmp_path / "data")
    assert samples_of(open_source(bare, ["t1"]), ["t1"])["t1"] == BAGS[1]


def test_the_samples_of_several_files_are_numbered(tmp_path: Path) -> None:
    for name in "abc":
        torch.save(triple(), tmp_path / f"{name}.pt")
    source = open_source(tmp_path, ["t0"])
    assert samples_of(source, ["t0"])["t0"] == BAGS[0] * 3
    assert numbers_of(source, ["t0"]) == list(range(9))
    assert [(p.first_sample, p.samples) for p in source.parts] == [(0, 3), (3, 3), (6, 3)]
    assert source.samples == 9


def test_a_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    torch.save(triple(), tmp_path / "a.pt")
    refused(tmp_path / "a.pt", ["t0", "t2"], "a.pt", "t2", "t0 to t1")
    refused(tmp_path / "a.pt", ["item"], "a.pt", "item", "t0, t1, …")


@pytest.mark.parametrize(
    "content",
    [
        {"weights": 1},
        (1, 2, 3),
        tuple(reversed(triple())),
        tuple(entry.float() for entry in triple()),
        (*triple()[:2], triple()[2][:1]),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", ["t0"], "a.pt", "triple", "dlrm_datasets")


def test_content_that_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    indices, offsets, lengths = triple()
    torch.save((indices, offsets, lengths + 1), tmp_path / "a.pt")
    refused(tmp_path / "a.pt", ["t0"], "a.pt", "t0", "add up to 6", "3 values")
    torch.save((indices[:2], offsets, lengths), tmp_path / "a.pt")
    refused(tmp_path / "a.pt", ["t0"], "a.pt", "t0", "offsets 0 to 3 of 2")


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    torch.save(print, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", ["t0"], "a.pt", "damaged")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(triple(), path)
    whole = path.read_bytes()
    for broken in (b"", whole[:200], whole[:-50]):
        path.write_bytes(broken)
        refused(path, ["t0"], "a.pt", "damaged")
    packed = tmp_path / "b.pt.gz"
    packed.write_bytes(gzip.compress(whole)[:-20])
    refused(packed, ["t0"], "b.pt.gz", "damaged")


def test_without_torch_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pt"
    torch.save(triple(), path)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else found(name)
    )
    with pytest.raises(UserError, match=r"a\.pt: .*pip install 'rowtier\[torch\]'"):
        open_source(path, ["t0"])


def test_no_room_to_unpack_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pt.gz"
    torch.save(triple(), tmp_path / "a.pt")
    path.write_bytes(gzip.compress((tmp_path / "a.pt").read_bytes()))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    refused(path, ["t0"], "a.pt.gz", "TMPDIR")


def test_the_package_does_not_import_torch_or_readers() -> None:
    code = (
        "import sys, rowtier.profile; assert not [m for m in sys.modules if 'readers' in m]; "
        "import rowtier.profile.readers; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
