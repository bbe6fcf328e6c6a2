"""The job's store as a board: what ranks tell each other where messages do not pass.

Nothing of a step is written here. It is read and written while ranks meet, by a rank that has
waited for long, and by one whose exchange failed.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch.distributed as dist

Answer = TypeVar("Answer")
_ANSWER_S = 3.0  # that the store has: its keeper may be the rank that is stopped


class Board:
    """What the ranks of one module say of themselves, by rank."""

    def __init__(self, store: dist.Store):
        self._store = store

    @classmethod
    def of(cls, group: dist.ProcessGroup) -> Board:
        """A new one for the ranks of a group; all of them make as many."""
        ranks = "-".join(map(str, dist.get_process_group_ranks(group)))
        store = dist.PrefixStore(f"rowtier/{ranks}", dist.distributed_c10d._get_default_store())
        number = store.add(f"boards of rank {dist.get_rank(group)}", 1)
        return cls(dist.PrefixStore(str(number), store))

    def say(self, what: str, rank: int, data: Any) -> bool:
        """Put up something, in place of what the rank said before; always true."""
        self._store.set(f"{what}/{rank}", json.dumps(data))
        return True

    def take_down(self, what: str, rank: int) -> None:
        """Have it as if the rank had said nothing."""
        self._store.delete_key(f"{what}/{rank}")

    def silent(self, what: str, ranks: Iterable[int]) -> list[int]:
        """The ranks that said nothing."""
        return [rank for rank in ranks if not self._store.check([f"{what}/{rank}"])]

    def heard(self, what: str, ranks: Iterable[int]) -> dict[int, Any]:
        """What those said that said something."""
        ranks = list(ranks)
        missing = set(self.silent(what, ranks))
        return {
            rank: json.loads(self._store.get(f"{what}/{rank}"))
            for rank in ranks
            if rank not in missing
        }


def in_time(ask: Callable[[], Answer], otherwise: Answer) -> Answer:
    """What the store answers; something else if it is gone, or does not answer soon."""
    found = [otherwise]

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # it is gone
            found[0] = ask()

    thread = threading.Thread(target=run, name="rowtier board", daemon=True)
    thread.start()
    thread.join(_ANSWER_S)
    return found[0]
