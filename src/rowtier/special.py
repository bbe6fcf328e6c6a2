"""Paths that are no files: reading them may wait forever, or never come to an end."""

from __future__ import annotations

import os
import stat

from rowtier.errors import UserError

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# What a shell hands over with `<(…)` or `|` has someone at its other end.
_HANDED_OVER = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


def refuse_special(path: str | os.PathLike[str]) -> None:
    """Refuse what is there and is no file or folder; what is not there is for who opens it."""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)  # noqa: PTH116 - a str or a Path
    except (OSError, ValueError):
        return
    handed_over = kind == stat.S_IFIFO and os.fspath(path).startswith(_HANDED_OVER)
    if kind in _KINDS and not handed_over:
        raise UserError(f"{path}: is {_KINDS[kind]} where a file was expected; give a file")
