"""Folders are replaced as a whole by one writer at a time, and only what is ours is deleted."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rowtier import (
    InvalidError,
    Profile,
    Table,
    Tables,
    UserError,
    folders,
    make_profile,
)
from rowtier.folders import claimed, read_steadily, replace_folder
from rowtier.manifest import read_manifest, sealed
from rowtier.reading import StrPath
from rowtier.renaming import move_to_free

HOLD = """
import sys
from rowtier.folders import claimed
with claimed(sys.argv[1], "marker"):
    print("held", flush=True)
    sys.stdin.read()
"""


def write(target: Path, text: str) -> None:
    with replace_folder(target, "marker") as folder:
        (folder / "inner").mkdir()
        (folder / "marker").write_text(text)
        (folder / "inner" / "data.bin").write_bytes(text.encode())


def texts(target: Path) -> tuple[str, str]:
    return (target / "marker").read_text(), (target / "inner" / "data.bin").read_text()


@contextmanager
def held(target: Path) -> Iterator[int]:
    """Another process that writes a target; its pid."""
    command = [sys.executable, "-c", HOLD, str(target), "\x1b[31m"]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        try:
            yield other.pid
        finally:
            other.kill()


def test_the_manifest_names_all_files_with_size_and_hash(tmp_path: Path) -> None:
    write(tmp_path / "r", "one")
    files = read_manifest(tmp_path / "r", "write").files
    assert list(files) == ["inner/data.bin", "marker"]
    assert files["inner/data.bin"] == sealed(tmp_path / "r" / "marker")
    assert files["marker"].bytes == 3


def test_a_second_writer_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    write(tmp_path / "r", "one")
    with held(tmp_path / "r") as pid:
        with pytest.raises(UserError, match=rf"process {pid} \(-c .*\?\[31m\) is writing it"):
            write(tmp_path / "r", "two")
        (tmp_path / "link").symlink_to("r")
        with pytest.raises(UserError, match=f"process {pid} "):
            write(tmp_path / "link", "two")
        write(tmp_path / "other", "two")
    assert texts(tmp_path / "r") == ("one", "one")


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    with held(tmp_path / "r"):
        pass
    assert os.listdir(tmp_path) == [".r.rowtier-lock"]
    write(tmp_path / "r", "two")
    assert os.listdir(tmp_path) == ["r"]


def test_who_has_an_output_writes_it_and_other_threads_do_not(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with claimed(tmp_path / "r", "marker"):
        write(tmp_path / "r", "one")
        write(tmp_path / "r", "two")
        with ThreadPoolExecutor(1) as pool, pytest.raises(UserError, match="is writing it"):
            pool.submit(write, tmp_path / "r", "three").result()
    assert texts(tmp_path / "r") == ("two", "two")
    assert os.listdir(tmp_path) == ["r"]


def test_notes_beside_a_result_are_not_deleted(tmp_path: Path) -> None:
    write(tmp_path / "r", "one")
    (tmp_path / "r" / "inner" / "notes.txt").write_text("precious")
    with pytest.raises(UserError, match=r"inner/notes\.txt, which rowtier did not write"):
        write(tmp_path / "r", "two")
    assert texts(tmp_path / "r") == ("one", "one")
    (tmp_path / "r" / "inner" / "notes.txt").rename(tmp_path / "notes.txt")
    write(tmp_path / "r", "two")
    assert texts(tmp_path / "r") == ("two", "two")


@pytest.mark.parametrize("kind", ["link", "folder", "empty folder"])
def test_anything_else_that_is_not_ours_is_not_deleted_either(kind: str, tmp_path: Path) -> None:
    write(tmp_path / "r", "one")
    if kind == "link":  # where a file of ours was
        (tmp_path / "r" / "marker").rename(tmp_path / "elsewhere")
        (tmp_path / "r" / "marker").symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / "r" / "more").mkdir()
        if kind == "folder":
            (tmp_path / "r" / "more" / "notes").write_text("precious")
    with pytest.raises(UserError, match=r"marker|more"):
        write(tmp_path / "r", "two")


def test_what_appears_while_a_result_is_made_survives(tmp_path: Path) -> None:
    target = tmp_path / "r"
    write(target, "one")
    with replace_folder(target, "marker") as folder:
        (folder / "marker").write_text("two")
        (folder / "late").write_text("ours")
        (target / "inner" / "notes.txt").write_text("precious")
        (target / "late").write_text("precious too")
    assert (target / "marker").read_text() == "two"
    assert (target / "late").read_text() == "ours"
    assert (target / "inner" / "notes.txt").read_text() == "precious"
    assert (target / "late.kept-1").read_text() == "precious too"
    assert not (target / "inner" / "data.bin").exists()
    assert os.listdir(tmp_path) == ["r"]


def test_what_appears_in_an_empty_folder_survives_too(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    with replace_folder(tmp_path / "r", "marker") as folder:
        (folder / "marker").write_text("one")
        (tmp_path / "r" / "notes.txt").write_text("precious")
    assert sorted(os.listdir(tmp_path / "r")) == ["manifest.json", "marker", "notes.txt"]


def test_a_folder_of_an_older_rowtier_or_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "r", "one")
    with (
        pytest.raises(UserError, match=r"no plan\.json, so it is a result of another kind"),
        replace_folder(tmp_path / "r", "plan.json"),
    ):
        pass
    (tmp_path / "r" / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"no manifest\.json.*give a new folder"):
        write(tmp_path / "r", "two")
    assert texts(tmp_path / "r") == ("one", "one")


def test_a_manifest_cannot_make_others_files_ours(tmp_path: Path) -> None:
    write(tmp_path / "r", "one")
    (tmp_path / "thesis.tex").write_text("precious")
    path = tmp_path / "r" / "manifest.json"
    path.write_text(path.read_text().replace("inner/data.bin", "../thesis.tex"))
    with pytest.raises(UserError, match=r"inner/data\.bin"):
        write(tmp_path / "r", "two")
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_a_link_to_a_folder_stays_and_the_folder_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "there" / "real", "one")
    (tmp_path / "link").symlink_to("there/real")
    write(tmp_path / "link", "two")
    assert (tmp_path / "link").is_symlink()
    assert texts(tmp_path / "there" / "real") == ("two", "two")
    assert os.listdir(tmp_path / "there") == ["real"]


@pytest.mark.parametrize("output", [".", "..", "../here"])
def test_the_current_folder_is_not_pulled_from_under_anyone(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError, match="is the current folder or holds it"):
        write(Path(output), "one")
    write(Path("inside"), "one")
    assert os.listdir(tmp_path / "here") == ["inside"]


@pytest.mark.parametrize("exchanges", [True, False])
def test_replacing_works_with_and_without_an_exchange(
    exchanges: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchanges:
        monkeypatch.setattr(folders, "exchange", lambda *_: False)
    for text in ("one", "two", "three"):
        write(tmp_path / "r", text)
        assert texts(tmp_path / "r") == (text, text)
        assert os.listdir(tmp_path) == ["r"]


def test_a_kill_between_two_renames_is_undone_by_the_next_run(tmp_path: Path) -> None:
    write(tmp_path / "r", "one")
    (tmp_path / "r").rename(tmp_path / ".r.rowtier-old-0a1b2c3d")
    with claimed(tmp_path / "r", "marker"):
        assert texts(tmp_path / "r") == ("one", "one")
    assert os.listdir(tmp_path) == ["r"]


def test_leftovers_of_killed_runs_are_removed_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "r", "one")
    write(tmp_path / ".r.rowtier-old-0a1b2c3d", "before")
    (tmp_path / ".r.rowtier-old-0a1b2c3d" / "notes.txt").write_text("precious")
    (tmp_path / ".r.rowtier-new-0a1b2c3d" / "half").mkdir(parents=True)
    (tmp_path / ".r.rowtier-parts" / "job").mkdir(parents=True)
    kept = [".r.swp", ".r.rowtier-newer", ".s.rowtier-new-0a1b2c3d"]
    for name in kept:
        (tmp_path / name).write_text("someone else's")
    with pytest.raises(UserError, match=r"notes\.txt"):  # it is where it was put, for its owner
        write(tmp_path / "r", "two")
    (tmp_path / "r" / "notes.txt").unlink()
    write(tmp_path / "r", "two")
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "r"])


@pytest.mark.parametrize("removed", [["inner/data.bin"], ["inner/data.bin", "inner", "marker"]])
def test_an_old_result_that_was_removed_by_half_goes(removed: list[str], tmp_path: Path) -> None:
    write(tmp_path / "r", "one")
    old = tmp_path / ".r.rowtier-old-0a1b2c3d"
    write(old, "before")
    for path in (old / name for name in removed):
        path.rmdir() if path.is_dir() else path.unlink()
    write(tmp_path / "r", "two")
    assert os.listdir(tmp_path) == ["r"]
    assert sorted(os.listdir(tmp_path / "r")) == ["inner", "manifest.json", "marker"]


def test_a_folder_that_is_replaced_during_every_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()

    def read(folder: StrPath) -> str:
        (tmp_path / "next").mkdir()
        Path(folder).rename(tmp_path / f"was-{len(list(tmp_path.iterdir()))}")
        (tmp_path / "next").rename(folder)
        return "half of it"

    with pytest.raises(UserError, match=r"p was replaced 100 times .* wait until its writer"):
        read_steadily(tmp_path / "p", read)


def test_a_reader_gets_one_result_or_the_other_while_both_are_written(tmp_path: Path) -> None:
    table = Table(name="t", num_embeddings=5, embedding_dim=2, features=("f",))
    tables = Tables(batch_size=8, tables=(table,))
    both = [make_profile([{"f": ids}], tables) for ids in ([1, 1, 2], [3, 3, 3, 4])]
    prints = {profile.fingerprint for profile in both}
    both[0].save(tmp_path / "p")
    done = threading.Event()

    def replace() -> None:
        while not done.is_set():
            for profile in both:
                profile.save(tmp_path / "p")

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        for _ in range(20):
            assert Profile.load(tmp_path / "p").fingerprint in prints
    finally:
        done.set()
        writer.join()


def test_a_refused_run_leaves_no_folders_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), claimed(tmp_path / "a" / "b" / "r", "marker"):
        raise RuntimeError
    assert os.listdir(tmp_path) == []


def test_nothing_is_moved_onto_anything(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    with pytest.raises(FileExistsError):
        move_to_free(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "b"


def test_a_manifest_of_nonsense_is_refused_in_words(tmp_path: Path) -> None:
    write(tmp_path / "r", "one")
    (tmp_path / "r" / "manifest.json").write_text('{"files": {"marker": {"bytes": -1}}}')
    with pytest.raises(InvalidError, match=r"files\.marker\.bytes"):
        write(tmp_path / "r", "two")
    assert texts(tmp_path / "r") == ("one", "one")
