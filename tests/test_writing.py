"""Files are there as a whole; links, devices and other people's files stay what they are."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rowtier import UserError
from rowtier.folders import claimed
from rowtier.locks import is_free
from rowtier.writing import new_file, write_atomic


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("there/real.txt")
    write_atomic(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "there" / "real.txt").read_text() == "new"
    (tmp_path / "dangling").symlink_to("there/none.txt")
    write_atomic(tmp_path / "dangling", "made")
    assert (tmp_path / "there" / "none.txt").read_text() == "made"
    assert sorted(os.listdir(tmp_path / "there")) == ["none.txt", "real.txt"]


def test_links_in_a_circle_are_a_mistake_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UserError, match="cannot be written"):
        write_atomic(tmp_path / "a", "new")
    assert (tmp_path / "a").is_symlink()


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    write_atomic(pipe, "through")
    reader.join(timeout=60)
    assert found == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_devices_are_written_to_and_stay(tmp_path: Path) -> None:
    (tmp_path / "nothing").symlink_to("/dev/null")
    write_atomic(tmp_path / "nothing", "gone")
    assert (tmp_path / "nothing").is_symlink()
    write_atomic("/dev/null", "gone")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_is_gone_on_with_and_not_replaced(path: str, tmp_path: Path) -> None:
    code = (
        "from rowtier.writing import write_atomic\n"
        "print('before', flush=True)\n"
        f"write_atomic({path!r}, 'content\\n')\n"
        "print('after')\n"
    )
    with (tmp_path / "out.txt").open("w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True, timeout=60)
    assert (tmp_path / "out.txt").read_text() == "before\ncontent\nafter\n"


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    code = (
        "import os, signal, sys\n"
        "from rowtier.writing import new_file\n"
        "with new_file(sys.argv[1]) as file:\n"
        "    file.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(target)], check=False, timeout=60)
    (left,) = os.listdir(tmp_path)
    assert left.startswith(".a.txt.rowtier-file-")
    mine = [
        ".a.txt.rowtier-file",
        ".a.txt.rowtier-notes",
        ".a.txt.swp",
        ".b.txt.rowtier-file-12345678",
    ]
    for name in mine:
        (tmp_path / name).write_text("someone else's")
    write_atomic(target, "new")
    assert sorted(os.listdir(tmp_path)) == sorted([*mine, "a.txt"])


def test_what_a_living_writer_has_is_not_swept(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    with new_file(target) as first:
        first.write_text("first")
        write_atomic(target, "second")
        assert first.exists()
        assert target.read_text() == "second"
        handle = os.open(first, os.O_RDWR)
        assert not is_free(handle)
        os.close(handle)
    assert target.read_text() == "first"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_many_writers_of_one_file_at_once_each_write_a_whole_one(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    texts = [letter * 10_000 for letter in "abcd"]
    failed: list[BaseException] = []

    def write(text: str) -> None:
        try:
            for _ in range(50):
                write_atomic(target, text)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert not target.exists() or target.read_text() in texts
    assert not failed
    assert os.listdir(tmp_path) == ["a.txt"]


def test_permissions_of_a_file_outlive_its_replacement(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    write_atomic(target, "old")
    target.chmod(0o600)
    write_atomic(target, "new")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_long_names_leave_room_for_ours(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 255)
    write_atomic(target, "all")
    assert os.listdir(tmp_path) == [target.name]


def test_the_root_of_all_folders_is_no_output() -> None:
    with pytest.raises(UserError, match="/: is the root of all folders"):
        write_atomic("/", "text")
    with pytest.raises(UserError, match="/: is the root of all folders"), claimed("/", "plan.json"):
        pass
