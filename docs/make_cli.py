"""Write docs/cli.md from the command line itself, or check that it is current."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TARGET = Path(__file__).parent / "cli.md"


def generate() -> str:
    """The reference as Markdown, made by typer from the commands' own help."""
    command = [sys.executable, "-m", "typer", "rowtier.cli.main", "utils", "docs"]
    text = subprocess.run(
        [*command, "--name", "rowtier"], check=True, capture_output=True, text=True
    ).stdout
    head = "<!-- Written by `make docs` from the commands' own help. Do not edit. -->\n\n"
    return head + text.strip() + "\n"


def main() -> None:
    """Write the file; with --check only compare."""
    text = generate()
    if "--check" not in sys.argv:
        TARGET.write_text(text)
    elif not TARGET.exists() or TARGET.read_text() != text:
        sys.exit("docs/cli.md is not current: run `make docs`")


if __name__ == "__main__":
    main()
