"""Options that all commands share that read data: which part of it, and in which order."""

from __future__ import annotations

from typing import Annotated

import typer

POLICIES = ("error", "clip", "drop", "hash")
BATCHES = ("shuffled", "in_time_order")

BeforeOption = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE|TIME",
        help="Only the first samples: this share of them, such as 50%, or those before a value of "
        "--time, such as 2016-01-31.",
    ),
]
AfterOption = Annotated[
    str | None,
    typer.Option(
        metavar="SHARE|TIME",
        help="Skip the first samples: this share of them, such as the 50% that was profiled, or "
        "those before a value of --time.",
    ),
]
TimeOption = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="A column by which the data is sorted, of numbers, timestamps, dates or strings such "
        "as 2016-01-31; without it the order of the data counts.",
    ),
]
BatchesOption = Annotated[
    str | None,
    typer.Option(
        metavar="ORDER",
        help="Where the samples of a step come from: shuffled, drawn from anywhere in the data, or "
        "in_time_order, which follow each other. Default: what the plan was made for.",
    ),
]
OutOfRangeOption = Annotated[
    str,
    typer.Option(help="What to do with an id the table has no row for: error, clip, drop, hash."),
]


def one_of(option: str, text: str, accepted: tuple[str, ...]) -> str:
    """The word itself, if it is one of those that are accepted."""
    from rowtier.errors import UserError

    if text not in accepted:
        raise UserError(f"{option} {text!r}: accepted are {', '.join(accepted)}")
    return text
