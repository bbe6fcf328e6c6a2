"""Run the command line inside this process, with its exit code and what it printed."""

from __future__ import annotations

import contextlib
import io
import sys
from unittest import mock

from rowtier.cli.main import main


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `rowtier ARGUMENTS`."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        mock.patch.object(sys, "argv", ["rowtier", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return code, out.getvalue(), err.getvalue()
