"""The form that every benchmark has."""

import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

FORM = Path(__file__).parents[2] / "benchmarks" / "harness" / "form.py"


@pytest.fixture(scope="module")
def form():
    spec = importlib.util.spec_from_file_location("harness.form", FORM)
    module = importlib.util.module_from_spec(spec)
    sys.modules["harness.form"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["harness.form"]


def test_json_is_one_object_and_all_that_is_printed(form, capsys):
    def measure(quick):
        print("noise")
        figures = {"speed": np.float64(2.5), "gone": None, "broken": math.nan}
        return form.Measured([{"quick": quick, "n": np.int64(3)}], figures)

    form.run("demo", measure, goals={"speed": (">=", 9e9)}, arguments=["--json", "--quick"])
    out = capsys.readouterr()
    data = json.loads(out.out)
    assert out.err == "noise\n"
    assert set(data) == {"benchmark", "versions", "rows", "figures"}
    assert data["benchmark"] == "demo"
    assert data["rows"] == [{"quick": True, "n": 3}]
    assert data["figures"] == {"speed": 2.5, "gone": None, "broken": None}
    assert {"python", "numpy", "rowtier", "numba", "pyarrow", "cpus"} <= set(data["versions"])


def test_people_see_figures_with_their_goals(form, capsys):
    def measure(quick):
        assert not quick
        return form.Measured([{"n": 12345}], {"speed": 2.5, "error": 0.5, "gone": None})

    goals = {"speed": (">=", 2.0), "error": ("<=", 0.1), "gone": (">=", 1.0)}
    form.run("demo", measure, goals=goals, arguments=[])
    lines = capsys.readouterr().out.splitlines()
    assert any("12,345" in line for line in lines)
    verdicts = {name: next(line for line in lines if name in line) for name in goals}
    assert "reached" in verdicts["speed"]
    assert "short" in verdicts["error"]
    assert "short" in verdicts["gone"]


def test_a_benchmark_may_have_options_and_may_not_be_finished(form, capsys):
    def measure(quick, most):
        return form.Measured([], {"count": most, "error": 0.5}, finished=quick)

    goals = {"count": (">=", 3), "error": ("<=", 0.1)}
    for arguments, verdict in ([["--most", "3"], "so far"], [["--quick"], "reached"]):
        form.run("demo", measure, goals=goals, options={"most": (4, "of it")}, arguments=arguments)
        lines = capsys.readouterr().out.splitlines()
        assert verdict in next(line for line in lines if "count" in line)
        assert "short" in next(line for line in lines if "error" in line)
