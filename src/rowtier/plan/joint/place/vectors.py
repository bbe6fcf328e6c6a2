"""Pieces as vectors, and what devices have of them while they are packed.

A piece keeps its device busy with ids that come (by level of links), sums that go (by level) and
memory (by price: which memory a row lies in is open until memory is filled, `rows.py`). A device
asks and receives as much as all others, so at a level its links take max(mean ids, ids) +
max(mean sums, sums); its memory takes as long as at the worst price. A step takes the largest of
each over all devices. Pieces of a group lie on several devices of one node, and what the node does
for them is added to all of its devices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rowtier.jit import compiled, inner
from rowtier.profile.curve import Floats, Ints


class Pieces(NamedTuple):
    """What is packed; of a group, piece after piece."""

    load: Floats  # piece, way: seconds of ids by level, of sums by level, of memory by price
    need: Floats  # piece, kind: bytes in whichever memory, then in each tier that a pin names
    unit: Floats  # piece, way: what its narrowest columns ask for; 0 if columns stay
    unit_need: Floats
    width: Ints  # in units of columns
    next: Ints  # the next piece of a ring that columns may go to, or -1
    fixed: Ints  # the device that it must be on, or -1


class Groups(NamedTuple):
    """Pieces that lie on devices of one node; most are groups of one piece."""

    first: Ints  # piece
    size: Ints
    node: Floats  # group, way: what each device of the node does for them
    key: Ints  # the first group that lies in another node than this; such groups stand together


class Space(NamedTuple):
    """Bytes that devices have: of their own, and in what the devices of a group share."""

    own: Floats  # device, kind
    pool: Floats  # group, kind
    group: Ints  # of each device


class Aim(NamedTuple):
    """What no device should exceed."""

    mean: Floats  # of ids and sums by level: less than that gains nothing
    links_s: Floats  # by level
    memory_s: float
    scale_s: float  # of an excess that is large
    slack_s: float  # of memory, that spreading levels afterwards
    usual: Floats  # by way: what a device has of it, about


class Packed(NamedTuple):
    """Where pieces lie, and what devices are busy with."""

    owner: Ints
    width: Ints
    load: Floats  # device, way
    free_bytes: Floats  # of each device, in whichever memory; of what is shared, its part


class State(NamedTuple):
    """What devices have while pieces are packed."""

    owner: Ints
    load: Floats  # device, way
    used: Floats  # device, kind: bytes
    spilt: Floats  # group, kind: bytes of what is shared
    energy: Floats  # of each device: what it exceeds its aims by


@inner
def add(state: State, device: int, load: Floats, sign: float) -> None:
    """Add a load to a device, or take it away."""
    for way in range(len(load)):
        state.load[device, way] += sign * load[way]


@inner
def _spill(space: Space, device: int, kind: int, used: float) -> float:
    """Bytes that a device needs of what it shares."""
    return float(max(0.0, used - space.own[device, kind]))


@inner
def fits(space: Space, state: State, device: int, need: Floats) -> bool:
    """Whether a device has room for so many bytes more."""
    group = space.group[device]
    for kind in range(len(need)):
        used = state.used[device, kind]
        more = _spill(space, device, kind, used + need[kind]) - _spill(space, device, kind, used)
        if more > 0 and state.spilt[group, kind] + more > space.pool[group, kind]:
            return False
    return True


@inner
def take(space: Space, state: State, device: int, need: Floats, sign: float) -> None:
    """Take bytes of a device, or give them back."""
    group = space.group[device]
    for kind in range(len(need)):
        used = state.used[device, kind]
        state.spilt[group, kind] -= _spill(space, device, kind, used)
        state.spilt[group, kind] += _spill(space, device, kind, used + sign * need[kind])
        state.used[device, kind] = used + sign * need[kind]


@inner
def in_node(groups: Groups, state: State, group: int, place: int, node: int) -> bool:
    """Whether another group with the same key is in a node already."""
    other = groups.key[group]
    while other < len(groups.key) and groups.key[other] == groups.key[group]:
        owner = state.owner[groups.first[other]]
        if other != group and owner >= 0 and owner // node == place:
            return True
        other += 1
    return False


@inner
def links_s(
    load: Floats, device: int, change: Floats, sign: float, level: int, mean: Floats
) -> float:
    """What a level's links take of a device whose load changes by so much, in some direction."""
    sums = len(mean) // 2 + level
    asked_s = load[device, level] + sign * change[level]
    sent_s = load[device, sums] + sign * change[sums]
    return float(max(asked_s, mean[level]) + max(sent_s, mean[sums]))


@compiled
def peaks(load: Floats, aim: Aim) -> Floats:
    """The highest links by level and the longest memory, but not less than the aims."""
    levels, nothing, total = len(aim.links_s), np.zeros(load.shape[1]), 0.0
    found = np.empty(levels + 1)
    for level in range(levels):
        found[level] = aim.links_s[level]
    found[levels] = -np.inf
    for device in range(len(load)):
        for level in range(levels):
            busy_s = links_s(load, device, nothing, 1.0, level, aim.mean)
            found[level] = max(found[level], busy_s)
        memory_s = -np.inf
        for way in range(2 * levels, load.shape[1]):
            memory_s = max(memory_s, load[device, way])
        found[levels] = max(found[levels], memory_s)
        total += memory_s
    mean_s = total / len(load)
    found[levels] = max(found[levels] - aim.slack_s, mean_s, aim.memory_s)
    return found
