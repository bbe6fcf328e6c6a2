"""What the machine refuses (a file, memory, a folder that is gone) as errors for people.

Only what is known to come from outside is turned into a message. Anything else is a bug of
rowtier: it keeps its traceback, which is what helps to fix it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import traceback
from collections.abc import Iterator

from rowtier import __version__
from rowtier.errors import RowtierError, UserError

_BUG = (
    f"this is a bug in rowtier {__version__}, not a mistake of yours: please report it with the "
    "lines above"
)
# About processes of our own: no user can do anything about them.
_OURS = (BlockingIOError, ChildProcessError, ProcessLookupError)
_HINTS = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space: the quota is used up",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.EROFS: "nothing can be written there; choose another place",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "too many files are open on this machine; close some",
    errno.ENOMEM: "free some memory",
}


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Turn what the operating system refuses into an error that names the file and the remedy."""
    try:
        yield
    except (RowtierError, BrokenPipeError):
        raise
    except MemoryError as error:
        raise _memory(error) from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno and not isinstance(error, _OURS):
            raise _system(error) from None
        if hasattr(error, "add_note"):  # from Python 3.11 on
            error.add_note(_BUG)
        raise


def _memory(error: MemoryError) -> UserError:
    asked = f" ({error})" if str(error) else ""
    return UserError(
        f"not enough memory{asked}, in {_where(error)}: free some, raise the limit of this process "
        "(ulimit -v), or give it less to do; for `rowtier profile`, a smaller --memory helps"
    )


def _system(error: OSError) -> UserError:
    names = [name for name in (error.filename, error.filename2) if name is not None]
    said = error.strerror or type(error).__name__
    if not names and _folder_is_gone():
        return UserError(
            "the current folder was deleted or moved away; change to one that exists (cd) and run "
            "this again"
        )
    place = " -> ".join(map(os.fsdecode, map(_path, names))) or f"in {_where(error)}"
    hint = _HINTS.get(error.errno or 0, "check the path")
    return UserError(f"{place}: {said}; {hint}")


def _path(name: object) -> str | bytes:
    return name if isinstance(name, (str, bytes)) else f"file descriptor {name}"


def _folder_is_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd() is no better at failing
    except OSError:
        return True
    return False


def _where(error: BaseException) -> str:
    """The step of rowtier that was under way: the innermost of its modules."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [str(frame.f_globals.get("__name__", "")) for frame in frames]
    ours = [name for name in names if name.startswith("rowtier.") and name != __name__]
    return ours[-1] if ours else "rowtier"
