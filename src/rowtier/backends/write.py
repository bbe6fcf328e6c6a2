"""Our Plan as a TorchRec `ShardingPlan`, wherever TorchRec can express it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchrec.distributed.sharding_plan import placement
from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
    ShardMetadata,
)

from rowtier.backends.modules import paths
from rowtier.backends.read import CACHING, SLOW
from rowtier.backends.said import ORIGIN, to_arguments
from rowtier.backends.topology import device_of, host_size
from rowtier.band import Band
from rowtier.cluster import DEVICE, Cluster
from rowtier.errors import UserError
from rowtier.plan.plan import Plan
from rowtier.profile.to_torchrec import ONLY_ROWS
from rowtier.tables import Table

INSTEAD = (
    "train it with rowtier's own runtime (rowtier.torch), which keeps every plan, or plan with "
    "rowtier.torchrec.RowtierPlanner"
)


def to_plan(plan: Plan, module: Any = None, device: str | None = None) -> Any:
    """The TorchRec plan with the same placement.

    Module paths are those of `module`, or of the TorchRec plan that this one came from; so are
    kernels and caches. A plan of rowtier's own gets `fused` for rows in the first tier,
    `fused_uvm` in the second and `fused_uvm_caching` for hot rows in the first and the rest in
    the second; what TorchRec cannot express is refused by name.
    """
    said = plan.origin.get(ORIGIN, {})
    known = said.get("tables", {})
    where = {name: entry["module"] for name, entry in known.items()}
    if module is not None:
        where |= paths(module)
    homeless = [table.name for table, _ in plan if table.name not in where]
    if homeless:
        raise UserError(
            f"table {homeless[0]!r} stands in no module: give the model, as in "
            "to_plan(plan, module=model), with a table of that name in it"
        )
    devices = _Devices(said.get("devices", {}), device or device_of(plan.cluster), plan.cluster)
    parts: dict[str, Any] = {}
    for table, bands in plan:
        part = parts.setdefault(where[table.name], EmbeddingModuleShardingPlan())
        cut = _TorchRecCut.of(table, bands, plan.cluster)
        if plan.needs_rows(table) and not cut.copied and plan.cluster.num_devices > 1:
            raise _refused(table, ONLY_ROWS)
        said_now = cut.said(plan.cluster)
        before = known.get(table.name)
        # A plan that was changed since it was read says something else now.
        same = before is not None and before["ranks"] in (None, said_now["ranks"])
        arguments = to_arguments(before if same else said_now)
        part[table.name] = ParameterSharding(sharding_spec=cut.spec(devices), **arguments)
    return ShardingPlan(_as_before(parts, known, where))


def _as_before(parts: dict[str, Any], known: dict[str, Any], where: dict[str, str]) -> Any:
    """Modules in the order of the plan that they came from."""
    order = list(dict.fromkeys(where[name] for name in known)) + list(parts)
    return {path: parts[path] for path in dict.fromkeys(order) if path in parts}


class _Devices:
    """The device of a rank: as a foreign plan named it, else by its place in the host."""

    def __init__(self, named: dict[str, str], kind: str, cluster: Cluster):
        self.named, self.host = named, host_size(cluster)
        self.kind = next(iter(named.values())).split(":")[0] if named else kind

    def place(self, rank: int) -> str:
        """How TorchRec writes a rank and its device."""
        named = self.named.get(str(rank))
        return f"rank:{rank}/{named}" if named else placement(self.kind, rank, self.host)


class _TorchRecCut:
    """How TorchRec would cut a table: runs of columns, each with the members of its blocks."""

    def __init__(self, table: Table, runs: dict[tuple[int, int], tuple[int, ...]], hot: int | None):
        self.table, self.runs = table, runs
        self.hot = hot  # rows in the first tier, None if there is but one tier
        self.copied = not runs

    @classmethod
    def of(cls, table: Table, bands: Sequence[Band], cluster: Cluster) -> _TorchRecCut:
        """From bands, if TorchRec can express them."""
        fast = cluster.device.tiers[0].name
        if all(band.scope == DEVICE for band in bands) and cluster.num_devices > 1:
            if any(band.tier != fast for band in bands):
                raise _refused(table, "copies on every device lie in a slower tier")
            return cls(table, {}, None)
        runs: dict[tuple[int, int], tuple[int, ...]] = {}
        hot: set[int] = set()
        for columns, run in _by_columns(table, bands).items():
            runs[columns] = _members(table, run, cluster)
            hot.add(_hot_rows(table, run, cluster))
        if len(hot) > 1:
            raise _refused(table, "its columns are cut into tiers at different rows")
        return cls(table, runs, hot.pop() if len(cluster.device.tiers) > 1 else None)

    def said(self, cluster: Cluster) -> dict[str, Any]:
        """Type, kernel and load factor that follow from the placement."""
        said: dict[str, Any] = {"ranks": [r for members in self.runs.values() for r in members]}
        if self.copied:
            said["ranks"] = list(range(cluster.num_devices))
            return said | {"sharding_type": "data_parallel", "compute_kernel": "dense"}
        said["sharding_type"] = self._kind(cluster)
        rows = self.table.num_embeddings
        if self.hot is None or self.hot == rows:
            return said | {"compute_kernel": "fused"}
        if self.hot == 0:
            return said | {"compute_kernel": SLOW}
        return said | {"compute_kernel": CACHING, "cache": {"load_factor": self.hot / rows}}

    def _kind(self, cluster: Cluster) -> str:
        host, runs = host_size(cluster), list(self.runs.values())
        if all(len(members) == 1 for members in runs):
            return "table_wise" if len(runs) == 1 else "column_wise"
        if len(runs) == 1 and runs[0] == tuple(range(cluster.num_devices)):
            return "row_wise"
        hosts = [tuple(range(f, f + host)) for f in range(0, cluster.num_devices, host)]
        if all(members in hosts for members in runs):
            return "table_row_wise" if len(runs) == 1 else "grid_shard"
        raise _refused(self.table, f"its rows are cut over devices {list(runs[0])[:8]}")

    def spec(self, devices: _Devices) -> Any:
        """The shards, as TorchRec lists them; copies have none."""
        if self.copied:
            return None
        shards = []
        for (first, last), members in self.runs.items():
            block = -(-self.table.num_embeddings // len(members))
            for position, rank in enumerate(members):
                row = min(position * block, self.table.num_embeddings)
                rows = min(block, self.table.num_embeddings - row)
                shards.append(
                    ShardMetadata([row, first], [rows, last - first], devices.place(rank))
                )
        return EnumerableShardingSpec(shards)


def _by_columns(table: Table, bands: Sequence[Band]) -> dict[tuple[int, int], list[Band]]:
    runs: dict[tuple[int, int], list[Band]] = {}
    for band in bands:
        runs.setdefault(band.columns or (0, table.embedding_dim), []).append(band)
    return runs


def _members(table: Table, run: list[Band], cluster: Cluster) -> tuple[int, ...]:
    if any(band.scope != cluster.top for band in run):
        raise _refused(table, "some rows are copied and some are not")
    if sum(band.rows for band in run) != table.num_embeddings:
        raise _refused(table, "its columns are cut differently in different rows")
    members = {band.member_list(cluster.num_devices) for band in run}
    if len(members) > 1:
        raise _refused(table, "hot and cold rows have different owners")
    found = members.pop()
    if len(found) > 1 and any(band.order == "spread" for band in run):
        raise _refused(table, "its rows are spread by heat, not in blocks of ids")
    return found


def _hot_rows(table: Table, run: list[Band], cluster: Cluster) -> int:
    """Rows in the first tier; they must be the hottest, and the others in the second."""
    names = [tier.name for tier in cluster.device.tiers]
    fast = [band for band in run if band.tier == names[0]]
    if any(band.tier not in names[:2] for band in run):
        raise _refused(table, f"it has rows in a tier below {names[1]!r}")
    hot = sum(band.rows for band in fast)
    if any(band.stop > hot for band in fast):
        raise _refused(table, "rows in the first tier are not the hottest")
    return hot


def _refused(table: Table, why: str) -> UserError:
    return UserError(f"TorchRec cannot place table {table.name!r} like this: {why}; {INSTEAD}")
