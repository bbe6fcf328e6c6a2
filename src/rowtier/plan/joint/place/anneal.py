"""Pieces on devices by simulated annealing, on what exceeds the aims.

Proposed are moves, swaps, columns that change hands between pieces of one table, and groups that
change node or places in it. The energy is summed over devices, so that a proposal is weighed by
the two (or, for a group, two nodes of) devices that it changes. What is kept is the placement with
the lowest peaks that was met. Seeded, and no clock is read.
"""

from __future__ import annotations

import numpy as np

from rowtier.jit import compiled, inner
from rowtier.plan.joint.place.hands import (
    Piles,
    exchange,
    go_back,
    piles_of,
    place_group,
    widen,
)
from rowtier.plan.joint.place.vectors import (
    Aim,
    Groups,
    Pieces,
    Space,
    State,
    fits,
    in_node,
    links_s,
    peaks,
)
from rowtier.profile.curve import Floats, Ints

LOOKS = 500  # times that the peaks are looked at
WIDTHS = 0.1  # of the proposals: columns that change hands
GROUPS = 0.1  # of the proposals: groups that change node
TAKEN = (0.35, 0.85)  # drawn below the first: a piece moves; below the second: for another; for two
DRAWN = 3  # devices, of which the one gives that exceeds its aims most
SEED = 0


@compiled
def anneal(
    pieces: Pieces, groups: Groups, space: Space, aim: Aim, state: State, node: int,
    proposals: int, hot: float, cold: float,
) -> None:  # fmt: skip
    """Lower the peaks; temperatures are energies."""
    np.random.seed(SEED)
    group_of = _group_of(pieces, groups)
    piles = piles_of(pieces, state)
    wide, staged = np.flatnonzero(pieces.next >= 0), np.flatnonzero(groups.size > 1)
    measure(aim, state)
    best_s, owner, width = np.inf, state.owner.copy(), pieces.width.copy()
    look, cooling = max(1, proposals // LOOKS), (cold / hot) ** (1.0 / max(1, proposals))
    temperature, change = hot, np.zeros(pieces.load.shape[1])
    # Plain arrays: fields of tuples are counted whenever they are looked at.
    load, energy, own, mean, links = state.load, state.energy, pieces.load, aim.mean, aim.links_s
    memory_s, per_s, pile, height = aim.memory_s, 1 / aim.scale_s, piles.piece, piles.height
    for step in range(proposals + 1):
        if step % look == 0 or step == proposals:
            peaks_s = _sum(peaks(state.load, aim))
            if peaks_s < best_s:
                best_s = peaks_s
                owner[:], width[:] = state.owner, pieces.width
        temperature *= cooling
        drawn = np.random.random()
        if drawn < GROUPS and len(staged) > 0:
            group = staged[_below(len(staged))]
            _move_group(pieces, groups, space, aim, state, piles, node, group, temperature, change)
        elif drawn > 1 - WIDTHS and len(wide) > 1:
            piece = wide[_below(len(wide))]
            _move_columns(pieces, space, aim, state, piece, temperature, change)
        else:
            giver = _at_a_peak(energy)
            if height[giver] == 0:
                continue
            piece = pile[giver, _below(height[giver])]
            to, group = _below(len(load)), group_of[piece]
            if group >= 0:
                to = giver // node * node + to % node
            if to == giver or (group >= 0 and _has_one(groups, state, group, to)):
                continue
            other, second = _taken(pile, to, height[to])
            if other >= 0 and not _may_go(groups, state, group_of[other], to, giver, node):
                continue
            if second >= 0 and not _may_go(groups, state, group_of[second], to, giver, node):
                continue
            _net(own, piece, other, second, change)
            most = energy[giver] + energy[to]
            most -= temperature * np.log(max(np.random.random(), 1e-300))
            there = _energy(mean, links, memory_s, per_s, load, to, change, 1.0, most)
            if there > most:
                continue
            here = _energy(mean, links, memory_s, per_s, load, giver, change, -1.0, most - there)
            if here + there <= most and exchange(
                pieces, space, state, piles, piece, other, second, to
            ):
                energy[giver], energy[to] = here, there
    go_back(pieces, groups, space, state, piles, node, owner, width)
    measure(aim, state)


@inner
def _group_of(pieces: Pieces, groups: Groups) -> Ints:
    """The group of each piece; -1 for those that are alone."""
    found = np.empty(len(pieces.load), np.int64)
    for group in range(len(groups.first)):
        for piece in range(groups.first[group], groups.first[group] + groups.size[group]):
            found[piece] = group if groups.size[group] > 1 else -1
    return found


@inner
def _sum(values: Floats) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


@inner
def _taken(pile: Ints, device: int, height: int) -> tuple[int, int]:
    """What a device gives for a piece: nothing, one of its own, or two; -1 for none."""
    other, second, kind = -1, -1, np.random.random()
    if kind > TAKEN[0] and height > 0:
        place = _below(height)
        other = pile[device, place]
        if kind > TAKEN[1] and place > 0:
            second = pile[device, place - 1]
    return other, second


@inner
def _net(own: Floats, piece: int, other: int, second: int, change: Floats) -> None:
    """The load of a piece less that of one or two others, if they are named."""
    for way in range(len(change)):
        change[way] = own[piece, way]
        if other >= 0:
            change[way] -= own[other, way]
        if second >= 0:
            change[way] -= own[second, way]


@inner
def _below(count: int) -> int:
    """A number from 0 on, drawn."""
    return int(np.random.random() * count)


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
        state.energy[device] = _changed(aim, state, device, nothing, 1.0, np.inf)


@inner
def _changed(
    aim: Aim, state: State, device: int, change: Floats, sign: float, most: float
) -> float:
    """The energy of a device whose load changes."""
    facts = (aim.mean, aim.links_s, aim.memory_s, 1 / aim.scale_s)
    return _energy(*facts, state.load, device, change, sign, most)


@inner
def _cost(excess: float) -> float:
    """Energy of an excess, over what is large: its square, and from there on its fourth power."""
    if excess <= 0.0:
        return 0.0
    return excess * excess * (1.0 + excess * excess)


@inner
def _energy(
    mean: Floats, aimed_s: Floats, memory_aim_s: float, per_s: float, load: Floats, device: int,
    change: Floats, sign: float, most: float,
) -> float:  # fmt: skip
    """The energy of a device whose load changes; any number above `most` if it is above that."""
    levels, total = len(aimed_s), 0.0
    for level in range(levels):
        busy_s = links_s(load, device, change, sign, level, mean)
        total += _cost((busy_s - aimed_s[level]) * per_s)
    first = 2 * levels  # price, which mostly is close to the largest
    memory_s = load[device, first] + sign * change[first]
    if total + _cost((memory_s - memory_aim_s) * per_s) > most:
        return total + _cost((memory_s - memory_aim_s) * per_s)
    for way in range(first + 1, load.shape[1]):
        memory_s = max(memory_s, load[device, way] + sign * change[way])
    return total + _cost((memory_s - memory_aim_s) * per_s)


@inner
def _at_a_peak(energy: Floats) -> int:
    """One of a few devices: that which exceeds its aims most."""
    device = _below(len(energy))
    for _ in range(DRAWN - 1):
        other = _below(len(energy))
        if energy[other] > energy[device]:
            device = other
    return device


@inner
def _move_columns(
    pieces: Pieces,
    space: Space,
    aim: Aim,
    state: State,
    piece: int,
    temperature: float,
    change: Floats,
) -> None:
    """Give some columns of a piece to another one of the same table."""
    other = pieces.next[piece]
    for _ in range(_below(4)):
        other = pieces.next[other]
    giver, to = state.owner[piece], state.owner[other]
    if giver == to or pieces.width[piece] <= 1:
        return
    if not fits(space, state, to, pieces.unit_need[other]):
        return
    most = float(state.energy[giver] + state.energy[to])
    most -= temperature * np.log(max(np.random.random(), 1e-300))
    change[:] = pieces.unit[other]
    there = _changed(aim, state, to, change, 1.0, most)
    if there > most:
        return
    change[:] = pieces.unit[piece]
    here = _changed(aim, state, giver, change, -1.0, most - there)
    if here + there > most:
        return
    widen(pieces, space, state, piece, -1.0)
    widen(pieces, space, state, other, 1.0)
    state.energy[giver], state.energy[to] = here, there


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
    change: Floats,
) -> None:
    """Give all of a group to devices of another node."""
    first, size = groups.first[group], groups.size[group]
    old, new = state.owner[first] // node, _below(len(state.load) // node)
    if old == new or in_node(groups, state, group, new, node):
        return
    most = -temperature * np.log(max(np.random.random(), 1e-300))
    for place in range(node):
        most += state.energy[old * node + place] + state.energy[new * node + place]
    owners, places = state.owner[first : first + size].copy(), np.random.permutation(node)
    energy, total = np.empty((2, node)), 0.0
    for here in range(1, -1, -1):  # first where it goes to
        for place in range(node):
            device = (new if here else old) * node + place
            change[:] = groups.node[group]
            for at in range(size):
                if device == (new * node + places[at] if here else owners[at]):
                    for way in range(len(change)):
                        change[way] += pieces.load[first + at, way]
            sign = 1.0 if here else -1.0
            energy[here, place] = _changed(aim, state, device, change, sign, most - total)
            total += energy[here, place]
            if total > most:
                return
    there = new * node + places[:size]
    if not place_group(pieces, groups, space, state, piles, node, group, there):
        place_group(pieces, groups, space, state, piles, node, group, owners)
        return
    for place in range(node):
        state.energy[old * node + place] = energy[0, place]
        state.energy[new * node + place] = energy[1, place]
