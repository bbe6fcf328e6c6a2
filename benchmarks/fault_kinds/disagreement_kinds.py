"""Ways in which one rank of two can do something else than the other, and what must be said."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

from rowtier import (
    Band,
    Cluster,
    FeatureStats,
    Plan,
    Profile,
    RowCounts,
    Table,
    TableStats,
)
from rowtier.runtime import agreement
from rowtier.runtime.exchange.sockets import Sockets
from rowtier.torch import SGD, Adagrad, Pipeline, ShardedEmbeddings

ROWS, DIM = 24, 4
WARN_S, ABORT_S = 0.5, 1.5  # of watchdogs that are to be seen at work


def plan_of(
    cut: int = 6, order: int = 1, names: str = "ab", dtype: str = "fp32", trained: str = "sgd",
    cluster: str = "two ranks",
) -> Plan:  # fmt: skip
    """Two small tables whose hot rows have copies; every argument is something that may differ."""
    placed = Cluster.local(2).model_copy(update={"name": cluster})
    stats, bands = [], {}
    for name in names:
        table = Table(
            name=name, num_embeddings=ROWS, embedding_dim=DIM, features=(f"f{name}",),
            pooling="sum", dtype=dtype, optimizer=trained,
        )  # fmt: skip
        counts = RowCounts.from_dense(1 + np.arange(ROWS)[::order].copy())
        feature = FeatureStats(name=f"f{name}", present=100, lookups=int(counts.counts.sum()))
        stats.append(TableStats.counted(table, 1000, (feature,), counts))
        tier = placed.tier_names[0]
        bands[name] = (
            Band(start=0, stop=cut, scope="device", tier=tier),
            Band(start=cut, stop=ROWS, scope=placed.top, tier=tier),
        )
    return Plan.build("by hand", Profile(4, tuple(stats)), placed, bands)


@dataclass
class Side:
    """One rank of two; `odd` on the one that does something else."""

    rank: int
    group: Any
    odd: bool
    seed: int

    def made(self, optimizer: Any = None, **options: Any) -> ShardedEmbeddings:
        """The embeddings; what is given for the plan goes to `plan_of`."""
        names = plan_of.__annotations__.keys() & options.keys()
        plan = plan_of(**{name: options.pop(name) for name in names})
        return ShardedEmbeddings(plan, optimizer, self.group, **options)

    def batch(self) -> dict[str, torch.Tensor]:
        """Some ids for every feature."""
        random = torch.Generator().manual_seed(self.seed + self.rank)
        return {f"f{name}": torch.randint(0, ROWS, (8, 2), generator=random) for name in "ab"}

    def back(self, module: ShardedEmbeddings) -> None:
        """A lookup and its backward pass."""
        sum(out.square().sum() for out in module(self.batch()).values()).backward()

    def step(self, module: ShardedEmbeddings, count: int = 1) -> None:
        """Whole steps."""
        for _ in range(count):
            self.back(module)
            module.optimizer.step()


@dataclass(frozen=True)
class Kind:
    """One disagreement: what both ranks do, and what both must say of it.

    `says` and `warns` are regular expressions in which {odd} and {even} are ranks.
    """

    name: str
    act: Callable[[Side], None]
    says: str
    error: str = "MismatchError"
    odd_says: str | None = None  # if it says something else
    odd_error: str | None = None
    warns: str | None = None  # of the rank that is not odd
    whole_job: bool = False  # there may be no other ranks than these two


def _made(name: str, field: str, odd: dict[str, Any], **even: Any) -> Kind:
    """What a module is made of differs."""

    def act(side: Side) -> None:
        side.step(side.made(**({**even, **odd} if side.odd else even)))

    return Kind(name, act, rf"rank {{odd}} has {field} .* rank {{even}} has {field} |"
                rf"rank {{even}} has {field} .* rank {{odd}} has {field} ")  # fmt: skip


def _version(name: str) -> Kind:
    def act(side: Side) -> None:
        real = agreement.versions

        def other() -> dict[str, str]:
            return real() | {name: "0.0.1"}

        with patch.object(agreement, "versions", other if side.odd else real):
            side.step(side.made())

    return Kind(f"another version of {name}", act, f"rank {{odd}} has {name} version 0.0.1|"
                f"rank {{odd}} has {name} version 0.0.1")  # fmt: skip


def _later(name: str, says: str, change: Callable[[Side, Any], None], **made: Any) -> Kind:
    """After two steps one rank changes something, or makes another call; then both go on."""

    def act(side: Side) -> None:
        module = side.made(**made)
        side.step(module, 2)
        change(side, module)
        side.step(module, 2)
        module.count()

    return Kind(name, act, says)


def _both(first: str, second: str) -> str:
    """The odd rank does the first, the other the second; either may be named first."""
    odd, even = f"rank {{odd}} {first}", f"rank {{even}} {second}"
    return f"{odd} and {even}|{even} and {odd}"


def _set(number: str, value: float) -> Callable[[Side, Any], None]:
    def change(side: Side, module: Any) -> None:
        if side.odd:
            module.optimizer.param_groups[0][number] = value

    return change


def _other_kind(side: Side) -> None:
    side.made(Adagrad(lr=0.1) if side.odd else SGD(lr=0.1))


def _mode(side: Side, module: Any) -> None:
    with torch.no_grad() if side.odd else nullcontext():
        module(side.batch())


def _freeze(side: Side, module: Any) -> None:
    module.requires_grad_(not side.odd)


def _step_skipped(side: Side, module: Any) -> None:
    side.back(module)
    if not side.odd:
        module.optimizer.step()


def _zero_grad(side: Side, module: Any) -> None:
    side.back(module)
    if side.odd:
        module.optimizer.zero_grad()


def _backward_skipped(side: Side, module: Any) -> None:
    if side.odd:
        module(side.batch())
    else:
        side.back(module)


def _batch_skipped(side: Side) -> None:
    module = side.made()
    side.step(module, 2 if side.odd else 3)
    module.count()


def _clip_value(side: Side, module: Any) -> None:
    side.back(module)
    module.clip_grad_value_(0.5 if side.odd else 1.0)
    module.optimizer.step()


def _clip_norm(side: Side, module: Any) -> None:
    side.back(module)
    module.clip_grad_norm_(0.25 if side.odd else 0.5)
    module.optimizer.step()


def _scaler(side: Side, module: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 if side.odd else 4.0)
    scaler.scale(torch.zeros(1))
    side.back(module)
    scaler.unscale_(module.optimizer)
    scaler.step(module.optimizer)


def _pipelined(side: Side) -> None:
    module = side.made()
    for number, (_, out) in enumerate(Pipeline(module, [side.batch()] * 5)):
        sum(part.sum() for part in out.values()).backward()
        if side.odd and number == 1:
            module.optimizer.param_groups[0]["lr"] = 0.125
        module.optimizer.step()


def _by_gloo(side: Side) -> None:
    with patch.object(Sockets, "meet", lambda *_: None):
        module = side.made()
    side.step(module, 2)
    _backward_skipped(side, module)
    side.step(module)


def _disk(side: Side) -> None:
    with TemporaryDirectory() as folder:
        tier = plan_of().cluster.tier_names[0]
        side.step(side.made(tiers={tier: folder} if side.odd else None))


def _watched(side: Side) -> ShardedEmbeddings:
    module = side.made(watchdog_s=WARN_S, watchdog_abort_s=ABORT_S)
    side.step(module)
    return module


def _feature_missing(side: Side) -> None:
    module, batch = _watched(side), side.batch()
    if side.odd:
        del batch["fb"]
        with _after(3 * ABORT_S):
            module(batch)
    module(batch)


def _sleeps(side: Side) -> None:
    module = _watched(side)
    if side.odd:
        time.sleep(2 * ABORT_S)
    side.step(module)


def _is_slow(side: Side) -> None:
    module = _watched(side)
    if side.odd:
        time.sleep(2 * WARN_S)
    side.step(module)


def _stopped(side: Side) -> None:
    module, pids = _watched(side), [None, None]
    dist.all_gather_object(pids, os.getpid(), group=side.group)
    if side.odd:
        time.sleep(0.1)
        side.step(module)
        return
    other = int(pids[1 - side.rank] or 0)
    os.kill(other, signal.SIGSTOP)
    with _after(0, lambda: os.kill(other, signal.SIGCONT)):
        side.step(module)


@contextmanager
def _after(seconds: float, work: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Whatever happens in here, wait, and do something, before anybody hears of it."""
    try:
        yield
    finally:
        time.sleep(seconds)
        work()


def _saves_alone(side: Side) -> None:
    module = _watched(side)
    if side.odd:
        module.state_dict()
    side.step(module)


_NO_ANSWER = r"no answer for 1.5 s .* after 1 steps, from rank {odd}, "
_GAVE_UP = r"rank {even} gave up: no answer"
_WAITS = r"rank {even} waits for more than 0.5 s in forward after 1 steps for rank {odd}, "

KINDS: tuple[Kind, ...] = (
    _made("other bands", "bands of table 'a'", {"cut": 9}),
    _made("other order of rows", "order of rows of table 'a'", {"order": -1}),
    _made("other order of tables", "tables of the plan", {"names": "ba"}),
    _made("other cluster", "cluster", {"cluster": "others"}),
    _made("other dtype of weights", "dtype of table 'a'", {"dtype": "fp16"}),
    _made("other optimizer in the plan", "optimizer of table 'a'", {"trained": "adagrad"}),
    _made("other seed", "seed", {"seed": 3}, seed=2),
    _made("other gradients", "gradients", {"gradients": "sum"}),
    _made("other width of ids", "ids", {"ids": "wide"}),
    _made("rows for ids", "rows", {"rows": True}),
    _made("counters on one rank", "counters", {"counters": True}),
    _made("init on one rank", "init",
          {"init": lambda table, rows: np.zeros((len(rows), table.embedding_dim))}),
    _made("other lr", "lr of table 'a'", {"optimizer": SGD(lr=0.2)}, optimizer=SGD(lr=0.1)),
    _made("other weight decay", "weight_decay of table 'a'",
          {"optimizer": SGD(lr=0.1, weight_decay=0.5)}, optimizer=SGD(lr=0.1)),
    Kind("a tier on disk on one rank", _disk, "rank {odd} has tiers on disk "
         "|rank {even} has tiers on disk none and rank {odd} has"),
    Kind("an optimizer that one rank refuses", _other_kind,
         "rank {odd} cannot make its embeddings.* Adagrad was given",
         odd_says="Adagrad was given, and the plan made room for sgd"),
    _version("rowtier"), _version("torch"), _version("numpy"), _version("python"),
    _later("lr of a scheduler", "rank {odd} has lr of table 'a'.* 0.125", _set("lr", 0.125)),
    _later("weight decay changed", "rank {odd} has weight_decay of table 'a'.* 0.5",
           _set("weight_decay", 0.5)),
    _later("no_grad on one rank",
           _both("has gradient mode no_grad", "has gradient mode enabled"), _mode),
    _later("frozen on one rank", r"rank {odd} has rows frozen \(requires_grad\) True", _freeze),
    _later("a step skipped", _both("is in forward", r"is in optimizer.step\(\)"), _step_skipped),
    _later("zero_grad on one rank", "rank {odd} has backward passes that wait for a step 0",
           _zero_grad),
    _later("a backward skipped", _both("is in forward", "is in backward"), _backward_skipped),
    _later("other clip_grad_value_", "rank {odd} has clip_grad_value_ of this step 0.5",
           _clip_value),
    _later("other clip_grad_norm_", "rank {odd} has factor of the gradients", _clip_norm),
    _later("other scale of a GradScaler", "rank {odd} has factor of the gradients", _scaler),
    Kind("a batch skipped", _batch_skipped, _both(r"is in count\(\)", "is in forward")),
    Kind("lr in a pipeline", _pipelined, "rank {odd} has lr of table 'a'.* 0.125",
         whole_job=True),
    Kind("a backward skipped, over gloo", _by_gloo, _both("is in forward", "is in backward")),
    Kind("a feature missing on one rank", _feature_missing,
         _NO_ANSWER + "which left forward with UserError: .*'fb'", "LostRankError",
         "fb", "UserError", _WAITS + "which left forward with UserError: .*'fb'"),
    Kind("a rank sleeps", _sleeps, _NO_ANSWER + "which for . s, .* outside of the embeddings",
         "LostRankError", _GAVE_UP, warns=_WAITS + "which for . s, .* outside of the embeddings"),
    Kind("a rank is slow", _is_slow, "", "", warns=_WAITS + "which for . s, .* outside"),
    Kind("a rank is stopped", _stopped, _NO_ANSWER + "whose process is stopped",
         "LostRankError", _GAVE_UP, warns=_WAITS + "whose process is stopped"),
    Kind("a rank saves alone", _saves_alone, _NO_ANSWER + r"which for . s waits in state_dict\(\)",
         "LostRankError", r"state_dict\(\) was called on rank {odd}, .* not on rank {even}",
         warns=_WAITS + r"which for . s waits in state_dict\(\) .* for rank {even}"),
)  # fmt: skip
