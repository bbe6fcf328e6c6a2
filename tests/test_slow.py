"""The list of tests that `make quick` leaves out."""

import pytest
from make_slow import HERE, LIST, entries_of, is_slow, with_times


def test_the_list_names_tests_that_are_there() -> None:
    for entry in entries_of(LIST.read_text()):
        file, _, name = entry.partition("::")
        assert (HERE / file).exists(), entry
        assert not name or f"def {name.rpartition('::')[2]}(" in (HERE / file).read_text(), entry


@pytest.mark.parametrize(
    ("test", "slow"),
    [
        ("far/test_a.py::test_x", True),
        ("far_away/test_a.py::test_x", False),
        ("near/test_b.py::test_x[1-2]", True),
        ("near/test_c.py::test_long[a]", True),
        ("near/test_c.py::test_longer", False),
    ],
)
def test_folders_files_and_tests_are_slow_by_name(test: str, slow: bool) -> None:
    entries = entries_of(
        "# why\nfar/  # processes\nnear/test_b.py\nnear/test_c.py::test_long # 3 s\n"
    )
    assert is_slow(test, entries) == slow


def test_measuring_a_file_replaces_its_entries_and_no_others() -> None:
    chosen = "# why\nfar/\na.py  # not measured yet\nc.py  # not measured yet\n"
    before = f"{chosen}a.py::test_gone  # 2 s\nb.py::test_kept  # 5 s\n"
    times = {"a.py::test_short": 0.9, "a.py::test_cases[1]": 0.7, "a.py::test_cases[2]": 1.3}
    assert with_times(before, times) == (
        "# why\nfar/\nc.py  # not measured yet\na.py::test_cases  # 2 s\nb.py::test_kept  # 5 s\n"
    )
