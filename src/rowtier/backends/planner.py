"""`RowtierPlanner`: pass it to TorchRec in place of its `EmbeddingShardingPlanner`.

TorchRec's own enumerator lists what it can execute and TorchRec's own estimator says what each
shard costs; rowtier's solver chooses, for the least time of the slowest device. So the plan
is scored by the same rule as TorchRec's, and found in seconds.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torchrec.distributed.collective_utils import invoke_on_rank_and_broadcast_result
from torchrec.distributed.planner.constants import MIN_CW_DIM
from torchrec.distributed.planner.planners import to_sharding_plan
from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation
from torchrec.distributed.planner.types import PlannerError, Storage
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import CacheParams, ShardingPlan, ShardingPlanner

from rowtier.backends import modules
from rowtier.backends.choose import Choice, choose, scarce
from rowtier.backends.enumerate import CACHING, COLUMNS, TYPES, Choices, EnumerationProblem
from rowtier.backends.menu import menu_of, span_of
from rowtier.backends.statistics import allow, constraints_of
from rowtier.backends.topology import topology_of
from rowtier.cluster import Cluster
from rowtier.errors import InfeasibleError, MismatchError
from rowtier.profile.profile import Profile
from rowtier.reading import StrPath
from rowtier.tables import Table, Tables
from rowtier.units import show_bytes

RESERVED = 0.15  # of fast memory, as TorchRec's planner leaves free by default
KERNELS = ("dense", "fused", "fused_uvm", CACHING)


class RowtierPlanner(ShardingPlanner):  # type: ignore[misc]
    """The best plan that TorchRec can execute, by TorchRec's own estimate.

    `constraints` are TorchRec's `ParameterConstraints` by table name; statistics in them are
    replaced by the profile's. `storage_reservation` is TorchRec's, and its default too. After
    `plan`, `score` is the estimate in milliseconds and `bound` what no plan of these options beats.
    """

    def __init__(
        self,
        profile: Profile | StrPath,
        cluster: Cluster | StrPath,
        constraints: Mapping[str, Any] | None = None,
        device: str | None = None,
        storage_reservation: Any = None,
        seed: int = 0,
    ):
        self.profile = profile if isinstance(profile, Profile) else Profile.load(profile)
        self.cluster = cluster if isinstance(cluster, Cluster) else Cluster.open(cluster)
        self.topology = topology_of(self.cluster, device)
        self.score: float | None = None
        self.bound: float | None = None
        self._asked = constraints or {}
        self._reservation = storage_reservation or reservation()
        self._seed = seed

    def plan(self, module: Any, sharders: list[Any] | None = None) -> ShardingPlan:
        """Plan for a model on this process alone."""
        found = modules.tables(module, self.profile.batch_size)
        modules.check_same(found, self.profile.tables)
        sharders = sharders or get_default_sharders()
        with quiet():
            chosen, choice = self._chosen(module, sharders, found)
        self.score, self.bound = choice.score, choice.bound
        for option in chosen:
            option.cache_params = _without_statistics(option)
        return to_sharding_plan(chosen, self.topology)

    def collective_plan(
        self, module: Any, sharders: list[Any] | None = None, pg: Any = None
    ) -> ShardingPlan:
        """Plan on rank 0 and send the plan to all others."""
        group = pg if pg is not None else dist.GroupMember.WORLD
        if group is None:
            raise MismatchError(
                "torch.distributed is not initialised: call init_process_group first, or plan() "
                "for a plan on this process alone"
            )
        if group.size() != self.topology.world_size:
            raise MismatchError(
                f"the cluster {self.cluster.name!r} has {self.topology.world_size} devices and "
                f"{group.size()} processes are running: start as many as there are devices"
            )
        made: ShardingPlan = invoke_on_rank_and_broadcast_result(
            group, 0, self.plan, module, sharders
        )
        return made

    def _chosen(self, module: Any, sharders: list[Any], found: Tables) -> tuple[list[Any], Choice]:
        constraints = constraints_of(self.profile, self.topology.world_size, self._asked)
        allow(constraints, {t.name: self._types(t) for t in self.profile.tables}, KERNELS)
        room = self._room(module, sharders, constraints)
        problem = EnumerationProblem(self.topology, constraints, self._asked)
        choices = Choices.of(problem, module, sharders, self.profile.batch_size)
        menu = menu_of(list(choices.by_table.values()), room)
        if scarce(menu):
            choices = choices.cached(self.profile)
            menu = menu_of(list(choices.by_table.values()), room)
        choice = choose(menu, self._seed)
        if choice is None:
            raise self._infeasible(found, room)
        return _placed(choices, choice, menu.lists.tables), choice

    def _types(self, table: Table) -> list[str]:
        # On CPUs TorchRec's copies of tables that are not pooled corrupt memory.
        broken = self.topology.compute_device == "cpu" and table.pooling == "none"
        out = ["data_parallel"] if broken else []
        wish = self._asked.get(table.name)
        if table.embedding_dim < 2 * MIN_CW_DIM and not (wish and wish.min_partition):
            # TorchRec would not cut it into columns, only list it once more.
            out += COLUMNS
        return [kind for kind in TYPES if kind not in out]

    def _room(self, module: Any, sharders: list[Any], constraints: Any) -> Any:
        try:
            return self._reservation.reserve(
                topology=self.topology,
                batch_size=self.profile.batch_size,
                module=module,
                sharders=sharders,
                constraints=constraints,
            )
        except PlannerError as error:
            raise InfeasibleError(
                f"TorchRec's storage reservation leaves nothing: {error}"
            ) from None

    def _infeasible(self, tables: Tables, room: Any) -> InfeasibleError:
        free: Storage = room.devices[0].storage
        wanted = sum(table.stored_bytes for table in tables)
        return InfeasibleError(
            f"no plan was found that fits: {len(tables)} tables take {show_bytes(wanted)} and each "
            f"of {self.topology.world_size} devices has {show_bytes(max(free.hbm, 0))} of fast and "
            f"{show_bytes(max(free.ddr, 0))} of slow memory left after TorchRec's reservation: add "
            "memory or devices, or lower batch_size"
        )


def reservation() -> Any:
    """What TorchRec's planner leaves free if it is told nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return HeuristicalStorageReservation(percentage=RESERVED)


@contextmanager
def quiet() -> Iterator[None]:
    """TorchRec logs hundreds of lines while it enumerates; warnings of its own are left out."""
    logger = logging.getLogger("torchrec")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _placed(choices: Choices, choice: Choice, first: Any) -> list[Any]:
    """The chosen options with the ranks of their shards."""
    placed = []
    for table, options in enumerate(choices.by_table.values()):
        option = options[int(choice.state.chosen[table] - first[table])]
        span = span_of(option, choices.topology)
        for index, shard in enumerate(option.shards):
            part, inside = divmod(index, span)
            shard.rank = int(choice.state.places[table, part]) * span + inside
        placed.append(option)
    return placed


def _without_statistics(option: Any) -> Any:
    """Only what executing needs: a cache's size where there is a cache."""
    if option.compute_kernel != CACHING:
        return None
    return CacheParams(load_factor=option.cache_params.load_factor)
