"""Pieces on devices: dealt out heaviest first, then annealed on the peaks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rowtier.jit import compiled, inner
from rowtier.plan.joint.place.anneal import anneal
from rowtier.plan.joint.place.vectors import (
    Aim,
    Groups,
    Packed,
    Pieces,
    Space,
    State,
    add,
    fits,
    in_node,
    take,
)
from rowtier.profile.curve import Floats, Ints

HOT, COLD = 3.0, 3e-4  # energies that are accepted at the start, and at the end
LEAST = 1e-3  # of the largest load: ways with less than that hardly count
HARDER = 4.0  # times as hard to place: groups, which need room on several devices at once


class Scale(NamedTuple):
    """By way: one over what devices usually have, how much it counts, and what all of them have."""

    inverse: Floats
    weight: Floats
    less: Floats


def pack(
    pieces: Pieces, groups: Groups, base: Floats, space: Space, aim: Aim, node: int, proposals: int
) -> Packed | int:
    """Pieces on devices that are busy with `base` already, or a group that finds no room."""
    state = State(
        np.full(len(pieces.load), -1, dtype=np.int64),
        base.copy(),
        np.zeros_like(space.own),
        np.zeros_like(space.pool),
        np.zeros(len(base)),
    )
    scale = _scale(base, aim)
    order = _heaviest_first(pieces, groups, scale)
    without = _deal(pieces, groups, space, state, order, scale, node)
    if without >= 0:
        return int(without)
    # Widths and what follows from them change while annealing.
    pieces = pieces._replace(
        load=pieces.load.copy(), need=pieces.need.copy(), width=pieces.width.copy()
    )
    if len(base) > 1 and proposals:
        anneal(pieces, groups, space, aim, state, node, proposals, HOT, COLD)
    return Packed(state.owner, pieces.width, state.load, _free_bytes(space, state))


def _free_bytes(space: Space, state: State) -> Floats:
    sharers = np.bincount(space.group)
    shared = (space.pool - state.spilt)[:, 0] / sharers
    return np.asarray(np.maximum(space.own - state.used, 0.0)[:, 0] + shared[space.group])


def _scale(base: Floats, aim: Aim) -> Scale:
    inverse = 1 / np.maximum(aim.usual, max(LEAST * float(aim.usual.max()), 1e-300))
    weight, links = aim.usual.copy(), 2 * len(aim.links_s)
    weight[links:] /= len(weight) - links  # prices, of which one counts
    return Scale(inverse, weight / max(float(weight.sum()), 1e-300), base.min(axis=0))


def _heaviest_first(pieces: Pieces, groups: Groups, scale: Scale) -> Ints:
    """The order in which groups are dealt: pinned ones, then those hard to place."""
    share = (pieces.load[groups.first] + groups.node) * scale.inverse
    size = share.max(axis=1) * np.where(groups.size > 1, HARDER, 1.0)
    pinned = pieces.fixed[groups.first] >= 0
    return np.lexsort((-size, ~pinned))


@compiled
def _deal(
    pieces: Pieces,
    groups: Groups,
    space: Space,
    state: State,
    order: Ints,
    scale: Scale,
    node: int,
) -> int:
    """Give every group to where loads rise the least; returns one that has no room, or -1."""
    nothing, height = np.zeros(state.load.shape[1]), np.empty(len(state.load))
    for device in range(len(height)):
        height[device] = _height(state.load[device], nothing, nothing, scale)
    for group in order:
        first, size = groups.first[group], groups.size[group]
        if size == 1:
            to = pieces.fixed[first]
            if to < 0:
                to = _best_device(pieces, space, state, first, scale, height)
            if to < 0 or not fits(space, state, to, pieces.need[first]):
                return int(group)
            _put(pieces, space, state, first, to)
            height[to] = _height(state.load[to], nothing, nothing, scale)
            continue
        place = _best_node(pieces, groups, space, state, group, scale, height, node)
        if place < 0:
            return int(group)
        rise = _rises(pieces, groups, space, state, group, place, scale, height, node)
        for at in range(node):
            add(state, place * node + at, groups.node[group], 1.0)
        ranked = _order(rise, node)
        for at in range(size):
            to = place * node + ranked[at]
            if not fits(space, state, to, pieces.need[first + at]):
                return int(group)  # devices may share what was left
            _put(pieces, space, state, first + at, to)
        for at in range(node):
            device = place * node + at
            height[device] = _height(state.load[device], nothing, nothing, scale)
    return -1


@inner
def _best_device(
    pieces: Pieces, space: Space, state: State, piece: int, scale: Scale, height: Floats
) -> int:
    nothing = np.zeros(state.load.shape[1])
    best, to = np.inf, -1
    for device in range(len(height)):
        if fits(space, state, device, pieces.need[piece]):
            found = _height(state.load[device], pieces.load[piece], nothing, scale)
            if found - height[device] < best:
                best, to = found - height[device], device
    return to


@inner
def _best_node(
    pieces: Pieces,
    groups: Groups,
    space: Space,
    state: State,
    group: int,
    scale: Scale,
    height: Floats,
    node: int,
) -> int:
    best, to = np.inf, -1
    for place in range(len(height) // node):
        if in_node(groups, state, group, place, node):
            continue
        rise = _rises(pieces, groups, space, state, group, place, scale, height, node)
        order, total = _order(rise, node), 0.0
        for at in range(groups.size[group]):
            total += rise[order[at]]
        total += rise[node]
        if total < best:
            best, to = total, place
    return to


@inner
def _order(values: Floats, count: int) -> Ints:
    """The first `count` values from the least to the largest; equal ones as they were."""
    order = np.empty(count, np.int64)
    for value in range(count):
        at = value
        while at > 0 and values[value] < values[order[at - 1]]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = value
    return order


@inner
def _rises(
    pieces: Pieces,
    groups: Groups,
    space: Space,
    state: State,
    group: int,
    place: int,
    scale: Scale,
    height: Floats,
    node: int,
) -> Floats:
    """How much a node's loads rise with a piece on each of its devices; last, without pieces."""
    nothing, rise = np.zeros(state.load.shape[1]), np.empty(node + 1)
    piece, rise[node] = groups.first[group], 0.0
    for at in range(node):
        device = place * node + at
        alone = _height(state.load[device], nothing, groups.node[group], scale)
        rise[node] += alone - height[device]
        rise[at] = np.inf
        if fits(space, state, device, pieces.need[piece]):
            load = state.load[device]
            rise[at] = _height(load, pieces.load[piece], groups.node[group], scale) - alone
    return rise


@inner
def _height(load: Floats, more: Floats, node: Floats, scale: Scale) -> float:
    """Every load over what is usual, to the eighth power: what is scarce counts most."""
    total = 0.0
    for way in range(len(load)):
        share = (load[way] - scale.less[way] + more[way] + node[way]) * scale.inverse[way]
        square = max(share, 0.0) ** 2
        total += scale.weight[way] * (square * square) ** 2
    return total


@inner
def _put(pieces: Pieces, space: Space, state: State, piece: int, device: int) -> None:
    state.owner[piece] = device
    add(state, device, pieces.load[piece], 1.0)
    take(space, state, device, pieces.need[piece], 1.0)
