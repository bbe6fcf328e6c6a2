"""The logic of benchmarks/public_gpu.py: placements, bytes, ranks; and its data, where it is."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import public_gpu
from harness.public_gpu import settings as public_settings
from public_gpu import Line, Machine

from rowtier import Profile
from rowtier.cost.memory import used_bytes

# Slots of few rows, the last of them after those that were seen.
SLOTS = [[0, 1], [2, 3], [9, 40], [12, 700], [18, 5000], [24, 9000], [97, 4000], [98, 4000]]
PUBLIC: dict[str, Any] = {
    "slots": {"rows": SLOTS},
    "lookups": {"features": 3, "embedding_dim": 16},
}
ROWS = sum(rows for _, rows in SLOTS)
NEEDED = public_settings.DATA / public_settings.FILE
needs_data = pytest.mark.skipif(not NEEDED.exists(), reason=f"{NEEDED} is not there")


def machine(setting: int = 0, cached: float = 0.1, batch_size: int = 2048) -> Machine:
    chosen = replace(public_settings.SETTINGS[setting], cached=cached)
    return Machine(chosen, profile(batch_size), cuts=20)


def profile(batch_size: int = 2048) -> Profile:
    return public_settings.criteo_profile(PUBLIC, batch_size, "every slot")


@given(st.integers(0, ROWS), st.integers(0, ROWS))
def test_bands_cover_every_row_once(copied: int, spread: int) -> None:
    bands = public_gpu.placed(copied, min(spread, ROWS - copied), ROWS)
    assert (bands[0].start, bands[-1].stop) == (0, ROWS)
    assert all(before.stop == after.start for before, after in pairwise(bands))


@given(st.integers(0, 1), st.floats(0.01, 0.9), st.integers(1, 5000))
@settings(max_examples=20, deadline=None)
def test_the_mix_is_no_slower_than_the_placements_it_mixes(
    setting: int, cached: float, batch_size: int
) -> None:
    costs = machine(setting, cached, batch_size).costs()
    assert costs["mix"].step_s <= min(costs["replicate"].step_s, costs["partition"].step_s)


@pytest.mark.parametrize("copied", [0, 700, 2000])
def test_no_gpu_caches_more_than_its_share(copied: int) -> None:
    found = machine()
    cost = found.with_copies(copied)
    used = used_bytes(cost.asked.bands, found.profile, cost.cluster)[:, 0]
    assert found.cached_rows - 1 <= used.max() / 64 <= found.cached_rows + 1
    assert not cost.written_bytes.any()
    assert not cost.links.backward.total.any()


def test_bytes_are_those_of_drawn_batches() -> None:
    """Draw lookups by heat, and count each GPU's distinct rows by where they lie."""
    found, random = machine(batch_size=500), np.random.default_rng(7)
    copied, spread = 1000, 6000
    cost, curve = found.cost(copied, spread), found.profile.stats[0].curve
    heat = np.repeat(curve.probabilities, curve.widths)
    host, remote, steps = 0, 0, 60
    for _ in range(steps):
        rows = np.unique(random.choice(ROWS, size=3 * 500, p=heat))
        host += int((rows >= copied + spread).sum())
        cached = rows[(rows >= copied) & (rows < copied + spread)]
        remote += int(((cached - copied) % 8 != 0).sum())  # GPU 0 holds every eighth
    row_mb = 64 / public_gpu.MB
    assert public_gpu.host_mb(cost) == pytest.approx(host / steps * row_mb, rel=0.03)
    assert public_gpu.remote_mb(cost) == pytest.approx(remote / steps * row_mb, rel=0.03)


def test_rows_that_nobody_saw_have_heat_in_one_reading_only() -> None:
    every = public_settings.criteo_curve(SLOTS, "every slot")
    seen = public_settings.criteo_curve(SLOTS, "seen slots")
    assert (every.positions, seen.positions) == (ROWS, ROWS - 8000)
    each = every.lookups / every.widths
    assert each[1] / each[2] == pytest.approx(1.2**7)


def lines(*predicted: float) -> list[Line]:
    times = zip(public_gpu.PLACEMENTS, (1.0, 2.0, 3.0), predicted, strict=True)
    return [Line("m", "seen slots", f"{name}, ms", took, told) for name, took, told in times]


@pytest.mark.parametrize(
    ("predicted", "agrees"),
    [((5.0, 6.0, 7.0), 1.0), ((5.0, 7.0, 6.0), 0.0), ((5.0, 5.0, 6.0), 0.0)],
)
def test_equal_times_are_not_ranked(predicted: tuple[float, ...], agrees: float) -> None:
    assert public_gpu.order_agrees(lines(*predicted), "seen slots") == agrees


def test_a_large_error_has_its_reason_beside_it() -> None:
    near, far, unknown = (
        Line("m", heat, "mix, MB from the host", 1.0, told).row()
        for heat, told in (("seen slots", 1.2), ("seen slots", 0.0), ("other", 2.0))
    )
    assert (near["why"], far["why"], unknown["why"]) == ("", public_gpu.UNCOUNTED, "not known")
    assert far["error"] == -1.0
    assert Line("m", "seen slots", "HPS, ms", 1.0).row()["error"] is None


def test_without_data_the_exit_code_is_two(tmp_path: Path) -> None:
    command = [sys.executable, str(public_gpu.__file__), "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"ROWTIER_DATA": str(tmp_path)}, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{tmp_path / public_settings.FILE}: not there" in done.stderr
    assert "ROWTIER_DATA" in done.stderr


@needs_data
def test_the_published_data_is_read_as_it_is() -> None:
    public = public_settings.read_public()
    curve = public_settings.criteo_curve(public["slots"]["rows"], "every slot")
    assert curve.positions == 882_774_592
    unseen = [rows for slot, rows in public["slots"]["rows"] if slot > public_settings.LAST_SEEN]
    # One class, cut into tenths, and one of these once more: numbers of pieces, not of heat.
    tenths = [sum(unseen[:10]), *unseen[10:]]
    assert len(tenths) == 10
    assert max(tenths) / min(tenths) < 1.001


@needs_data
def test_figures_follow_from_the_rows_of_a_quick_run() -> None:
    measured = public_gpu.measure(quick=True)
    errors = {(r["setting"], r["heat"], r["what"]): r["error"] for r in measured.rows}
    host = [errors[s.name, "seen slots", "mix, MB from the host"] for s in public_settings.SETTINGS]
    assert measured.figures["host_bytes_error"] == max(host, key=lambda e: abs(float(str(e))))
    trained = [e for (_, heat, what), e in errors.items()
               if heat == public_gpu.H100_HEAT and what.endswith("ms")]  # fmt: skip
    assert len(trained) == 4
    assert measured.figures["h100_error"] in trained
    assert all(row["why"] for row in measured.rows if abs(float(str(row["error"] or 0))) > 0.25)
    json.dumps(measured.figures)
