"""The fits find what synthetic times were made from, in spite of noise and outliers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowtier.calibrate.disk import GRANULARITIES as OF_A_DISK
from rowtier.calibrate.fit import Grain, Line, fit_grain, fit_line, rising
from rowtier.calibrate.links import MESSAGE_BYTES
from rowtier.calibrate.memory import GRANULARITIES as OF_MEMORY
from rowtier.calibrate.tiers import ROW_BYTES

# Lines whose latency and bandwidth both show in messages of 1 KiB … 16 MiB.
lines = st.builds(
    lambda bandwidth, bend: Line(2**bend / bandwidth, bandwidth),
    st.floats(1e6, 1e12),
    st.floats(12, 20),
)
noise = st.lists(st.floats(0.95, 1.05), min_size=len(MESSAGE_BYTES), max_size=len(MESSAGE_BYTES))
grains = st.builds(Grain, st.sampled_from([*OF_MEMORY, *OF_A_DISK]), st.floats(1e6, 1e12))


def times(line: Line) -> list[float]:
    return [line.time_s(size) for size in MESSAGE_BYTES]


@given(lines)
def test_latency_and_bandwidth_are_recovered(line: Line) -> None:
    found = fit_line(MESSAGE_BYTES, times(line))
    assert found.latency_s == pytest.approx(line.latency_s, rel=1e-6)
    assert found.bandwidth_bytes_per_s == pytest.approx(line.bandwidth_bytes_per_s, rel=1e-6)


@given(lines, noise)
def test_noise_shifts_the_line_no_more_than_a_few_times_the_noise(
    line: Line, factors: list[float]
) -> None:
    noisy = [t * factor for t, factor in zip(times(line), factors, strict=True)]
    found = fit_line(MESSAGE_BYTES, noisy)
    assert found.latency_s == pytest.approx(line.latency_s, rel=0.25)
    assert found.bandwidth_bytes_per_s == pytest.approx(line.bandwidth_bytes_per_s, rel=0.25)


@given(lines, st.integers(0, len(MESSAGE_BYTES) - 3), st.floats(2, 100))
def test_one_slow_size_does_not_bend_the_line(line: Line, at: int, factor: float) -> None:
    disturbed = times(line)
    disturbed[at] *= factor
    found = fit_line(MESSAGE_BYTES, disturbed)
    assert found.latency_s == pytest.approx(line.latency_s, rel=1e-6)
    assert found.bandwidth_bytes_per_s == pytest.approx(line.bandwidth_bytes_per_s, rel=1e-6)


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=len(MESSAGE_BYTES)))
def test_any_times_give_a_usable_line(measured: list[float]) -> None:
    found = fit_line(MESSAGE_BYTES[: len(measured)], measured)
    assert found.latency_s >= 0
    assert 0 < found.bandwidth_bytes_per_s < float("inf")


@given(grains, st.sampled_from(ROW_BYTES))
def test_granularity_and_bandwidth_are_recovered(grain: Grain, typical: int) -> None:
    measured = [grain.time_s(size) for size in ROW_BYTES]
    found = fit_grain(ROW_BYTES, measured, typical, (*OF_MEMORY, *OF_A_DISK))
    assert found.granularity_bytes == grain.granularity_bytes
    assert found.bandwidth_bytes_per_s == pytest.approx(grain.bandwidth_bytes_per_s)


@given(st.lists(st.floats(1e-9, 1), min_size=len(ROW_BYTES), max_size=len(ROW_BYTES)))
def test_typical_rows_take_the_time_that_was_measured(measured: list[float]) -> None:
    found = fit_grain(ROW_BYTES, sorted(measured), 256, OF_MEMORY)
    assert found.time_s(256) == pytest.approx(sorted(measured)[ROW_BYTES.index(256)])


@given(grains, st.integers(0, len(ROW_BYTES) - 2), st.floats(2, 100))
def test_one_slow_row_size_leaves_the_others_as_they_are(
    grain: Grain, at: int, factor: float
) -> None:
    true = [grain.time_s(size) for size in ROW_BYTES]
    disturbed = [t * factor if i == at else t for i, t in enumerate(true)]
    smooth = rising(disturbed)
    assert smooth == sorted(smooth)
    assert sum(a != pytest.approx(b) for a, b in zip(smooth, true, strict=True)) <= 3


@given(st.lists(st.floats(1e-9, 1), max_size=8))
def test_times_that_rise_already_stay(measured: list[float]) -> None:
    assert rising(sorted(measured)) == sorted(measured)
