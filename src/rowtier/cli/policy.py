"""`--on-out-of-range`, for every command that turns ids into rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from rowtier.tables import OutOfRange

POLICIES = ("error", "clip", "drop", "hash")

OutOfRangeOption = Annotated[
    str | None,
    typer.Option(
        help="For all tables: what to do with an id that has no row: error, clip, drop, hash. "
        "Default: what each table says."
    ),
]


def checked_policy(text: str | None) -> OutOfRange | None:
    """The policy that was asked for, or an error that lists all."""
    from rowtier.errors import UserError

    if text is not None and text not in POLICIES:
        raise UserError(f"--on-out-of-range {text!r}: accepted are {', '.join(POLICIES)}")
    return cast("OutOfRange | None", text)
