"""Bytes through the links: what each holder sends and receives, level by level.

Amounts are kept as what a holder sends *towards readers*; ids and gradients take the same
paths the other way. Links carry both directions at once, so a holder's busier one counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rowtier.cost.touch import BagLengths
from rowtier.cost.tree import Tree, sum_of_others
from rowtier.profile.curve import Floats, Ints


@dataclass(frozen=True, eq=False)
class Flow:
    """Bytes (or messages) per step of every holder (row) through every level's links (column)."""

    sent: Floats
    received: Floats

    @property
    def back(self) -> Flow:
        """The same amounts the other way."""
        return Flow(self.received, self.sent)

    @property
    def total(self) -> Floats:
        """Bytes through each level, every transfer counted once."""
        return np.asarray(self.sent.sum(axis=0))

    @property
    def busy(self) -> NDArray[np.bool_]:
        """Which levels carry anything."""
        return np.asarray((self.sent > 0).any(axis=0))

    def __add__(self, other: Flow) -> Flow:
        return Flow(self.sent + other.sent, self.received + other.received)

    def __mul__(self, factor: float) -> Flow:
        return Flow(self.sent * factor, self.received * factor)


class Sending:
    """What holders send towards readers, added up band by band.

    `flat[j−1, h]` goes from holder h to every device at distance j. `placed[j−1][h, y]`
    goes from h to device y of every level-(j−1) group in its level-j group but its own.
    With `more`, of several plans, along a last axis.
    """

    def __init__(self, tree: Tree, *more: int):
        self._tree = tree
        self.flat = np.zeros((tree.levels, tree.holders, *more))
        self.placed = [np.zeros((tree.holders, size, *more)) for size in tree.sizes[:-1]]
        self.extra_rounds = np.zeros((tree.levels, *more), dtype=bool)
        self.handed_on = np.zeros((tree.devices, *more))  # by gateways, to themselves as well

    def of_plan(self, plan: int) -> Sending:
        """The part of one of several plans: what is added to it is added here."""
        found = Sending.__new__(Sending)
        found._tree, found.flat = self._tree, self.flat[..., plan]
        found.placed = [at[..., plan] for at in self.placed]
        found.extra_rounds = self.extra_rounds[..., plan]
        found.handed_on = self.handed_on[..., plan]
        return found

    def add_flat(self, level: int, members: Ints, amounts: Floats) -> None:
        """Every reader of a copy of scope `level` gets `amounts[i]` from the i-th member."""
        self.flat[:level, members] += amounts

    def add_staged(self, level: int, members: Ints, amounts: Floats) -> None:
        """Rows of scope `level` that go by gateways, members × gateways.

        `amounts[j−1]` goes to each level-(j−1) group that lacks them: from the holder in
        its own level-j group, from the gateway in others.
        """
        tree = self._tree
        held = np.zeros((tree.holders, tree.sizes[level - 1], *amounts.shape[3:]))
        for at in range(1, level + 1):
            held[members] = amounts[at - 1]
            self._pass_on(level, at, held)

    def _pass_on(self, level: int, at: int, amounts: Floats) -> None:
        tree, below, more = self._tree, self._tree.sizes[at - 1], amounts.shape[2:]
        placed = self.placed[at - 1]
        placed += amounts.reshape(tree.holders, -1, below, *more).sum(axis=1)
        if at == level:
            return
        size, groups = tree.sizes[at], tree.sizes[level] // tree.sizes[at]
        by_gateway = amounts.reshape(tree.holders, -1, size, *more).sum(axis=1)
        elsewhere = sum_of_others(tree.group_sums(by_gateway, at), groups)
        for above in range(at + 1, level + 1):
            outside = tree.attached_sums(by_gateway, above, level)
            elsewhere += np.repeat(outside, groups, axis=0)
        device = tree.places[: tree.devices]
        each = elsewhere.reshape(-1, *more)
        placed[device, device % below] += each
        self.handed_on += each * tree.fan_out(at)

    def flow(self) -> Flow:
        """Who sends and who receives how much."""
        return self._flow(self.flat, self.placed)

    def messages(self) -> Flow:
        """How many holders each one has anything to send to, or to receive from."""
        pairs = [flat[:, None] + at > 0 for flat, at in zip(self.flat, self.placed, strict=True)]
        none = np.zeros_like(self.flat)
        return self._flow(none, [pair.astype(np.float64) for pair in pairs])

    def _flow(self, flat: Floats, placed: list[Floats]) -> Flow:
        tree, more = self._tree, flat.shape[2:]
        sent = np.zeros((tree.holders, tree.levels, *more))
        received = np.zeros((tree.holders, tree.levels, *more))
        for level in range(1, tree.levels + 1):
            run = tree.fan_out(level)
            amounts = flat[level - 1][:, None] + placed[level - 1]
            others = tree.others[level - 1].reshape(-1, *(1,) * len(more))
            sent[:, level - 1] = amounts.sum(axis=1) * others
            inside = sum_of_others(tree.group_sums(amounts, level - 1), run)
            beside = np.repeat(tree.attached_sums(amounts, level, level), run, axis=0)
            received[: tree.devices, level - 1] = (inside + beside).reshape(-1, *more)
        return Flow(sent, received)


def add_sums(
    sending: Sending,
    tree: Tree,
    masses: Mapping[int, Floats],
    bags: BagLengths,
    amount_bytes: float,
) -> Floats:
    """Owners send one partial sum per sample that looks anything up on them; bytes per level.

    `masses[k]` are the shares of lookups that fall on rows of scope k, by holder. A reader
    at distance j gets the sums over all rows that both share, of scope j and wider, at
    once. `amount_bytes` is what one partial sum for every sample of a batch comes to.
    """
    totals = np.zeros(tree.levels)
    for low, high, mass in _runs(masses):
        sums = bags.sums(mass) * amount_bytes
        sending.flat[low:high] += sums
        totals[low:high] = tree.reach[low:high] @ sums
    return totals


def add_staged_sums(
    sending: Sending,
    tree: Tree,
    masses: Mapping[int, Floats],
    bags: BagLengths,
    amount_bytes: float,
) -> Floats:
    """The same with partial sums added up inside the sending group first; bytes per level.

    For a reader at distance j the sums of a level-(j−1) group are added up level by level,
    in the devices that have the reader's own place in their groups, and sent on once. A
    server sends its own to that device, or to the reader if it is in the server's group.
    So level i < j carries, for each of its groups, the (n_j − n_j−1)/n_i readers that share
    a place; added up over j that is n_high/n_i, or (n_high − n_low)/n_i below `low`.
    """
    totals = np.zeros(tree.levels)
    size = tree.sizes
    for low, high, mass in _runs(masses):
        for level in range(1, high + 1):
            readers = size[high] - (size[low] if level <= low else 0)
            share_bytes = amount_bytes * readers / size[level]
            sent = _send_up(sending, tree, mass, bags, share_bytes, level)
            inside = size[high] > max(size[low], size[level])  # some are for readers beyond
            sending.extra_rounds[level - 1] |= inside and sent > 0
            totals[level - 1] += sent
    return totals


def _runs(masses: Mapping[int, Floats]) -> Iterator[tuple[int, int, Floats]]:
    """Distances low < j ≤ high at which a reader meets the same rows, and their masses."""
    scopes = sorted(masses, reverse=True)
    mass = np.zeros(1)
    for high, low in zip(scopes, [*scopes[1:], 0], strict=True):
        mass = mass + masses[high]
        yield low, high, mass


def _send_up(
    sending: Sending, tree: Tree, mass: Floats, bags: BagLengths, amount_bytes: float, level: int
) -> float:
    below, others = tree.sizes[level - 1], tree.others[level - 1]
    sums = np.repeat(bags.sums(tree.group_sums(mass, level - 1)) * amount_bytes, below)
    device = tree.places[: tree.devices]
    placed = sending.placed[level - 1]
    placed[device, device % below] += sums
    total = float(sums @ others[: tree.devices])
    for rack in tree.racks:
        if rack.level == level:
            at = slice(rack.first, rack.stop)
            sums = bags.sums(mass[at]) * amount_bytes
            placed[at] += sums[:, None]
            total += float(sums @ others[at]) * below
    return total
