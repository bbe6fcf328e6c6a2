"""Contenders that train one model from memory and a disk: the same code but for the placement.

Every contender is a team of processes, one a rank, with one bound on the memory of all of them,
page cache included. They take turns with the same batches, drawn elsewhere.
"""

from __future__ import annotations

import contextlib
import statistics
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import rowtier
from harness.bounded_memory import Team, bounded
from harness.trainer import Batch, Trainer, Turn
from rowtier import Cluster, Profile

GREEDY = ("size", "lookup", "size-lookup")
BY_HEAT = ", hotness order"


def greedy_plans(profile: Profile, cluster: Cluster) -> dict[str, rowtier.Plan]:
    """RecShard's baselines: rows in id order as in the paper, then in hotness order.

    They place whole tables and count no rows, so they know nothing to order rows by; in the
    order of hotness, which a plan of ours has for nothing, hot rows share pages.
    """
    found = {method: rowtier.make_plan(profile, cluster, method) for method in GREEDY}
    by_id = {method: in_id_order(plan, profile, cluster) for method, plan in found.items()}
    return by_id | {f"{method}{BY_HEAT}": plan for method, plan in found.items()}


def in_id_order(plan: rowtier.Plan, profile: Profile, cluster: Cluster) -> rowtier.Plan:
    """The same placement of whole tables with the rows where their ids say."""
    bands = {
        name: tuple(band.model_copy(update={"order": "blocks"}) for band in placed)
        for name, placed in plan.bands.items()
    }
    return rowtier.Plan.build(f"{plan.method}, id order", profile, cluster, bands)


def first_alike(plans: Mapping[str, rowtier.Plan]) -> dict[str, str]:
    """For every plan the first that places all rows the same way: often itself."""
    found: dict[str, str] = {}
    for name, plan in plans.items():
        found[name] = next((other for other in found if plans[other].bands == plan.bands), name)
    return found


@dataclass
class Result:
    """What a contender did in all its turns."""

    turns: list[list[Turn]] = field(default_factory=list)  # then ranks
    counts: dict[str, Any] = field(default_factory=dict)
    make_s: float = 0.0
    bound: str = ""

    @property
    def step_s(self) -> float:
        """The median of turns, each as long as its slowest rank."""
        return statistics.median(max(rank.step_s for rank in turn) for turn in self.turns)

    @property
    def fastest_s(self) -> float:
        """The turn that was disturbed least."""
        return min(max(rank.step_s for rank in turn) for turn in self.turns)

    def by_rank(self, what: str) -> list[float]:
        """A figure of each rank, the median of turns."""
        ranks = zip(*self.turns, strict=True)
        return [statistics.median(getattr(turn, what) for turn in each) for each in ranks]


def imbalance(by_rank: Sequence[float]) -> float:
    """The largest over the mean, minus 1."""
    mean = statistics.mean(by_rank)
    return max(by_rank) / mean - 1 if mean else 0.0


class Field:
    """The teams of all contenders; each is started once and makes plan after plan.

    `shared`: one team for all of them, which is quick, and rougher. `trainers`: of contenders
    that are not trained by the library as it is.
    """

    def __init__(
        self, ranks: int, limit_bytes: int, folder: Path, shared: bool = False,
        trainers: Mapping[str, type[Trainer]] | None = None,
    ):  # fmt: skip
        self.ranks, self.limit_bytes, self.folder = ranks, limit_bytes, folder
        self.shared, self.trainers = shared, trainers or {}
        self.teams: dict[str, Team] = {}
        self.bounds: dict[str, str] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Field:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._stack.close()

    def team(self, name: str) -> Team:
        """Who runs a contender."""
        return self.teams[self._key(name)]

    def _key(self, name: str) -> str:
        return self._trainer(name).__name__ if self.shared else name

    def _trainer(self, name: str) -> type[Trainer]:
        return self.trainers.get(name, Trainer)

    def start(self, names: Sequence[str]) -> None:
        """Start the teams that are not there yet, all at once."""
        trainers = {self._key(name): self._trainer(name) for name in names}
        new = {key: trainer for key, trainer in trainers.items() if key not in self.teams}
        for key, trainer in new.items():
            store = self.folder / f"store-{uuid.uuid4().hex}"
            self.teams[key] = Team(self.ranks, trainer, self.ranks, str(self.folder), str(store))
            self._stack.callback(self.teams[key].stop)
        for key in new:
            self.teams[key].call("ready")  # what is imported and compiled so far is not counted
            limit = bounded(self.teams[key].pids, self.limit_bytes)
            self.bounds[key] = self._stack.enter_context(limit)
            self._stack.callback(self.teams[key].stop)  # before its group is taken away

    def race(
        self, plans: Mapping[str, rowtier.Plan], batches: Sequence[Sequence[Batch]], rounds: int,
        warm: int, piped: bool = False,
    ) -> dict[str, Result]:  # fmt: skip
        """Train all plans with the same batches: `warm` steps unseen, then all others in rounds.

        `batches` has for every rank one batch a step. With one team for all of them plans are
        trained one after the other, else in turns. The library's own tiers keep nothing from
        step to step, so for them two of the unseen steps are enough.
        """
        steps = (len(batches[0]) - warm) // rounds
        parts = [slice(warm + turn * steps, warm + (turn + 1) * steps) for turn in range(rounds)]
        given = [([each[part] for each in batches], [piped] * self.ranks) for part in parts]
        results: dict[str, Result] = {}
        for group in [[name] for name in plans] if self.shared else [list(plans)]:
            self.start(group)
            for name in group:
                results[name] = self._made(name, plans[name])
                few = 0 if name in self.trainers else max(0, warm - 2)
                first = [each[few:warm] for each in batches]
                self.team(name).call("train", first, [piped] * self.ranks)
                self.team(name).call("reset")
            for turn in given:
                for name in group:
                    results[name].turns.append(self.team(name).call("train", *turn))
            for name in group:
                results[name].counts = self.team(name).call("counts")[0]
        return results

    def _made(self, name: str, plan: rowtier.Plan) -> Result:
        place = self.folder / f"plan-{uuid.uuid4().hex}"
        plan.save(place)
        took = self.team(name).call("make", [str(place)] * self.ranks)
        return Result(make_s=max(took), bound=self.bounds[self._key(name)])
