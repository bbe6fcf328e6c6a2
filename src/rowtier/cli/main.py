"""`rowtier`: the commands, and how errors leave the program.

Exit codes: 0 done, 2 a mistake the user can fix or a machine that lacks something, 3 no placement
fits, 130 stopped (Ctrl-C or SIGTERM); 1 is a bug in rowtier (`doctor` found one, too), or a reader
of its output that left.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from rowtier import __version__
from rowtier.cli import (
    apply,
    calibrate,
    compare,
    diff,
    doctor,
    drift,
    explain,
    export,
    plan,
    predict,
    profile,
    replay,
    report,
    show,
    stops,
    streams,
    synth,
    trouble,
    validate,
    verify,
)
from rowtier.errors import InvalidError, Mistake, RowtierError
from rowtier.foreign import ELLIPSIS, shown, spelled

MAX_LINES = 50  # of an error on a terminal
LONGEST_USAGE = 1000
LONGEST_VALUE = 1000  # in an error for machines

app = typer.Typer(
    name="rowtier",
    help="Decide where every row of a recommendation model's embedding tables lives.",
    epilog="Exit codes: 0 done, 2 a mistake that you can fix or something that the machine lacks, "
    "3 no placement fits, 130 stopped by Ctrl-C or SIGTERM.",
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
app.command("drift", rich_help_panel="3 Answers")(drift.command)
app.command("report", rich_help_panel="3 Answers")(report.command)
app.command("export", rich_help_panel="4 Files")(export.command)
app.command("apply", rich_help_panel="4 Files")(apply.command)
app.command("validate", rich_help_panel="4 Files")(validate.command)
app.command("doctor", rich_help_panel="5 Machine")(doctor.command)


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
    """Run the command line; what goes wrong becomes a message and an exit code."""
    try:
        streams.prepare()
        with stops.listening(), trouble.told():
            code = _run()
            streams.finish()
    except RowtierError as error:
        _say(error)
        code = error.exit_code
    except stops.Stopped as stopped:
        stops.leave(stopped)
    except BrokenPipeError:
        # The reader (`| head`) went away: leave quietly, as other tools do.
        code = 1
    if code:
        sys.exit(code)


def _say(error: RowtierError) -> None:
    if "--json" in sys.argv and not isinstance(error, streams.LostOutputError):
        show.as_json({"error": _facts(error)})
        streams.finish()
        return
    entries = f"error: {error}".split("\n  ")
    if len(entries) > MAX_LINES:
        more = len(entries) - MAX_LINES
        entries = [*entries[:MAX_LINES], f"… and {more} more: --json lists them all"]
    show.error(entries)


def _run() -> int:
    """Run; what pydantic or the parser of options refuses is a user's mistake like any other."""
    try:
        code = app(standalone_mode=False)
    except Exception as error:
        if type(error).__name__ == "ValidationError":
            details = error.errors(include_url=False)  # type: ignore[attr-defined]
            said = [
                Mistake(".".join(map(str, d["loc"])), d.get("input"), d["msg"]) for d in details
            ]
            raise InvalidError("options", said) from None
        if not hasattr(error, "format_message"):
            raise
        return _usage(error)
    return code if isinstance(code, int) else 0


def _option(detail: dict[str, Any]) -> Mistake:
    return Mistake(".".join(map(str, detail["loc"])), detail.get("input"), detail["msg"])


def _usage(error: Any) -> int:
    """What the parser of options says, with the words of others made safe to show."""
    from typer.rich_utils import rich_format_error

    message = shown(error.format_message(), LONGEST_USAGE)
    if "--json" in sys.argv:
        show.as_json({"error": {"type": "UsageError", "message": message}})
    else:
        error.format_message = lambda: message
        rich_format_error(error)
    streams.finish()
    return int(error.exit_code)


def _facts(error: RowtierError) -> dict[str, object]:
    facts: dict[str, object] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, InvalidError):
        facts["file"] = error.source
        facts["mistakes"] = [
            {
                "key": m.key,
                "value": _whole_value(m.value),
                "accepted": m.accepted,
            }
            for m in error.mistakes
        ]
    return facts


def _whole_value(value: object) -> str | None:
    """A value for machines, cut only if nobody would want all of it."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_VALUE else value[:LONGEST_VALUE] + ELLIPSIS
    return None if value is None else spelled(value, LONGEST_VALUE)
