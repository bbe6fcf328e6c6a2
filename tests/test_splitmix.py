"""SplitMix64 against the numbers that the published generator gives."""

import numpy as np

from rowtier.splitmix import STEP, mix


def test_the_first_numbers_of_seed_1234567_are_the_published_ones() -> None:
    with np.errstate(over="ignore"):
        found = [int(mix(np.uint64(1234567) + np.uint64(i) * STEP)) for i in (1, 2, 3)]
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]
