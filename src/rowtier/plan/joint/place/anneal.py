"""Pieces on devices by simulated annealing, on what exceeds the aims.

Proposed are moves, swaps, columns that change hands between pieces of one table, and groups that
change node or places in it. The energy is summed over devices, so that a proposal is weighed by
the two (or, for a group, two nodes of) devices that it changes. What is kept is the placement with
the lowest peaks that was met. Seeded, and no clock is read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rowtier.jit import compiled, inner
from rowtier.plan.joint.place.vectors import (
    Aim,
    Groups,
    Pieces,
    Space,
    State,
    add,
    fits,
    in_node,
    links_s,
    peaks,
    take,
)
from rowtier.profile.curve import Floats, Ints

LOOKS = 500  # times that the peaks are looked at
WIDTHS = 0.1  # of the proposals: columns that change hands
GROUPS = 0.1  # of the proposals: groups that change node
TAKEN = (0.35, 0.85)  # drawn below the first: a piece moves; below the second: for another; for two
DRAWN = 3  # devices, of which the one gives that exceeds its aims most
SEED = 0


class Piles(NamedTuple):
    """The pieces of every device as a list: the first, what comes after each, and before."""

    first: Ints
    after: Ints
    before: Ints
    height: Ints  # how many


@compiled
def anneal(
    pieces: Pieces,
    groups: Groups,
    space: Space,
    aim: Aim,
    state: State,
    node: int,
    proposals: int,
    hot: float,
    cold: float,
) -> None:
    """Lower the peaks; temperatures are energies."""
    np.random.seed(SEED)
    group_of = np.empty(len(pieces.load), np.int64)  # -1 for pieces that are alone
    for group in range(len(groups.first)):
        for piece in range(groups.first[group], groups.first[group] + groups.size[group]):
            group_of[piece] = group if groups.size[group] > 1 else -1
    piles = _piles(pieces, state)
    wide, staged = np.flatnonzero(pieces.next >= 0), np.flatnonzero(groups.size > 1)
    measure(aim, state)
    best_s, owner, width = np.inf, state.owner.copy(), pieces.width.copy()
    look, cooling = max(1, proposals // LOOKS), (cold / hot) ** (1.0 / max(1, proposals))
    temperature, got = hot, np.zeros(pieces.load.shape[1])
    for step in range(proposals + 1):
        if step % look == 0 or step == proposals:
            peaks_s = 0.0
            for one in peaks(state.load, aim):
                peaks_s += one
            if peaks_s < best_s:
                best_s = peaks_s
                for piece in range(len(owner)):
                    owner[piece], width[piece] = state.owner[piece], pieces.width[piece]
        temperature *= cooling
        drawn = np.random.random()
        if drawn < GROUPS and len(staged) > 0:
            group = staged[np.random.randint(len(staged))]
            _move_group(pieces, groups, space, aim, state, piles, node, group, temperature)
        elif drawn > 1 - WIDTHS and len(wide) > 1:
            piece = wide[np.random.randint(len(wide))]
            _move_columns(pieces, space, aim, state, piece, temperature, got)
        else:
            giver = _at_a_peak(state)
            piece = _any_of(piles, giver)
            if piece < 0:
                continue
            to, group = np.random.randint(len(state.load)), group_of[piece]
            if group >= 0:
                to = giver // node * node + to % node
            if to == giver or (group >= 0 and _has_one(groups, state, group, to)):
                continue
            other, second, kind = -1, -1, np.random.random()
            if kind > TAKEN[0]:
                other = _any_of(piles, to)
                if other >= 0 and not _may_go(groups, state, group_of[other], to, giver, node):
                    continue
                if other >= 0 and kind > TAKEN[1]:
                    second = piles.after[other]
                    if second >= 0 and not _may_go(
                        groups, state, group_of[second], to, giver, node
                    ):
                        continue
            _exchange(pieces, space, aim, state, piles, piece, other, second, to, temperature, got)
    _go_back(pieces, groups, space, aim, state, piles, node, owner, width)


@inner
def _piles(pieces: Pieces, state: State) -> Piles:
    """Lists of pieces that may move."""
    devices, count = len(state.load), len(state.owner)
    piles = Piles(
        np.empty(devices, np.int64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
        np.zeros(devices, np.int64),
    )
    for device in range(devices):
        piles.first[device] = -1
    for piece in range(count):
        piles.after[piece] = piles.before[piece] = -1
        if pieces.fixed[piece] < 0:
            _lay(piles, piece, state.owner[piece])
    return piles


@inner
def _lay(piles: Piles, piece: int, device: int) -> None:
    first = piles.first[device]
    piles.after[piece], piles.before[piece] = first, -1
    if first >= 0:
        piles.before[first] = piece
    piles.first[device] = piece
    piles.height[device] += 1


@inner
def _lift(piles: Piles, piece: int, device: int) -> None:
    before, after = piles.before[piece], piles.after[piece]
    if before >= 0:
        piles.after[before] = after
    else:
        piles.first[device] = after
    if after >= 0:
        piles.before[after] = before
    piles.height[device] -= 1


@inner
def _any_of(piles: Piles, device: int) -> int:
    """A piece of a device, or -1."""
    if piles.height[device] == 0:
        return -1
    piece = piles.first[device]
    for _ in range(np.random.randint(piles.height[device])):
        piece = piles.after[piece]
    return int(piece)


@inner
def _has_one(groups: Groups, state: State, group: int, device: int) -> bool:
    """Whether a device has a piece of a group."""
    for piece in range(groups.first[group], groups.first[group] + groups.size[group]):
        if state.owner[piece] == device:
            return True
    return False


@inner
def _may_go(groups: Groups, state: State, group: int, giver: int, to: int, node: int) -> bool:
    """Whether a piece of a group, or of none, may go: inside its node, where no other of it is."""
    if group < 0:
        return True
    return giver // node == to // node and not _has_one(groups, state, group, to)


@inner
def measure(aim: Aim, state: State) -> None:
    """The energy of every device."""
    nothing = np.zeros(state.load.shape[1])
    for device in range(len(state.load)):
        state.energy[device] = _energy(aim, state.load[device], nothing, nothing, np.inf)


@inner
def _cost(excess_s: float, aim: Aim) -> float:
    """Energy of an excess: its square, and from the scale on its fourth power."""
    if excess_s <= 0.0:
        return 0.0
    square = (excess_s / aim.scale_s) ** 2
    return square * (1.0 + square)


@inner
def _energy(aim: Aim, load: Floats, less: Floats, more: Floats, most: float) -> float:
    """The energy of a device whose load changes; any number above `most` if it is above that."""
    levels, total = len(aim.links_s), 0.0
    for level in range(levels):
        total += _cost(links_s(load, less, more, level, aim) - aim.links_s[level], aim)
    if total > most:
        return total
    memory_s = -np.inf
    for way in range(2 * levels, len(load)):
        memory_s = max(memory_s, load[way] - less[way] + more[way])
        # The first price mostly is close to the largest.
        if way == 2 * levels and total + _cost(memory_s - aim.memory_s, aim) > most:
            return total + _cost(memory_s - aim.memory_s, aim)
    return total + _cost(memory_s - aim.memory_s, aim)


@inner
def _at_a_peak(state: State) -> int:
    """One of a few devices: that which exceeds its aims most."""
    device = np.random.randint(len(state.energy))
    for _ in range(DRAWN - 1):
        other = np.random.randint(len(state.energy))
        if state.energy[other] > state.energy[device]:
            device = other
    return device


@inner
def _allowed(state: State, one: int, other: int, temperature: float) -> float:
    """The energy that two devices may have together after a change."""
    worse = -temperature * np.log(max(np.random.random(), 1e-300))
    return float(state.energy[one] + state.energy[other] + worse)


@inner
def _exchange(
    pieces: Pieces,
    space: Space,
    aim: Aim,
    state: State,
    piles: Piles,
    piece: int,
    other: int,
    second: int,
    to: int,
    temperature: float,
    got: Floats,
) -> None:
    """Give a piece to a device, for one or two of its own if they are named."""
    giver, given = state.owner[piece], pieces.load[piece]
    for way in range(len(got)):
        got[way] = pieces.load[other, way] if other >= 0 else 0.0
        if second >= 0:
            got[way] += pieces.load[second, way]
    most = _allowed(state, giver, to, temperature)
    here = _energy(aim, state.load[giver], given, got, most)
    if here > most:
        return
    there = _energy(aim, state.load[to], got, given, most - here)
    if here + there > most:
        return
    _hand_over(pieces, space, state, piles, piece, to)
    room = True
    for one in (other, second):
        if one >= 0:
            _hand_over(pieces, space, state, piles, one, giver)
    for device in (giver, to):
        room = room and _is_within(space, state, device)
    if not room:
        _hand_over(pieces, space, state, piles, piece, giver)
        for one in (other, second):
            if one >= 0:
                _hand_over(pieces, space, state, piles, one, to)
        return
    state.energy[giver], state.energy[to] = here, there


@inner
def _is_within(space: Space, state: State, device: int) -> bool:
    group = space.group[device]
    for kind in range(space.pool.shape[1]):
        if state.spilt[group, kind] > space.pool[group, kind]:
            return False
    return True


@inner
def _hand_over(
    pieces: Pieces, space: Space, state: State, piles: Piles, piece: int, to: int
) -> None:
    giver = state.owner[piece]
    add(state, giver, pieces.load[piece], -1.0)
    add(state, to, pieces.load[piece], 1.0)
    take(space, state, giver, pieces.need[piece], -1.0)
    take(space, state, to, pieces.need[piece], 1.0)
    _lift(piles, piece, giver)
    _lay(piles, piece, to)
    state.owner[piece] = to


@inner
def _move_columns(
    pieces: Pieces,
    space: Space,
    aim: Aim,
    state: State,
    piece: int,
    temperature: float,
    nothing: Floats,
) -> None:
    """Give some columns of a piece to another one of the same table."""
    other = pieces.next[piece]
    for _ in range(np.random.randint(4)):
        other = pieces.next[other]
    giver, to = state.owner[piece], state.owner[other]
    if giver == to or pieces.width[piece] <= 1:
        return
    if not fits(space, state, to, pieces.unit_need[other]):
        return
    nothing[:] = 0.0
    most = _allowed(state, giver, to, temperature)
    here = _energy(aim, state.load[giver], pieces.unit[piece], nothing, most)
    if here > most:
        return
    there = _energy(aim, state.load[to], nothing, pieces.unit[other], most - here)
    if here + there > most:
        return
    _widen(pieces, space, state, piece, -1.0)
    _widen(pieces, space, state, other, 1.0)
    state.energy[giver], state.energy[to] = here, there


@inner
def _widen(pieces: Pieces, space: Space, state: State, piece: int, units: float) -> None:
    device = state.owner[piece]
    pieces.width[piece] += int(units)
    add(state, device, pieces.unit[piece], units)
    take(space, state, device, pieces.unit_need[piece], units)
    for way in range(pieces.load.shape[1]):
        pieces.load[piece, way] += units * pieces.unit[piece, way]
    for kind in range(pieces.need.shape[1]):
        pieces.need[piece, kind] += units * pieces.unit_need[piece, kind]


@inner
def _move_group(
    pieces: Pieces,
    groups: Groups,
    space: Space,
    aim: Aim,
    state: State,
    piles: Piles,
    node: int,
    group: int,
    temperature: float,
) -> None:
    """Give all of a group to devices of another node."""
    first, size = groups.first[group], groups.size[group]
    old, new = state.owner[first] // node, np.random.randint(len(state.load) // node)
    if old == new or in_node(groups, state, group, new, node):
        return
    before = 0.0
    for place in range(node):
        before += state.energy[old * node + place] + state.energy[new * node + place]
    most = before - temperature * np.log(max(np.random.random(), 1e-300))
    owners, places = state.owner[first : first + size].copy(), np.random.permutation(node)
    room = _place_group(
        pieces, groups, space, state, piles, node, group, new * node + places[:size]
    )
    if not room or _measure_nodes(aim, state, old, new, node) > most:
        _place_group(pieces, groups, space, state, piles, node, group, owners)
        _measure_nodes(aim, state, old, new, node)


@inner
def _measure_nodes(aim: Aim, state: State, one: int, other: int, node: int) -> float:
    """The energy of all devices of two nodes."""
    nothing, total = np.zeros(state.load.shape[1]), 0.0
    for place in range(node):
        for device in (one * node + place, other * node + place):
            state.energy[device] = _energy(aim, state.load[device], nothing, nothing, np.inf)
            total += state.energy[device]
    return total


@inner
def _place_group(
    pieces: Pieces,
    groups: Groups,
    space: Space,
    state: State,
    piles: Piles,
    node: int,
    group: int,
    owners: Ints,
) -> bool:
    """Give a group to other devices; whether there is room for it."""
    first, room = groups.first[group], True
    old, new = state.owner[first] // node, owners[0] // node
    for place in range(node if groups.size[group] > 1 else 0):
        add(state, old * node + place, groups.node[group], -1.0)
        add(state, new * node + place, groups.node[group], 1.0)
    for at in range(len(owners)):
        _hand_over(pieces, space, state, piles, first + at, owners[at])
    for at in range(len(owners)):
        room = room and _is_within(space, state, owners[at])
    return room


@inner
def _go_back(
    pieces: Pieces,
    groups: Groups,
    space: Space,
    aim: Aim,
    state: State,
    piles: Piles,
    node: int,
    owner: Ints,
    width: Ints,
) -> None:
    """Pieces as they were at the lowest peaks."""
    for piece in range(len(owner)):
        if pieces.width[piece] != width[piece]:
            _widen(pieces, space, state, piece, float(width[piece] - pieces.width[piece]))
    for group in range(len(groups.first)):
        first, size = groups.first[group], groups.size[group]
        elsewhere = False
        for piece in range(first, first + size):
            elsewhere |= state.owner[piece] != owner[piece]
        if elsewhere:
            there = owner[first : first + size]
            _place_group(pieces, groups, space, state, piles, node, group, there)
    measure(aim, state)
