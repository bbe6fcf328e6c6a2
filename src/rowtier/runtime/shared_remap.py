"""The remap tables of a plan, once on every machine."""

from __future__ import annotations

import socket
from typing import Any

from rowtier.errors import UserError
from rowtier.plan.plan import Plan
from rowtier.plan.remap import Remapper
from rowtier.runtime.exchange.neighbours import told
from rowtier.runtime.exchange.wire import Wire


def shared_remapper(plan: Plan, wire: Wire, rows: bool) -> Remapper:
    """One set of remap tables per node: its first rank makes them, the others map them."""
    world = wire.world
    if world.group is None:
        remapper = Remapper.of(plan, rows=rows)
        remapper.forget()
        return remapper
    return _join(plan, wire, rows)


def _join(plan: Plan, wire: Wire, rows: bool) -> Remapper:
    world = wire.world
    names = _everyones(wire, socket.gethostname())
    first = names.index(names[world.rank])  # the first rank on this machine
    mine: Remapper | None = None
    said: Any = None
    if first == world.rank:
        try:
            mine = Remapper.of(plan, rows=rows)
            said = mine.__reduce__()[1]
        except UserError as error:
            said = error
    made = _everyones(wire, said)
    for found in made:
        if isinstance(found, UserError):
            raise found
    if mine is None:
        mine = Remapper(*made[first], owner=False)
    wire.barrier()
    mine.forget()
    return mine


def _everyones(wire: Wire, value: Any) -> list[Any]:
    """What all ranks give, in their order."""
    group = wire.world.group
    assert group is not None
    with wire.guarded:
        return told(group, wire.world.size, value)
