"""The inner loops of replay: who looked up which rows first, and what that sends to whom.

Devices are taken in turn, so one number a row, its last reader, tells at once whether a
lookup is the first of its device, of its node and so on up to the step: a group has seen the
row before if the last reader is one of it. Counting costs one visit to the row; bytes follow
from the counts, class by class.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowtier.cost.tree import Tree
from rowtier.evaluate.homes import FACTS, SEEN, WORK
from rowtier.evaluate.replay_tree import Floats, Ints, distance, has, owner
from rowtier.jit import compiled

(
    LEVEL, POSITION, GATEWAY, TURN, ONCE, STAGED, ROWS, DENSE, COPIES, WEIGHT, ASKED, ID,
    FIRST_TIER, FIRST, TIER, UPDATE, FETCH,
) = range(len(FACTS))  # fmt: skip
LOOK, ASK, SERVE, RENEW, COPY = range(len(WORK))
IDS, FORWARD, SYNC, SYNC_IDS = range(4)  # the flows that are counted
SENT, RECEIVED = range(2)
_MASK = SEEN - 1


@compiled
def count_lookups(
    rows: Ints,
    lengths: Ints,
    ragged: bool,
    first_sample: int,
    samples: int,
    batch: int,
    first_reader: int,
    shape: Any,
    state: NDArray[np.int32],
    facts: Ints,
    counts: Ints,
    distinct: Ints,
    away: NDArray[np.bool_],
) -> tuple[int, int]:
    """Count the lookups of samples of a step.

    Returns how many rows the profile never saw, and how many lookups are on those.
    `counts[layer, class, device, i]` are lookups that were the first of no group (i = 0), or
    of groups up to level i − 1. `first_reader` is the number of the step's first device
    among the readers of all steps. `away[sample]` says that some row lies elsewhere.
    """
    sizes, layers = shape.sizes, state.shape[1] - 1
    levels = len(sizes)
    starts = np.empty(levels, dtype=np.int64)
    device, until, at, unseen, unseen_lookups = -1, -1, 0, 0, 0
    reader = np.int32(0)
    for index in range(samples):
        sample = first_sample + index
        if sample >= until:
            device = sample // batch
            until = (device + 1) * batch
            reader = np.int32(first_reader + device)
            for level in range(levels):
                starts[level] = first_reader + device // sizes[level] * sizes[level]
        stop = at + (lengths[index] if ragged else 1)
        while at < stop:
            row = rows[at]
            at += 1
            last = state[row, 0]
            fresh = 0
            if last != reader:
                fresh = 1
                while fresh < levels and last < starts[fresh]:
                    fresh += 1
                state[row, 0] = reader
            distinct[device, fresh] += 1
            for layer in range(layers):
                code = state[row, 1 + layer]
                if code < 0:
                    continue
                kind = code & _MASK
                counts[layer, kind, device, fresh] += 1
                if layer == 0 and code < SEEN:
                    unseen_lookups += 1
                    unseen += fresh == levels
                if not away[index]:
                    size = sizes[facts[layer, kind, LEVEL]]
                    away[index] = facts[layer, kind, POSITION] != device % size
    return unseen, unseen_lookups


@compiled
def count_sums(
    rows: Ints,
    lengths: Ints,
    ragged: bool,
    first_sample: int,
    samples: int,
    batch: int,
    bag: int,
    shape: Any,
    state: NDArray[np.int32],
    facts: Ints,
    inside: NDArray[np.bool_],
    staged: bool,
    seen: Ints,
    sums: Ints,
    extra: NDArray[np.bool_],
) -> None:
    """Count the partial sums that consecutive samples need, per holder and level.

    The last level is home: sums that a device has for itself.

    A holder, or with `staged` a group, sends one per bag that looks anything up there.
    `seen` remembers for every level's groups, then the holders, the last bag; bags are
    numbered from `bag`. `extra` marks levels that add up sums for readers beyond.
    """
    at, layers, until, device = 0, state.shape[1] - 1, -1, -1
    holders, links = np.empty((2, *inside.shape), dtype=np.int64)
    own = len(seen) - len(shape.anchor)
    for index in range(samples):
        if first_sample + index >= until:
            device = (first_sample + index) // batch
            until = (device + 1) * batch
            _find_holders(shape, device, facts, inside, holders, links)
        stop = at + (lengths[index] if ragged else 1)
        while at < stop:
            row = rows[at]
            at += 1
            for layer in range(layers):
                code = state[row, 1 + layer]
                if code < 0:
                    continue
                holder = holders[layer, code & _MASK]
                if holder < 0 or seen[own + holder] == bag + index:
                    continue
                seen[own + holder] = bag + index
                if holder == device:
                    sums[SENT, device, -1] += 1
                elif staged:
                    _send_up(shape, device, holder, bag + index, seen, sums, extra)
                else:
                    link = links[layer, code & _MASK]
                    sums[SENT, holder, link] += 1
                    sums[RECEIVED, device, link] += 1


@compiled
def _find_holders(
    shape: Any, device: int, facts: Ints, inside: NDArray[np.bool_], holders: Ints, links: Ints
) -> None:
    """Who sends a device the sums of each class, by which links; −1 where nobody does."""
    for layer in range(inside.shape[0]):
        for kind in range(inside.shape[1]):
            holders[layer, kind] = -1
            if inside[layer, kind]:
                fact = facts[layer, kind]
                holder = owner(shape, fact[LEVEL], device, fact[POSITION])
                holders[layer, kind] = holder
                links[layer, kind] = distance(shape, device, holder) - 1


@compiled
def _send_up(
    shape: Any,
    device: int,
    holder: int,
    bag: int,
    seen: Ints,
    sums: Ints,
    extra: NDArray[np.bool_],
) -> None:
    """A holder's sum, added up with those of its groups on the way to the reader."""
    devices, anchor = shape.sizes[-1], shape.anchor[holder]
    far, level = distance(shape, device, holder), shape.attached[holder]
    if level > 0:  # a server hands its sum to a device of its group, or to the reader itself
        size = shape.sizes[level]
        target = device if level == far else anchor // size * size + device % size
        sums[SENT, holder, level - 1] += 1
        sums[RECEIVED, target, level - 1] += 1
        extra[level - 1] |= level < far
    first_group = 0
    for below in range(level):
        first_group += devices // shape.sizes[below]
    while level < far:
        size = shape.sizes[level]
        group = anchor // size
        if seen[first_group + group] == bag:
            return
        seen[first_group + group] = bag
        source, target = group * size + device % size, device
        if level + 1 < far:
            above = shape.sizes[level + 1]
            target = anchor // above * above + device % above
        if source != target:
            sums[SENT, source, level] += 1
            sums[RECEIVED, target, level] += 1
            extra[level] |= level + 1 < far
        first_group += devices // size
        level += 1


def seen_slots(tree: Tree) -> int:
    """How many entries `count_sums` needs for what it has seen."""
    groups = sum(tree.devices // size for size in tree.sizes)
    return groups + tree.holders


@compiled
def add_counted(
    shape: Any,
    counts: Ints,
    facts: Ints,
    costs: Floats,
    training: bool,
    served: Floats,
    read: Floats,
    written: Floats,
    flows: Floats,
    work: Floats,
) -> None:
    """Add what the counts of one layer mean in lookups and bytes, per holder."""
    sizes = shape.sizes
    levels, devices = len(sizes) - 1, counts.shape[1]
    up = np.zeros((levels + 1, devices))
    for kind in range(len(facts)):
        fact, cost = facts[kind], costs[kind]
        if not counts[kind].any():
            continue
        up[:] = 0
        touched = 0
        for device in range(devices):
            fresh = counts[kind, device]
            lookups = fresh.sum()
            if lookups == 0:
                continue
            holder = owner(shape, fact[LEVEL], device, fact[POSITION])
            served[holder, fact[TIER]] += lookups
            asks = lookups - fresh[0] * fact[ONCE]
            work[device] += lookups * cost[LOOK] + asks * cost[ASK]
            if fact[STAGED]:
                _pass_on(shape, fact, cost, device, holder, fresh, flows, work)
            else:
                work[holder] += asks * cost[SERVE]
                _ask(shape, fact, device, holder, asks, flows)
            needed = fresh[fact[LEVEL] + 1 :].sum()  # by nobody of the group before
            read[holder, fact[FIRST_TIER]] += needed * fact[FIRST]
            read[holder, fact[TIER]] += needed * fact[FETCH]
            for level in range(fact[LEVEL] + 1, levels + 1):
                up[level, device // sizes[level - 1]] += fresh[level:].sum()
            touched += fresh[levels + 1]
        if training:
            _update(shape, fact, cost, touched, read, written, work)
            if not fact[DENSE]:
                _sync(shape, fact, cost, up, touched, flows, work)


@compiled
def _ask(shape: Any, fact: Ints, device: int, holder: int, asks: int, flows: Floats) -> None:
    if holder == device:
        return
    link = distance(shape, device, holder) - 1
    flows[IDS, SENT, device, link] += asks * fact[ASKED]
    flows[IDS, RECEIVED, holder, link] += asks * fact[ASKED]
    if fact[ROWS]:
        flows[FORWARD, SENT, holder, link] += asks * fact[WEIGHT]
        flows[FORWARD, RECEIVED, device, link] += asks * fact[WEIGHT]


@compiled
def _pass_on(
    shape: Any,
    fact: Ints,
    cost: Floats,
    device: int,
    holder: int,
    fresh: Ints,
    flows: Floats,
    work: Floats,
) -> None:
    """Rows go to each group that needs them first: from the holder, or a group's gateway."""
    sizes = shape.sizes
    for level in range(1, fact[LEVEL] + 1):
        needed = fresh[level:].sum()
        child, group = device // sizes[level - 1], device // sizes[level]
        source = holder
        if not has(shape, level, group, holder):
            source = group * sizes[level] + fact[GATEWAY] % sizes[level]
        work[source] += needed * cost[SERVE]
        if needed == 0 or has(shape, level - 1, child, source):
            continue
        target = child * sizes[level - 1] + fact[GATEWAY] % sizes[level - 1]
        flows[IDS, SENT, target, level - 1] += needed * fact[ASKED]
        flows[IDS, RECEIVED, source, level - 1] += needed * fact[ASKED]
        flows[FORWARD, SENT, source, level - 1] += needed * fact[WEIGHT]
        flows[FORWARD, RECEIVED, target, level - 1] += needed * fact[WEIGHT]


@compiled
def _update(
    shape: Any,
    fact: Ints,
    cost: Floats,
    rows: float,
    read: Floats,
    written: Floats,
    work: Floats,
) -> None:
    size = shape.sizes[fact[LEVEL]]
    for first in range(0, shape.sizes[-1], size):
        holder = owner(shape, fact[LEVEL], first, fact[POSITION])
        read[holder, fact[TIER]] += rows * fact[UPDATE]
        written[holder, fact[TIER]] += rows * fact[UPDATE]
        work[holder] += rows * cost[RENEW]


@compiled
def _sync(
    shape: Any, fact: Ints, cost: Floats, up: Floats, down: float, flows: Floats, work: Floats
) -> None:
    """Copies meet level by level: gradients go to one that adds them up, and the total back.

    `up[j]` are rows that each level-(j−1) group has gradients for, `down` those of any. Inside
    a group one copy speaks for the others, the one that added up below. Which child has the
    one that adds up follows from the row's turn, one digit a level, so that over many rows
    all copies do equally often.
    """
    sizes, scope, turn = shape.sizes, fact[LEVEL], fact[TURN]
    speaker = 0  # its first device, counted from the first one of its group
    for level in range(scope + 1, len(sizes)):
        below = sizes[level - 1]
        fan = sizes[level] // below
        digit, turn = turn % fan, turn // fan
        for group in range(sizes[-1] // sizes[level]):
            chosen, added = group * fan + digit, 0.0
            for child in range(group * fan, (group + 1) * fan):
                if child != chosen:
                    other = owner(shape, scope, child * below + speaker, fact[POSITION])
                    _add_gradients(fact, other, level - 1, up[level, child], down, flows)
                    work[other] += (up[level, child] + down) * cost[COPY]
                    added += up[level, child]
            adder = owner(shape, scope, chosen * below + speaker, fact[POSITION])
            _add_gradients(fact, adder, level - 1, (fan - 1) * down, added, flows)
            work[adder] += ((fan - 1) * down + added) * cost[COPY]
        speaker += digit * below


@compiled
def _add_gradients(
    fact: Ints, holder: int, link: int, sent: float, received: float, flows: Floats
) -> None:
    flows[SYNC, SENT, holder, link] += sent * fact[WEIGHT]
    flows[SYNC, RECEIVED, holder, link] += received * fact[WEIGHT]
    if not fact[DENSE]:
        flows[SYNC_IDS, SENT, holder, link] += sent * fact[ID]
        flows[SYNC_IDS, RECEIVED, holder, link] += received * fact[ID]


@compiled
def add_dense(
    shape: Any, rows: Ints, facts: Ints, costs: Floats, flows: Floats, work: Floats
) -> None:
    """Add what every step pays for copies that are kept equal without asking."""
    up = np.empty((len(shape.sizes), shape.sizes[-1]))
    for kind in range(len(facts)):
        if facts[kind, DENSE]:
            up[:] = rows[kind]
            _sync(shape, facts[kind], costs[kind], up, rows[kind], flows, work)
