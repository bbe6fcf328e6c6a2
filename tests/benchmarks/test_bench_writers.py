"""Writers that are killed lose nothing, and two at once mix nothing: a seeded part of the whole."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from fault_kinds import kills, pairs


def test_killed_writers_leave_the_old_result_or_the_new_one() -> None:
    found = kills.run(30, seed=3)
    assert found["kills"] == sum(found["kills_by_writer"].values()) == 30
    assert len(found["kills_by_writer"]) >= 5
    assert found["kills_lost"] == found["leftovers_after_next_run"] == found["orphans"] == 0


def test_two_profiles_at_once_end_as_one_of_them() -> None:
    found = pairs.run(8, seed=3)
    assert found["pairs"] == 8
    assert found["refused"] >= 1  # they did meet
    assert found["mixed_profiles"] == found["wrong_exit_codes"] == found["leftovers"] == 0
