"""Largest first: pieces with several needs at once, each to the device it burdens least."""

from __future__ import annotations

import numpy as np

from rowtier.jit import compiled
from rowtier.plan.recshard.heat import Floats, Ints


def place(
    needs: Floats, groups: Ints, held: Ints, devices: int, most: int, size: Floats | None = None
) -> Ints | None:
    """A device for every piece; pieces of one group get different devices.

    `needs[p, i]` is the share of a device's i-th means that piece p takes. The device is
    chosen where the sum of the used shares to the fourth power grows least, so that what
    is scarce counts most. `size` orders the pieces; by default it is their largest share.
    None if some device would hold more than `most` bytes.
    """
    size = needs.max(axis=1) if size is None else size
    largest = np.zeros(int(groups.max(initial=0)) + 1)
    np.maximum.at(largest, groups, size)
    order = np.lexsort((-size, groups, -largest[groups]))
    owner = _place(needs, groups, held, order, devices, most)
    return owner if (owner >= 0).all() else None


@compiled
def _place(needs: Floats, groups: Ints, held: Ints, order: Ints, devices: int, most: int) -> Ints:
    count, kinds = needs.shape
    used = np.zeros((devices, kinds))
    room, owner = np.empty(devices, dtype=np.int64), np.empty(count, dtype=np.int64)
    latest = np.empty(devices, dtype=np.int64)  # the group that was placed there last
    for device in range(devices):
        room[device], latest[device] = most, -1
    for piece in range(count):
        owner[piece] = -1
    for piece in order:
        best, least = -1, np.inf
        for device in range(devices):
            if latest[device] == groups[piece] or room[device] < held[piece]:
                continue
            growth = 0.0
            for kind in range(kinds):
                before = used[device, kind] ** 2
                after = (used[device, kind] + needs[piece, kind]) ** 2
                growth += after * after - before * before
            if growth < least:
                best, least = device, growth
        if best < 0:
            return owner
        owner[piece] = best
        for kind in range(kinds):
            used[best, kind] += needs[piece, kind]
        room[best] -= held[piece]
        latest[best] = groups[piece]
    return owner
