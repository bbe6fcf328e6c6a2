"""A cluster's tree as compiled loops see it: who owns, how far away, and who is in a group."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rowtier.cost.tree import Tree
from rowtier.jit import compiled

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class TreeArrays(NamedTuple):
    """A cluster's tree in plain arrays."""

    sizes: Ints  # n_0 … n_K
    anchor: Ints  # per holder: the first device of the group it hangs at; a device's is itself
    attached: Ints  # per holder: that group's level
    members: Ints  # of all levels one after the other, groups × positions
    first_member: Ints  # where each level begins
    positions: Ints  # in a group of each level

    @classmethod
    def of(cls, tree: Tree) -> TreeArrays:
        """The arrays of a tree."""
        anchor = np.arange(tree.holders, dtype=np.int64)
        for rack in tree.racks:
            groups = tree.devices // tree.sizes[rack.level]
            each = (rack.stop - rack.first) // groups
            first = np.arange(groups, dtype=np.int64) * tree.sizes[rack.level]
            anchor[rack.first : rack.stop] = np.repeat(first, each)
        lengths = [members.size for members in tree.members]
        return cls(
            np.array(tree.sizes, dtype=np.int64),
            anchor,
            tree.attached.astype(np.int64),
            np.concatenate([members.reshape(-1) for members in tree.members]),
            np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64),
            np.array([members.shape[1] for members in tree.members], dtype=np.int64),
        )


@compiled
def owner(shape: Any, level: int, device: int, position: int) -> int:
    """The holder at a position of the device's group."""
    group = device // shape.sizes[level]
    return int(shape.members[shape.first_member[level] + group * shape.positions[level] + position])


@compiled
def distance(shape: Any, device: int, holder: int) -> int:
    """The first level whose group has both."""
    level, anchor = shape.attached[holder], shape.anchor[holder]
    while device // shape.sizes[level] != anchor // shape.sizes[level]:
        level += 1
    return int(level)


@compiled
def has(shape: Any, level: int, group: int, holder: int) -> bool:
    """Whether a group has a holder."""
    return bool(
        shape.attached[holder] <= level and shape.anchor[holder] // shape.sizes[level] == group
    )
