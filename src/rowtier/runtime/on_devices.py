"""What a plan or a call asks for that rows on a device do not do yet: refused by name."""

from __future__ import annotations

from rowtier.errors import UserError
from rowtier.plan.plan import Plan
from rowtier.runtime.kernels.side import ComputeSide
from rowtier.runtime.options import RunOptions

_HOST = 'make the embeddings with device="cpu", or'


def refuse_on_device(plan: Plan, options: RunOptions, side: ComputeSide) -> None:
    """Refuse a plan or options that only host memory can do, before anything is made."""
    if side.on_host:
        return
    if plan.cluster.servers:
        names = ", ".join(repr(server.name) for server in plan.cluster.servers)
        raise UserError(
            f"device {side.device}: ranks of servers ({names}) have no such device, and all ranks "
            f"compute on one kind; {_HOST} plan for the cluster without servers"
        )
    for table, _ in plan:
        if table.grows:
            raise UserError(
                f"device {side.device}: table {table.name!r} has `ids: grow`, and its rows are "
                f"given away and taken back in host memory only; {_HOST} say `ids: hash` for the "
                "table in tables.yaml and plan again"
            )
    if options.deltas:
        raise UserError(
            f"device {side.device}: deltas=True marks rows that change in host memory only; "
            f"{_HOST} leave deltas out and save checkpoints"
        )


def refuse_call(side: ComputeSide, call: str, way_out: str) -> None:
    """Refuse a call on a module whose rows lie on a device."""
    if not side.on_host:
        raise UserError(f"{call} on {side.device}: only rows in host memory can do that; {way_out}")
