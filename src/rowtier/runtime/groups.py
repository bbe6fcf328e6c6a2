"""Which optimizer updates which tables: what a user gives, as groups of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rowtier.errors import MismatchError, UserError
from rowtier.plan.plan import Plan
from rowtier.runtime.optim import KINDS, Optimizer
from rowtier.runtime.torch_optimizers import refusal
from rowtier.tables import Table

ByKind = Optimizer | Sequence[Optimizer] | None
Given = ByKind | Mapping[str, ByKind]
OTHERS = "*"  # of a mapping: all tables that it does not name
_SHOWN = 8


class Group(NamedTuple):
    """Tables that are updated with the same numbers."""

    optimizer: Optimizer
    tables: tuple[str, ...]


def groups_of(plan: Plan, given: Given) -> tuple[Group, ...]:
    """A group for every distinct optimizer, in the order of the plan's tables.

    The plan made room for the state of a kind, so a table's kind is fixed.
    """
    tables = [table for table, _ in plan]
    chosen = _by_name(tables, given) if isinstance(given, Mapping) else _by_kind(tables, given)
    groups: dict[Optimizer, list[str]] = {}
    for table in tables:
        groups.setdefault(chosen[table.name], []).append(table.name)
    return tuple(Group(optimizer, tuple(names)) for optimizer, names in groups.items())


def _by_name(tables: Sequence[Table], given: Mapping[str, Any]) -> dict[str, Optimizer]:
    known = {table.name: table for table in tables}
    chosen = {}
    for name, optimizer in given.items():
        if name == OTHERS:
            continue
        if name not in known:
            raise MismatchError(
                f"optimizer for table {name!r}, which the plan does not have: its tables are "
                f"{_listed(known)}; {OTHERS!r} stands for all that are not named"
            )
        _check_kinds([_checked(optimizer)], [known[name]])
        chosen[name] = optimizer
    others = [table for table in tables if table.name not in chosen]
    if not others:
        return chosen
    return chosen | _by_kind(others, given.get(OTHERS, ()))


def _by_kind(tables: Sequence[Table], given: Any) -> dict[str, Optimizer]:
    """The optimizer of every table, from one for each kind; None: the kind's defaults."""
    if given is None:
        return {table.name: KINDS[table.optimizer]() for table in tables}
    several = isinstance(given, Sequence) and not isinstance(given, str)
    listed = list(given) if several else [given]
    _check_kinds([_checked(optimizer) for optimizer in listed], tables)
    _check_once(listed, tables)
    by_kind = {optimizer.kind: optimizer for optimizer in listed}
    for kind in dict.fromkeys(table.optimizer for table in tables):
        if kind not in by_kind:
            _refuse_missing(kind, tables, listed)
    return {table.name: by_kind[table.optimizer] for table in tables}


def _checked(optimizer: object) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        raise refusal(optimizer)
    return optimizer


def _check_kinds(given: Sequence[Optimizer], tables: Sequence[Table]) -> None:
    wanted = dict.fromkeys(table.optimizer for table in tables)
    for optimizer in given:
        if optimizer.kind not in wanted:
            table = tables[0]
            raise MismatchError(
                f"{type(optimizer).__name__} was given, and the plan made room for "
                f"{', '.join(wanted)} (table {table.name!r}: optimizer: {table.optimizer}): give "
                f"{', '.join(KINDS[kind].__name__ for kind in wanted)}, or say `optimizer: "
                f"{optimizer.kind}` in tables.yaml and plan again"
            )


def _check_once(given: Sequence[Optimizer], tables: Sequence[Table]) -> None:
    seen: dict[str, Optimizer] = {}
    for optimizer in given:
        first = seen.setdefault(optimizer.kind, optimizer)
        if first is not optimizer:
            name = next(table.name for table in tables if table.optimizer == optimizer.kind)
            raise UserError(
                f"{first} and {optimizer} are both for `optimizer: {optimizer.kind}`, and a list "
                "has one for each kind: give a mapping from tables to optimizers, such as "
                f"optimizer={{{name!r}: {first}, {OTHERS!r}: {optimizer}}}"
            )


def _refuse_missing(kind: str, tables: Sequence[Table], given: Sequence[Optimizer]) -> None:
    names = [table.name for table in tables if table.optimizer == kind]
    others = ", ".join(dict.fromkeys(optimizer.kind for optimizer in given)) or "nothing"
    which = f"table{'s' if len(names) > 1 else ''} {_listed(names)}"
    raise MismatchError(
        f"no optimizer for {which}, `optimizer: {kind}`: what was given is for {others}; add "
        f"{KINDS[kind].__name__}(lr=…) (to a list, or as {OTHERS!r} to a mapping), or give None "
        "for the defaults of every kind"
    )


def _listed(names: Any) -> str:
    listed = [repr(name) for name in names]
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more
