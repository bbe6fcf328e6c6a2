"""What one row of one copy does in a step: weights on the basis of `touch.py`.

The same weights serve a whole plan (on sums of the basis over a holder's rows) and a
solver (on the basis of each bucket), so that the two can never disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from rowtier.band import Band
from rowtier.cost.touch import LOOKUPS, rows_at, touched
from rowtier.cost.tree import Tree
from rowtier.profile.curve import Floats


class Way(NamedTuple):
    """How a band's rows travel. `staged` rows are coalesced too: a gateway asks once."""

    level: int  # of the scope
    exchange: str
    coalesced: bool
    staged: bool
    sync: str

    @classmethod
    def of(cls, band: Band, tree: Tree) -> Way:
        """The way a band says."""
        level = tree.scopes[band.scope]
        return cls(level, band.exchange, band.coalesced, band.staged, band.sync)

    @property
    def asked(self) -> int:
        """Basis row that says how often one reader asks for a row: each lookup, or once."""
        return touched(0) if self.once else LOOKUPS

    @property
    def once(self) -> bool:
        """Whether a reader fetches a row once a step; of a copy of its own it always does."""
        return self.level == 0 or (self.exchange == "rows" and (self.coalesced or self.staged))

    @property
    def adds_up(self) -> bool:
        """Whether readers add rows up themselves; a copy on every device has nobody to ask."""
        return self.exchange == "rows" or self.level == 0

    @property
    def by_gateways(self) -> bool:
        """Whether rows pass from gateway to gateway; partial sums of `sums` are no rows."""
        return self.staged and self.exchange == "rows" and self.level > 0


@dataclass(frozen=True, eq=False)
class Rates:
    """Expected events per step, for a row and all readers of its copy; levels × basis or basis."""

    forward: Floats  # rows that pass the links of each level towards readers; 0 for `sums`
    ids: Floats  # ids that pass them towards the row
    sync: Floats  # gradients that the row's holder sends, and receives, for other copies
    sync_ids: Floats
    packed: Floats  # times the holder packs it: at each hop for all that ask, itself among them
    handed_on: Floats  # the same of all gateways together
    needed: Floats  # probability that a reader of the copy needs the row
    updates: Floats  # probability that the row is updated
    waiting: Floats  # gradients that wait for sync beside the row


@lru_cache(maxsize=1024)
def rates_of(tree: Tree, way: Way, attached: int, training: bool) -> Rates:
    """The rates of a row whose holder hangs at level `attached` (0 for a device)."""
    passes = _passes(tree, way, attached)
    sync = _sync(tree, way) if training else np.zeros_like(passes)
    copies = tree.sizes[way.level] < tree.devices
    updates = _unit(tree, touched(tree.levels))
    waiting = updates if way.sync == "sparse" else _unit(tree, rows_at(tree.levels))
    return Rates(
        forward=passes if way.exchange == "rows" else np.zeros_like(passes),
        ids=passes,
        sync=sync,
        sync_ids=sync if way.sync == "sparse" else np.zeros_like(sync),
        packed=_packed(tree, way, attached),
        handed_on=_handed_on(tree, way, attached),
        needed=_unit(tree, touched(way.level)),
        updates=updates * training,
        waiting=waiting * (training and copies),
    )


def _unit(tree: Tree, row: int) -> Floats:
    unit = np.zeros(tree.levels + 3)
    unit[row] = 1.0
    return unit


def _passes(tree: Tree, way: Way, attached: int) -> Floats:
    """Transfers through level-j links, j ≤ k, for one copy of scope k.

    Unstaged: one per ask of each reader at distance j. Staged: in every level-j group one
    per level-(j−1) group that needs the row, except the one in which it already is; a
    server is in none of its own level's.
    """
    passes = np.zeros((tree.levels, tree.levels + 3))
    if not way.by_gateways:
        passes[:, way.asked] = tree.readers(way.level, attached)
        return passes
    for level in range(1, way.level + 1):
        groups = tree.sizes[way.level] // tree.sizes[level]
        lacking = groups * (tree.fan_out(level) - 1) + (attached == level)
        passes[level - 1, touched(level - 1)] = lacking
    return passes


def _packed(tree: Tree, way: Way, attached: int) -> Floats:
    """Copies to buffers by the holder: hop by hop one for each group below that needs the row."""
    if not way.by_gateways:
        return _unit(tree, way.asked) * tree.sizes[way.level]
    packed = _unit(tree, touched(0)) * 0.0
    for level in range(max(1, attached), way.level + 1):
        packed[touched(level - 1)] += tree.fan_out(level)
    return packed


def _handed_on(tree: Tree, way: Way, attached: int) -> Floats:
    """The same by the gateways of all groups that the holder is not in."""
    handed_on = _unit(tree, touched(0)) * 0.0
    for level in range(1, way.level if way.by_gateways else 0):
        groups = tree.sizes[way.level] // tree.sizes[level] - (level >= attached)
        handed_on[touched(level - 1)] += groups * tree.fan_out(level)
    return handed_on


def _sync(tree: Tree, way: Way) -> Floats:
    """Keeping copies of scope k equal, through level-j links, j > k.

    The n_j/n_j−1 groups that meet at level j reduce to one of their copies, which is
    equally often any of them, and get the total back: of n_k/n_j−1 of the rows (the rest was
    handed on inside), each passes on all but its own n_j−1/n_j. Needed for a row is the
    first leg with probability u_j−1, the second with u_top; dense does not ask.
    """
    sync = np.zeros((tree.levels, tree.levels + 3))
    for level in range(way.level + 1, tree.levels + 1):
        below, here = tree.sizes[level - 1], tree.sizes[level]
        share = tree.sizes[way.level] / below * (1 - below / here)
        if way.sync == "dense":
            sync[level - 1, rows_at(tree.levels)] = 2 * share
        else:
            sync[level - 1, touched(level - 1)] += share
            sync[level - 1, touched(tree.levels)] += share
    return sync
