"""Options that several commands share: which part of data, in which order, beside what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from rowtier.units import parse_seconds

if TYPE_CHECKING:
    from rowtier.profile.rarefaction import Batches

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
        help="What a step is made of: shuffled, samples from anywhere in the data, or "
        "in_time_order, samples that follow each other. Default: as the plan says, and for a plan "
        "shuffled.",
    ),
]

DenseOption = Annotated[
    float | None,
    typer.Option(
        parser=parse_seconds,
        metavar="TIME",
        help="Time of the rest of the model in a step, such as 12ms: beside the share of it that "
        "the cluster file's `work: hidden` says, copies are kept equal. Default: as the plan "
        "says, and for a plan none.",
    ),
]


def checked_batches(text: str | None) -> Batches | None:
    """The order that was asked for, or an error that lists both."""
    from rowtier.errors import UserError

    if text is not None and text not in BATCHES:
        raise UserError(f"--batches {text!r}: accepted are {', '.join(BATCHES)}")
    return cast("Batches | None", text)
