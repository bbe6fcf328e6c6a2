"""Linux network namespaces from Python: run `ip` and `tc`, step inside, find what was left behind.

Everything is named rtn<pid>x<number>…, so that two programs do not meet, and what a killed one
left is known by the process that is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

PREFIX = "rtn"
_NAMED = Path("/run/netns")
_LINKS = Path("/sys/class/net")
_NEW_NET = 0x40000000  # CLONE_NEWNET, as setns() wants it
_OWNED = re.compile(rf"({PREFIX}(\d+)x\d+)[a-z]")
_numbers = itertools.count()


class NetworkError(RuntimeError):
    """`ip` or `tc` refused."""


def new_name() -> str:
    """A name that nobody else uses; at most 12 characters, as interfaces want."""
    return f"{PREFIX}{os.getpid()}x{next(_numbers)}"


def batch(tool: str, lines: Sequence[str], inside: str | None = None) -> None:
    """Run many commands of `ip` or `tc`, in one process."""
    where = [] if inside is None else ["-n", inside]
    done = subprocess.run(
        [tool, *where, "-batch", "-"], input="\n".join(lines) + "\n", text=True, capture_output=True
    )
    if done.returncode:
        raise NetworkError(f"{tool}: {done.stderr.strip() or done.stdout.strip()}")


@contextlib.contextmanager
def entered(name: str) -> Iterator[None]:
    """Put this thread, and the processes that it starts, into a namespace for a while."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(path: Path) -> None:
        handle = os.open(path, os.O_RDONLY)
        try:
            if libc.setns(handle, _NEW_NET):
                raise OSError(ctypes.get_errno(), f"setns {path}")
        finally:
            os.close(handle)

    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        enter(_NAMED / name)
        yield
    finally:
        back = libc.setns(home, _NEW_NET)
        os.close(home)
        assert back == 0, "a thread may always go home"


def quiet(link: str | None = None) -> None:
    """No IPv6 on a link of this namespace, or on any: its announcements would be counted."""
    for which in ("all", "default") if link is None else (link,):
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6 is quiet
            Path(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6").write_text("1")


def remove(name: str) -> None:
    """Remove all that belongs to a name, and end what still runs inside."""
    for space in [entry for entry in _ours(_NAMED) if _owner(entry)[0] == name]:
        for pid in _run(["ip", "netns", "pids", space]).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _run(["ip", "netns", "delete", space])
    for link in [entry for entry in _ours(_LINKS) if _owner(entry)[0] == name]:
        _run(["ip", "link", "delete", link])


def remove_orphans() -> None:
    """Remove what programs left that were killed before they could."""
    for name, owner in {_owner(entry) for entry in [*_ours(_NAMED), *_ours(_LINKS)]}:
        if not Path(f"/proc/{owner}").exists():
            remove(name)


def left_by(owner: int) -> list[str]:
    """Namespaces and links that a process made and did not remove."""
    return [entry for entry in [*_ours(_NAMED), *_ours(_LINKS)] if _owner(entry)[1] == owner]


def _ours(folder: Path) -> list[str]:
    """Names in a folder that `new_name` began."""
    if not folder.exists():
        return []
    return sorted(entry.name for entry in folder.iterdir() if _OWNED.match(entry.name))


def _owner(entry: str) -> tuple[str, int]:
    """The name that something belongs to, and the process that made it."""
    found = _OWNED.match(entry)
    assert found is not None, "only what is ours"
    return found[1], int(found[2])


def _run(command: Sequence[str]) -> str:
    """The output; what is already gone is no error here."""
    return subprocess.run(command, text=True, capture_output=True).stdout
