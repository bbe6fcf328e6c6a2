"""Who has hot rows where nobody knows the order of the row ids."""

import numpy as np
import pytest

from rowtier import Band, Curve
from rowtier.cost.deal import deal

HEAT = np.array([512.0, 256, 128, 64, 32, 16, 8, 4, 2, 1])  # sums tell which rows they are of
CURVE = Curve(np.arange(1, 11), HEAT)


def band(order: str, start: int = 0, stop: int = 10) -> Band:
    return Band(start=start, stop=stop, scope="node", tier="ram", order=order)


def dealt(name: str, members: int, gateways: int = 1, **where: int) -> np.ndarray:
    found = deal(band("blocks", **where), CURVE, HEAT[None], members, gateways, None, name)
    return found.by_member(members)[0]


def test_blocks_in_an_unknown_order_are_as_even_as_rows_dealt_out() -> None:
    spread = deal(band("spread"), CURVE, HEAT[None], 5).by_member(5)[0]
    assert sorted(dealt("t", 5)) == sorted(spread)
    assert dealt("t", 5).max() == 512 + 16


def test_a_block_gets_no_more_rows_than_it_has_and_an_empty_one_none() -> None:
    rows = [bin(int(load)).count("1") for load in dealt("t", 4)]
    assert rows == [3, 3, 3, 1]
    assert dealt("t", 6).tolist()[5] == 0.0  # of 10 rows in blocks of 2
    assert dealt("t", 4, start=4, stop=6).tolist()[2:] == [0.0, 0.0]


def test_hot_rows_of_different_tables_are_not_all_on_one_device() -> None:
    hottest = {int(dealt(f"table {number}", 5).argmax()) for number in range(40)}
    assert hottest == set(range(5))
    assert dealt("t", 5).tolist() == dealt("t", 5).tolist()


@pytest.mark.parametrize("gateways", [2, 3])
def test_gateways_share_what_a_member_has(gateways: int) -> None:
    assert dealt("t", 4, gateways) == pytest.approx(dealt("t", 4))
