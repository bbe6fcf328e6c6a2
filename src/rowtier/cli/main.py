"""`rowtier`: the commands, and how errors leave the program.

Exit codes: 0 done, 2 a mistake the user can mend, 3 no placement fits.
"""

from __future__ import annotations

import json
import sys
import textwrap
from typing import Annotated

import typer

from rowtier import __version__
from rowtier.cli import (
    calibrate,
    compare,
    diff,
    explain,
    export,
    plan,
    predict,
    profile,
    replay,
    report,
    synth,
    validate,
    verify,
)
from rowtier.cli.show import WIDTH
from rowtier.errors import InvalidError, Mistake, RowtierError

MAX_LINES = 50  # of an error on a terminal

app = typer.Typer(
    name="rowtier",
    help="Decide where every row of a recommendation model's embedding tables lives.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("synth", rich_help_panel="1 Data")(synth.command)
app.add_typer(profile.app, name="profile", rich_help_panel="1 Data")
app.command("calibrate", rich_help_panel="1 Data")(calibrate.command)
app.command("plan", rich_help_panel="2 Placement")(plan.command)
app.command("verify", rich_help_panel="2 Placement")(verify.command)
app.command("predict", rich_help_panel="3 Answers")(predict.command)
app.command("replay", rich_help_panel="3 Answers")(replay.command)
app.command("compare", rich_help_panel="3 Answers")(compare.command)
app.command("explain", rich_help_panel="3 Answers")(explain.command)
app.command("diff", rich_help_panel="3 Answers")(diff.command)
app.command("report", rich_help_panel="3 Answers")(report.command)
app.command("export", rich_help_panel="4 Files")(export.command)
app.command("validate", rich_help_panel="4 Files")(validate.command)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"rowtier {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; rowtier's own errors become a message and an exit code."""
    try:
        _run()
    except RowtierError as error:
        if "--json" in sys.argv:
            typer.echo(json.dumps({"error": _facts(error)}, ensure_ascii=False))
        else:
            lines = f"error: {error}".splitlines()
            if len(lines) > MAX_LINES:
                more = len(lines) - MAX_LINES
                lines = [*lines[:MAX_LINES], f"  … and {more} more: --json lists them all"]
            for line in lines:
                indent = " " * (len(line) - len(line.lstrip()) + 2)
                wrapped = textwrap.wrap(line, WIDTH, subsequent_indent=indent, drop_whitespace=True)
                typer.echo("\n".join(wrapped), err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader (`| head`) went away: leave quietly, as other tools do.
        sys.stderr.close()
        sys.exit(1)


def _run() -> None:
    """Run; what pydantic refuses in an option's value is a user's mistake like any other."""
    try:
        app()
    except ValueError as error:
        if type(error).__name__ != "ValidationError":
            raise
        details = error.errors(include_url=False)  # type: ignore[attr-defined]
        said = [Mistake(".".join(map(str, d["loc"])), d.get("input"), d["msg"]) for d in details]
        raise InvalidError("options", said) from None


def _facts(error: RowtierError) -> dict[str, object]:
    facts: dict[str, object] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, InvalidError):
        facts["file"] = error.source
        facts["mistakes"] = [
            {
                "key": m.key,
                "value": None if m.value is None else str(m.value),
                "accepted": m.accepted,
            }
            for m in error.mistakes
        ]
    return facts
