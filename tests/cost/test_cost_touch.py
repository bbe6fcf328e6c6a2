from decimal import Decimal, getcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowtier import Curve, FeatureStats, Table, TableStats
from rowtier.cost.touch import BagLengths, basis_of, touch_probability

getcontext().prec = 60
TABLE = Table(name="t", num_embeddings=10, embedding_dim=4, features=("a",))


@given(st.floats(1e-15, 1.0), st.integers(1, 10**7))
def test_touch_probability_is_exact_for_every_probability(p: float, lookups: int) -> None:
    miss = (1 - Decimal(p)).ln() * lookups if p < 1 else Decimal("-Infinity")
    expected = 1 - (miss.exp() if p < 1 else 0)
    found = float(touch_probability(np.array([p]), lookups)[0])
    assert found == pytest.approx(float(expected), rel=1e-12)


def test_tiny_probabilities_do_not_vanish() -> None:
    found = touch_probability(np.array([1e-18]), 1000.0)
    assert found[0] == pytest.approx(1e-15, rel=1e-12)


@given(st.floats(0, 1), st.floats(0, 1e5))
def test_a_row_is_touched_at_most_as_often_as_it_is_looked_up(p: float, lookups: float) -> None:
    found = float(touch_probability(np.array([p]), lookups)[0])
    assert 0 <= found <= min(1.0, lookups * p) * (1 + 1e-12)


@given(st.floats(1e-12, 1), st.floats(1e-6, 1e4), st.integers(2, 9))
def test_a_group_touches_no_more_than_its_devices_together(p: float, L: float, n: int) -> None:
    _, device, group, _ = basis_of(np.array([p]), L, [1, n])[:, 0]
    assert device <= group * (1 + 1e-12)
    assert group <= n * device * (1 + 1e-12)


def test_no_lookups_touch_nothing() -> None:
    assert (basis_of(np.array([1.0, 0.5]), 0.0, [1, 4])[:-1] == 0).all()


def stats(lengths: tuple, present: int, lookups: int, samples: int = 100) -> TableStats:
    feature = FeatureStats(name="a", present=present, lookups=lookups, lengths=lengths)
    return TableStats(TABLE, samples, (feature,), Curve(np.array([10]), np.array([float(lookups)])))


def test_partial_sums_follow_the_length_distribution() -> None:
    bags = BagLengths.of(stats(((1, 30), (4, 20)), 50, 110))
    q = np.array([0.0, 0.25, 1.0])
    expected = 0.3 * q + 0.2 * (1 - (1 - q) ** 4)
    assert bags.sums(q) == pytest.approx(expected)


def test_without_lengths_a_sample_has_the_mean_pooling_rounded_either_way() -> None:
    bags = BagLengths.of(stats((), 40, 90))  # 2.25 on average: 30 samples of 2 and 10 of 3
    expected = 0.3 * (1 - 0.9**2) + 0.1 * (1 - 0.9**3)
    assert bags.sums(np.array([0.1])) == pytest.approx([expected])
    tiny = bags.sums(np.array([1e-17]))  # no cancellation: coverage × pooling × q
    assert tiny == pytest.approx([0.9e-17])


def test_features_that_share_a_table_send_sums_of_their_own() -> None:
    one = stats(((2, 50),), 50, 100)
    two = TableStats(
        TABLE, 100, (*one.features, FeatureStats(name="b", present=10, lookups=10)), one.curve
    )
    q = np.array([0.5])
    assert BagLengths.of(two).sums(q) == pytest.approx(BagLengths.of(one).sums(q) + 0.1 * 0.5)
