"""Write the pages that follow from the code, or check that they are current.

docs/cli.md         from the commands' own help
docs/workloads.md   from the options that workloads declare
"""

from __future__ import annotations

import html
import subprocess
import sys
from pathlib import Path

from rowtier.synth.make import WORKLOADS, options_of

HERE = Path(__file__).parent
HEAD = "<!-- Written by `make docs`. Do not edit. -->\n\n"


def cli_page() -> str:
    """The command reference, made by typer."""
    command = [sys.executable, "-m", "typer", "rowtier.cli.main", "utils", "docs"]
    text = subprocess.run(
        [*command, "--name", "rowtier"], check=True, capture_output=True, text=True
    ).stdout
    return html.unescape(text.strip()) + "\n"


def workloads_page() -> str:
    """Every workload with its options."""
    lines = [
        "# Workloads",
        "",
        "`rowtier synth NAME -o FOLDER`, or `rowtier.make_workload(NAME, FOLDER, …)`. The same",
        "name, seed and options give the same bytes. What each one assumes, and why, stands in",
        "`src/rowtier/synth/README.md` and at the top of the workload's own file there.",
    ]
    for name, about in WORKLOADS.items():
        lines += ["", f"## {name}", "", f"{about[0].upper()}{about[1:]}.", ""]
        lines += ["| option | default | accepted | |", "|---|---|---|---|"]
        for option in options_of(name).values():
            flag = option.name.replace("_", "-")
            default = "" if option.default is None else option.default
            lines.append(f"| `--{flag}` | {default} | {option.accepted} | {option.help} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the pages; with --check only compare."""
    pages = {"cli.md": cli_page(), "workloads.md": workloads_page()}
    for name, text in pages.items():
        path = HERE / name
        if "--check" not in sys.argv:
            path.write_text(HEAD + text)
        elif not path.exists() or path.read_text() != HEAD + text:
            sys.exit(f"docs/{name} is not current: run `make docs`")


if __name__ == "__main__":
    main()
