"""The options of `rowtier plan`, each with what it says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rowtier.units import parse_bytes, parse_share

METHODS_HELP = (
    "How to place the rows: joint, recshard, recshard-milp, flexshard, sca, row-wise, "
    "row-wise-coalesced, table-wise, size, lookup or size-lookup; torchrec runs TorchRec's own "
    "planner."
)
CLUSTER_HELP = (
    "A cluster file, or a preset: recshard-16, dgx-a100-2, dgx-h100-2, gb200-nvl72, mi300x-8, "
    "torchrec-default, federated-1000, parameter-server or local."
)


def _budget(text: str) -> int:
    """Bytes that may move; nothing has no unit."""
    return 0 if text.strip() == "0" else parse_bytes(text)


ProfileOption = Annotated[Path, typer.Option(help="A profile folder.")]
ClusterOption = Annotated[str, typer.Option(help=CLUSTER_HELP)]
OutputOption = Annotated[Path, typer.Option("--output", "-o", help="The plan folder to write.")]
MethodOption = Annotated[str, typer.Option(help=METHODS_HELP)]
SplitOption = Annotated[
    bool, typer.Option("--split", help="recshard: tables may be cut over devices.")
]
ConfidenceOption = Annotated[
    float | None,
    typer.Option(
        parser=parse_share,
        metavar="SHARE",
        help="Plan for the low end of what hot rows will serve and the high end of distinct "
        "rows, at this confidence, such as 90%. On six real data sets steps were not faster "
        "for it (docs/statistics.md): for when slow steps cost more than fast ones gain.",
    ),
]
ObjectiveOption = Annotated[
    str,
    typer.Option(
        help="joint: which time of a step to make short: step, that of mean loads, or "
        "expected_max, the mean over steps, each of which waits for its own slowest device."
    ),
]
TimeLimitOption = Annotated[
    float | None,
    typer.Option(
        help="Seconds to search: joint then returns the best plan it has (without, it takes "
        "all it needs); recshard-milp and torchrec stop after 60 otherwise.",
    ),
]
ReserveOption = Annotated[
    float,
    typer.Option(
        parser=parse_share,
        metavar="SHARE",
        help="Share of every memory tier to leave free, such as 10%.",
    ),
]
ConstraintsOption = Annotated[
    Path | None,
    typer.Option(help="A file of pins, bytes to leave free and limits: docs/planning.md."),
]
ServeOption = Annotated[
    bool,
    typer.Option(
        "--serve",
        help="For a cluster that only reads: no gradients, no optimizer state, copies that "
        "never change. joint, recshard, recshard-milp and the baselines can.",
    ),
]
RowsAsOption = Annotated[
    str | None,
    typer.Option(
        "--rows-as",
        metavar="TYPE",
        help="With --serve: fp32 or fp16, the type in which rows are kept and sent there; "
        "without, the tables' own.",
    ),
]
FitOption = Annotated[
    str,
    typer.Option(
        help="What must fit into memory: rows, or all (buffers, outputs and remap tables too)."
    ),
]
OldOption = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="PLAN",
        help="The plan folder that is in use, with --move-budget: docs/living.md.",
    ),
]
MoveBudgetOption = Annotated[
    int | None,
    typer.Option(
        parser=_budget,
        metavar="BYTES",
        help="With --from: move at most so many bytes, such as 10GiB, to other holders or "
        "tiers; 0 keeps every row where it is.",
    ),
]
