"""Pieces that change hands between devices, with the loads and bytes that they bring along."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rowtier.jit import inner
from rowtier.plan.joint.place.vectors import Groups, Pieces, Space, State, add, take
from rowtier.profile.curve import Ints


class Piles(NamedTuple):
    """The pieces of every device that may move, in any order."""

    piece: Ints  # device, place in its pile
    place: Ints  # of each piece
    height: Ints  # of each device: how many


@inner
def piles_of(pieces: Pieces, state: State) -> Piles:
    """The pieces that may move."""
    devices, count = len(state.load), len(state.owner)
    piles = Piles(
        np.empty((devices, count), np.int64),
        np.empty(count, np.int64),
        np.zeros(devices, np.int64),
    )
    for piece in range(count):
        if pieces.fixed[piece] < 0:
            _lay(piles, piece, state.owner[piece])
    return piles


@inner
def _lay(piles: Piles, piece: int, device: int) -> None:
    piles.piece[device, piles.height[device]] = piece
    piles.place[piece] = piles.height[device]
    piles.height[device] += 1


@inner
def _lift(piles: Piles, piece: int, device: int) -> None:
    piles.height[device] -= 1
    last = piles.piece[device, piles.height[device]]
    piles.piece[device, piles.place[piece]] = last
    piles.place[last] = piles.place[piece]


@inner
def exchange(
    pieces: Pieces,
    space: Space,
    state: State,
    piles: Piles,
    piece: int,
    other: int,
    second: int,
    to: int,
) -> bool:
    """Give a piece to a device, for one or two of its own if they are named, if there is room."""
    giver, room = state.owner[piece], True
    _hand_over(pieces, space, state, piles, piece, to)
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
    return room


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
    for way in range(pieces.load.shape[1]):
        state.load[giver, way] -= pieces.load[piece, way]
        state.load[to, way] += pieces.load[piece, way]
    take(space, state, giver, pieces.need[piece], -1.0)
    take(space, state, to, pieces.need[piece], 1.0)
    _lift(piles, piece, giver)
    _lay(piles, piece, to)
    state.owner[piece] = to


@inner
def widen(pieces: Pieces, space: Space, state: State, piece: int, units: float) -> None:
    """Give a piece so many units of columns more, or less."""
    device = state.owner[piece]
    pieces.width[piece] += int(units)
    add(state, device, pieces.unit[piece], units)
    take(space, state, device, pieces.unit_need[piece], units)
    for way in range(pieces.load.shape[1]):
        pieces.load[piece, way] += units * pieces.unit[piece, way]
    for kind in range(pieces.need.shape[1]):
        pieces.need[piece, kind] += units * pieces.unit_need[piece, kind]


@inner
def place_group(
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
def go_back(
    pieces: Pieces,
    groups: Groups,
    space: Space,
    state: State,
    piles: Piles,
    node: int,
    owner: Ints,
    width: Ints,
) -> None:
    """Pieces as they were at the lowest peaks."""
    for piece in range(len(owner)):
        if pieces.width[piece] != width[piece]:
            widen(pieces, space, state, piece, float(width[piece] - pieces.width[piece]))
    for group in range(len(groups.first)):
        first, size = groups.first[group], groups.size[group]
        elsewhere = False
        for piece in range(first, first + size):
            elsewhere |= state.owner[piece] != owner[piece]
        if elsewhere:
            there = owner[first : first + size]
            place_group(pieces, groups, space, state, piles, node, group, there)
