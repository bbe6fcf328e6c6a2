"""Ranks of one machine that read each other's memory: one copy, where sockets make two and more.

Linux lets a process read another's memory if it might as well trace it (`process_vm_readv`): the
same user, no stricter `kernel.yama.ptrace_scope` than 0, no container that forbids it. Whether it
works is tried once, when the ranks meet; where it does not, sockets carry everything.
"""

from __future__ import annotations

import ctypes
import os
import socket
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

LEAST_BYTES = 2 * 2**20  # of a message: telling where it lies, and that it was read, takes time too
_TOKEN_BYTES = 16


class _Part(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Neighbours:
    """The ranks of a group on this machine, and whether they read each other's memory."""

    def __init__(self, pids: dict[int, int] | None = None, readable: bool = True):
        self._pids, self._readable = pids or {}, readable

    @classmethod
    def meet(cls, group: dist.ProcessGroup | None) -> Neighbours:
        """Find out who is on this machine and can be read; all ranks of the group call this."""
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        token = torch.from_numpy(np.frombuffer(os.urandom(_TOKEN_BYTES), dtype=np.uint8).copy())
        everyone = told(
            group, size, (machine_of_this_process(), os.getpid(), token.data_ptr(), token.tolist())
        )
        machine = everyone[rank][0]
        found = {
            other: pid
            for other, (where, pid, _, _) in enumerate(everyone)
            if other != rank and where == machine
        }
        met = cls(found)
        readable = all(met._holds(other, *everyone[other][2:]) for other in found)
        # Those of a machine do it all or not at all; tokens stay until everyone has looked.
        answers = told(group, size, (machine, readable))
        return cls(found, all(good for where, good in answers if where == machine))

    def carries(self, rank: int, size: int) -> bool:
        """Whether a message of so many bytes, to or from a rank, is read from memory."""
        return self._readable and size >= LEAST_BYTES and rank in self._pids

    def is_alive(self, rank: int) -> bool | None:
        """Whether the process of a rank runs; None if it is on another machine."""
        if rank not in self._pids:
            return None
        return self._state(rank) not in "ZX"  # what is dead waits for its parent

    def is_stopped(self, rank: int) -> bool:
        """Whether the process of a rank is here, and somebody stopped it."""
        return rank in self._pids and self._state(rank) in "Tt"

    def _state(self, rank: int) -> str:
        """The letter by which Linux says what a process does; X: there is none."""
        try:
            said = Path(f"/proc/{self._pids[rank]}/stat").read_text()
        except OSError:
            return "X"
        return said.rpartition(")")[2].split()[0]

    def read(self, rank: int, address: int, into: torch.Tensor) -> None:
        """Copy what lies at an address of another rank."""
        at, end = into.data_ptr(), into.data_ptr() + into.nbytes
        while at < end:
            here, there = _Part(at, end - at), _Part(address, end - at)
            done = _process_vm_readv()(self._pids[rank], here, 1, there, 1, 0)
            if done <= 0:
                why = os.strerror(ctypes.get_errno())
                raise RuntimeError(f"the memory of rank {rank} cannot be read: {why}")
            at, address = at + done, address + done

    def _holds(self, rank: int, address: int, token: list[int]) -> bool:
        found = torch.zeros(_TOKEN_BYTES, dtype=torch.uint8)
        try:
            self.read(rank, address, found)
        except (RuntimeError, AttributeError):  # not allowed, or not Linux
            return False
        return bool(found.tolist() == token)


def told(group: dist.ProcessGroup | None, size: int, own: Any) -> list[Any]:
    """What every rank of a group says; all of them call this."""
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, own, group=group)
    return everyone


@cache
def _process_vm_readv() -> Any:
    call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    part = ctypes.POINTER(_Part)
    call.argtypes = (ctypes.c_int, part, ctypes.c_ulong, part, ctypes.c_ulong, ctypes.c_ulong)
    call.restype = ctypes.c_ssize_t
    return call


def machine_of_this_process() -> tuple[str, ...]:
    """The same for processes of one machine, and of one network and one numbering on it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        spaces = [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("net", "pid")]
    except OSError:
        return (socket.gethostname(), str(os.getpid()))  # no Linux: nobody else is here
    return (socket.gethostname(), boot, *spaces)
