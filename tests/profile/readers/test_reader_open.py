from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reader_helpers import refused

from rowtier.errors import UserError
from rowtier.profile.readers import open_source


def test_paths_that_are_not_there(tmp_path: Path) -> None:
    refused(
        tmp_path / "nothing", ["f"], str(tmp_path / "nothing"), "no such file", "check the path"
    )
    refused("s3://bucket/data", ["f"], "s3://bucket/data", "copy or mount")
    refused(tmp_path / "*.parquet", ["f"], "*.parquet", "no file matches")


def test_empty_folders(tmp_path: Path) -> None:
    refused(tmp_path, ["f"], str(tmp_path), "is empty")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "inner" / ".git").mkdir(parents=True)
    refused(tmp_path, ["f"], str(tmp_path), "is empty")
    (tmp_path / "notes.md").write_text("hello")
    refused(tmp_path, ["f"], str(tmp_path), "none of the 1 files", "notes.md", "Parquet")


def test_no_features(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no feature"):
        open_source(tmp_path, [])


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (b"a,b,c\n1,2,3\n", "text that begins with 'a,b,c'"),
        (b"\x00\x01\x02\x03", "binary data that begins with 00 01 02 03"),
        ("größe\tx\ty".encode(), "binary data"),
        (gzip.compress(b"a,b\n", mtime=0), "gzip of text that begins with 'a,b'"),
        (gzip.compress(b"PAR1", mtime=0), "gzip of"),
        (b"\x1f\x8b\x08" + bytes(range(200, 256)), "damaged gzip"),
    ],
)
def test_other_formats_are_told_what_they_are(tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "data"
    path.write_bytes(content)
    refused(path, ["f"], str(path), found, "accepted are Parquet, Criteo's TSV")
    refused(f"{tmp_path}/d*", ["f"], str(path), found)


def test_a_zip_file_is_not_data(tmp_path: Path) -> None:
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("notes.txt", "hello")
    refused(path, ["f"], str(path), "a zip file")


def test_folders_hold_one_format(tmp_path: Path) -> None:
    pq.write_table(pa.table({"f": [1]}), tmp_path / "a.parquet")
    np.savez(tmp_path / "b.npz", f=np.array([1]))
    refused(tmp_path, ["f"], "a.parquet", "b.npz", "several formats", "*.parquet")


def test_text_beside_parquet_is_no_data(tmp_path: Path) -> None:
    pq.write_table(pa.table({"f": [1]}), tmp_path / "a.parquet")
    (tmp_path / "schema.txt").write_text("f\tint64\tids\n")
    (tmp_path / "tables.yaml").write_text("batch_size: 1\n")
    assert open_source(tmp_path, ["f"]).samples == 1
