"""Renames in one step that `os.rename` does not know: an exchange, and one that replaces nothing.

Linux has both (renameat2); not every file system takes part, and other systems have neither.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path

_NOREPLACE, _EXCHANGE = 1, 2
_HERE = -100  # AT_FDCWD: paths are what they are for every other call
_UNABLE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}


def exchange(one: Path, other: Path) -> bool:
    """Let two names change places, so that neither is missing for a moment; False: not here."""
    return _rename(one, other, _EXCHANGE)


def move_to_free(source: Path, target: Path) -> None:
    """Rename to a name that nothing has; `FileExistsError` if something has it."""
    if _rename(source, target, _NOREPLACE):
        return
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    source.rename(target)


def _rename(one: Path, other: Path, flags: int) -> bool:
    call = _renameat2()
    if call is None:
        return False
    if call(_HERE, os.fsencode(one), _HERE, os.fsencode(other), flags) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNABLE:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


@functools.cache
def _renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    found: Callable[[int, bytes, int, bytes, int], int] = call
    return found
