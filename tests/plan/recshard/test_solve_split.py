"""Cut items: even devices, full memories, nothing lost."""

from itertools import pairwise

import numpy as np
import pytest

from rowtier.plan.recshard.bound import pool_bound
from rowtier.plan.recshard.heat import Heat, Item, heat_of
from rowtier.plan.recshard.layout import PieceLayout
from rowtier.plan.recshard.machine import Machine
from rowtier.plan.recshard.pieces import read_between, rows_between
from rowtier.plan.recshard.split import solve_split


def _skewed(random: np.random.Generator, items: int) -> Heat:
    made = []
    for _ in range(items):
        rows = int(10 ** random.uniform(3, 6))
        stops = np.unique(np.geomspace(1, rows, 80).astype(np.int64))
        heat = (1.0 + stops) ** -random.uniform(0, 1.2)
        scale = 10 ** random.uniform(0, 3) / (heat * np.diff(stops, prepend=0)).sum()
        made.append(Item(stops, heat * scale, rows + int(rows * random.random()), 68))
    return heat_of(made)


def _count(heat: Heat, machine: Machine, layout: PieceLayout) -> tuple[np.ndarray, np.ndarray]:
    """Seconds and bytes of every device, and that every rank is held once."""
    seconds = np.zeros(machine.devices)
    used = np.zeros((machine.devices, len(machine.sizes)), dtype=np.int64)
    for piece, item in enumerate(layout.pieces.item.tolist()):
        ways, residue = int(layout.pieces.ways[item]), int(layout.pieces.residue[piece])
        runs = [(s.start, s.stop, s.device) for s in layout.slices if s.piece == piece]
        edges = sorted({0, int(heat.rows[item]), *layout.cuts[:, item].tolist(),
                        *(edge for run in runs for edge in run[:2])})  # fmt: skip
        for start, stop in pairwise(edges):
            holders = [to for first, last, to in runs if first <= start and stop <= last]
            assert len(holders) <= 1
            device = holders[0] if holders else int(layout.owner[piece])
            tier = int(np.argmax(layout.cuts[:, item] >= stop))
            read = read_between(heat, item, ways, residue, start, stop)
            seconds[device] += read * machine.costs[tier]
            rows = rows_between(ways, residue, start, stop)
            used[device, tier] += rows * heat.row_bytes[item]
    return seconds, used


@pytest.mark.parametrize(
    ("seed", "devices", "tiers"), [(0, 4, 2), (1, 7, 3), (2, 32, 2), (3, 3, 4)]
)
def test_cut_items_leave_all_devices_even(seed: int, devices: int, tiers: int) -> None:
    random = np.random.default_rng(seed)
    heat = _skewed(random, 40)
    total = int((heat.rows * heat.row_bytes).sum())
    sizes = [int(total * share / devices) for share in random.uniform(0.05, 0.2, tiers - 1)]
    sizes_now = np.array([*sizes, total // devices], dtype=np.int64)
    costs = 1e-6 * np.cumprod([1.0, *random.uniform(3, 30, tiers - 1)])
    machine = Machine(devices, sizes_now, costs, sizes_now)
    bound = pool_bound(heat, machine, whole=False)
    solution = solve_split(heat, machine, bound, 1e-3)
    assert solution is not None
    seconds, used = _count(heat, machine, solution.layout)
    assert (used <= machine.sizes).all()
    assert used.sum() == total
    assert seconds.max() == pytest.approx(solution.seconds)
    assert bound.seconds <= seconds.max() <= bound.seconds * (1 + 1e-3)


def test_an_item_far_larger_than_a_device_is_cut() -> None:
    heat = _skewed(np.random.default_rng(9), 1)
    total = int(heat.rows[0] * heat.row_bytes[0])
    sizes = np.array([total // 40, total // 8], dtype=np.int64)
    machine = Machine(10, sizes, np.array([1e-6, 3e-5]), sizes)
    bound = pool_bound(heat, machine, whole=False)
    solution = solve_split(heat, machine, bound, 1e-2)
    assert solution is not None
    assert solution.layout.pieces.ways[0] == 10
    assert solution.seconds <= bound.seconds * 1.01
