import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowtier import units
from rowtier.errors import UnitError


@pytest.mark.parametrize(
    ("text", "value"),
    [("24GiB", 24 * 2**30), ("24GB", 24 * 10**9), ("32B", 32), ("1.5 TB", 15 * 10**11)],
)
def test_gb_is_decimal_and_gib_is_binary(text: str, value: int) -> None:
    assert units.parse_bytes(text) == value


def test_bandwidth_is_read_in_bytes_and_in_bits() -> None:
    assert units.parse_bandwidth("25GB/s") == 25e9
    assert units.parse_bandwidth("200Gbit/s") == 25e9


def test_durations_counts_and_shares_are_read() -> None:
    assert units.parse_seconds("5us") == units.parse_seconds("5µs") == 5e-6
    assert units.parse_count("80M") == units.parse_count("80_000_000") == 80 * 10**6
    assert units.parse_share("10%") == units.parse_share("0.1") == 0.1


@pytest.mark.parametrize("text", ["24", "24 parsecs", "", "GiB", "24Gib", "1.5B", "nan", "2e400GB"])
def test_a_size_that_cannot_be_read_says_what_to_write(text: str) -> None:
    with pytest.raises(UnitError, match=r"24GiB|whole number"):
        units.parse_bytes(text)


@pytest.mark.parametrize("text", ["101%", "-1%", "half"])
def test_a_share_outside_the_whole_is_refused(text: str) -> None:
    with pytest.raises(UnitError, match="10%"):
        units.parse_share(text)


@given(st.integers(1, 2**60))
def test_spelling_a_size_loses_nothing(value: int) -> None:
    assert units.parse_bytes(units.spell_bytes(value)) == value


@given(st.floats(1, 1e15))
def test_spelling_a_bandwidth_loses_nothing(value: float) -> None:
    assert units.parse_bandwidth(units.spell_bandwidth(value)) == value


@given(st.floats(0, 1e5, allow_subnormal=False))
def test_spelling_a_duration_loses_nothing(value: float) -> None:
    assert units.parse_seconds(units.spell_seconds(value)) == value


def test_sizes_are_spelled_as_people_write_them() -> None:
    assert units.spell_bytes(24 * 2**30) == "24GiB"
    assert units.spell_bytes(80 * 10**9) == "80GB"
    assert units.spell_seconds(5e-6) == "5us"
    assert units.show_bytes(1.5 * 2**40) == "1.5 TiB"
    assert units.show_count(1_331_656_544) == "1.33 G"
