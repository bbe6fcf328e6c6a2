import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from fault_kinds.forgeries import run
from fault_kinds.forgery_kinds import KINDS


def test_no_forgery_is_certified() -> None:
    found = run(90, seed=7)
    assert found["forgeries"] == 90
    assert found["false_certificates"] == 0, found["by_kind"]
    assert found["crashes"] == 0, found["by_kind"]
    assert found["kinds"] >= 45
    seen = {name for name, each in found["by_kind"].items() if each.get("found originals")}
    assert {name for name, kind in KINDS.items() if kind.illegal} <= seen
