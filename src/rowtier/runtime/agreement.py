"""All ranks are made of the same plan, options and versions, or none is made.

Each rank lists what it was given, field by field, and ranks compare a digest of the lists. If
those differ, they compare fields, and all raise an error that names the first one that differs.
A rank that refuses what it was given says so too, so that the others do not wait for it.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import xxhash

import rowtier
from rowtier.errors import MismatchError, RowtierError, UserError
from rowtier.files import fingerprint_of
from rowtier.plan.plan import Plan
from rowtier.runtime.exchange.board import Board, in_time
from rowtier.runtime.exchange.neighbours import told
from rowtier.runtime.exchange.troubles import LostRankError, difference, first_line
from rowtier.runtime.exchange.watchdog import Patience, RankWatch
from rowtier.runtime.exchange.wire import Wire
from rowtier.runtime.groups import Group
from rowtier.runtime.kernels.side import ComputeSide
from rowtier.runtime.options import RunOptions
from rowtier.runtime.store.world import World

_MADE = "made"
_CALL = "making the embeddings"


class Prepared(NamedTuple):
    """What one rank was given, checked on its own."""

    plan: Plan
    groups: Sequence[Group]
    options: RunOptions
    world: World
    side: ComputeSide


def prepared_together(
    group: dist.ProcessGroup | None, patience: Patience, kind: str, prepare: Callable[[], Prepared]
) -> tuple[Prepared, RankWatch | None]:
    """What this rank was given, if all ranks were given the same; all of them must call this."""
    if group is None and dist.is_available() and dist.is_initialized():
        group = dist.group.WORLD
    if group is None:
        return prepare(), None
    if dist.get_backend(group) == "nccl":
        raise RowtierError(
            "rows are exchanged in host memory, which nccl cannot carry: start the job with "
            'init_process_group("cpu:gloo,cuda:nccl")'
        )
    patience = patience if 0 < patience.warn_s <= patience.abort_s else Patience()
    watch = RankWatch(Board.of(group), dist.get_rank(group), patience)
    try:
        found = prepare()
    except UserError as error:
        _meet(group, watch, Said(error=str(error)))
        raise
    _meet(group, watch, Said(fields_of(found, kind)))
    return found, watch


def versions() -> dict[str, str]:
    """What must be of the same version on all ranks, for messages and numbers to be the same."""
    return {
        "rowtier": rowtier.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
    }


def fields_of(found: Prepared, kind: str) -> dict[str, Any]:
    """Everything that must be the same on all ranks when a module is made, by name.

    Folders of tiers, devices, `local_world_size` and the watchdog's times may differ, and so may
    what a plan says of how it was made.
    """
    options = found.options
    fields: dict[str, Any] = {f"{name} version": said for name, said in versions().items()}
    fields |= {"byte order": sys.byteorder, "class": kind}
    fields |= plan_fields(found.plan)
    fields |= {
        "gradients": options.gradients,
        "ids": options.ids,
        "seed": options.seed,
        "init": "none" if options.init is None else "given",
        "rows": options.rows,
        "counters": options.counters,
        "heat_counts": options.heat_counts or 0,
        "deltas": options.deltas,
        "kind of device": found.side.device.type,
        "tiers on disk": ", ".join(sorted(options.tiers)) or "none",
    }
    for optimizer, tables in found.groups:
        for table in tables:
            fields[f"optimizer of table {table!r}"] = type(optimizer).__name__
            for name, value in optimizer.numbers().items():
                fields[f"{name} of table {table!r}"] = str(value)
    return fields


def plan_fields(plan: Plan) -> dict[str, Any]:
    """What must be the same of a plan on all ranks, by name."""
    fields: dict[str, Any] = {
        "cluster": f"{plan.cluster.name!r} ({plan.cluster.fingerprint})",
        "tables of the plan": ", ".join(table.name for table, _ in plan),
    }
    for table, bands in plan:
        name = repr(table.name)
        for field, value in table.model_dump(mode="json", by_alias=True).items():
            if field != "name":
                fields[f"{field} of table {name}"] = str(value)
        placed = [band.to_data() for band in bands]
        fields[f"bands of table {name}"] = f"{len(placed)} ({fingerprint_of(placed)})"
        if plan.order is not None:
            order = np.ascontiguousarray(plan.order[table.name])
            fields[f"order of rows of table {name}"] = fingerprint_of(table.name, order)
        if (words := plan.vocabularies.get(table.name)) is not None:
            fields[f"vocabulary of table {name}"] = words.fingerprint
    return fields


@dataclass(frozen=True)
class Said:
    """What a rank tells the others: its fields, or why it has none."""

    fields: Mapping[str, Any] | None = None
    error: str = ""

    @property
    def digest(self) -> int:
        """One number for all of it."""
        text = json.dumps(self.fields) if self.fields is not None else ""
        return xxhash.xxh3_64_intdigest(text.encode()) >> 2 | bool(self.error) << 62


def _meet(group: dist.ProcessGroup, watch: RankWatch, own: Said) -> None:
    """Compare with all ranks; raise on all of them, unless all say the same."""
    _compare(group, _Gathering(group, watch).run(own.digest), own, "make its embeddings")


def agree_on(wire: Wire, own: Said, what: str) -> None:
    """Compare with all ranks in the middle of training, for something that all do or none.

    Messages have stamps by then, so a rank that makes another call is named at once.
    """
    if wire.world.group is not None:
        digests = wire.swap_fixed(np.full((wire.world.size, 1), own.digest, dtype=np.int64))
        with wire.guarded:
            _compare(wire.world.group, digests[:, 0].tolist(), own, what)


def _compare(group: dist.ProcessGroup, digests: Sequence[int], own: Said, what: str) -> None:
    if len(set(digests)) == 1:
        return
    said: list[Said] = told(group, len(digests), own)
    if own.error:
        return  # its own error says more
    for rank, one in enumerate(said):
        if one.error:
            raise MismatchError(f"rank {rank} cannot {what}, so no rank can: {one.error}")
    found = difference({rank: one.fields or {} for rank, one in enumerate(said)})
    raise MismatchError(found or "ranks were given different things; see docs/training.md")


class _Gathering:
    """Waits for the digests of all ranks, and lets the watchdog see for whom."""

    def __init__(self, group: dist.ProcessGroup, watch: RankWatch):
        self._group, self._watch = group, watch
        self.waiting_since: float | None = None

    def waited_for(self) -> list[int]:
        """The ranks that have not come yet."""
        board, ranks = self._watch.board, range(dist.get_world_size(self._group))
        return in_time(lambda: board.silent(_MADE, ranks), [])

    def run(self, digest: int) -> list[int]:
        """The digests of all ranks, in their order."""
        watch, patience_s = self._watch, self._watch.patience.abort_s
        watch.board.say(_MADE, watch.rank, 1)
        size = dist.get_world_size(self._group)
        found = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(size)]
        own = torch.tensor([digest], device="cpu")
        before, began = watch.enter(_CALL), time.monotonic()
        self.waiting_since = began
        watch.waits.append(self)
        try:
            work = dist.all_gather(found, own, group=self._group, async_op=True)
            assert work is not None, "ranks of a group talk to members of it"
            work.wait(timedelta(seconds=patience_s))
        except RuntimeError as error:
            missing = self.waited_for()
            if not missing:
                raise
            waited = f"for {time.monotonic() - began:.0f} s"
            raise LostRankError(
                f"rank {watch.rank} is {_CALL}, and {waited} did not meet {watch.where(missing)}: "
                f"all ranks must make them together ({first_line(error)})"
            ) from error
        finally:
            watch.waits.remove(self)
            watch.leave(before, None)
        return [int(one) for one in found]
