"""What becomes of a table whose hot rows are copied and whose cold rows are kept once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rowtier.band import Band
from rowtier.cluster import DEVICE, Cluster
from rowtier.errors import UserError
from rowtier.plan.plan import Plan
from rowtier.profile.curve import Ints
from rowtier.profile.to_torchrec import ONLY_ROWS
from rowtier.tables import Table

INSTEAD = "train it with rowtier.torch.ShardedEmbeddings, which keeps every plan"
HOT, COLD = "hot", "cold"


@dataclass(frozen=True, eq=False)
class TableHalves:
    """One table's two halves: the home of the cold one, and where each row has gone."""

    table: Table
    hot: int  # rows that are copied
    cold: Band | None  # where the others are, None if all are copied
    cold_rows: int  # with rows that fill the last block
    places: Ints  # of every row: its number among the hot ones, or `hot` and its number after

    @classmethod
    def of(cls, table: Table, plan: Plan) -> TableHalves:
        """From a table's bands, if TorchRec can keep both halves."""
        bands, cluster = plan.bands[table.name], plan.cluster
        copied = [b for b in bands if b.scope == DEVICE and cluster.num_devices > 1]
        kept = [b for b in bands if b not in copied]
        hot = sum(band.rows for band in copied)
        if any(band.columns is not None for band in bands):
            raise _refused(table, "it is cut into columns")
        if any(band.stop > hot for band in copied):
            raise _refused(table, "the rows that are copied are not the hottest")
        if kept and plan.needs_rows(table) and cluster.num_devices > 1:
            raise _refused(table, ONLY_ROWS)
        cold = _one_home(table, kept, cluster) if kept else None
        by_rank = plan.rows_in_order(table.name)
        places = np.empty(table.num_embeddings, dtype=np.int64)
        places[by_rank[:hot]] = np.arange(hot)
        members = 1 if cold is None else len(cold.member_list(cluster.num_devices))
        block = -(-(table.num_embeddings - hot) // members)
        if cold is not None:
            places[by_rank[hot:]] = hot + _numbers(cold, by_rank[hot:], members, block)
        return cls(table, hot, cold, block * members, places)

    def half(self, which: str) -> Table | None:
        """The table of one half."""
        rows = self.hot if which == HOT else self.cold_rows
        if not rows:
            return None
        named = tuple(f"{self.table.name}:{feature}" for feature in self.table.features)
        changes = {"name": f"{self.table.name}_{which}", "num_embeddings": rows, "features": named}
        return self.table.model_copy(update=changes)


def _one_home(table: Table, kept: Sequence[Band], cluster: Cluster) -> Band:
    """The one home of a table's cold rows."""
    first = kept[0]
    homes = {(b.member_list(cluster.num_devices), b.order, b.offset, b.tier) for b in kept}
    if any(band.scope != cluster.top for band in kept):
        raise _refused(table, f"it has a copy per {first.scope}")
    if len(homes) > 1:
        raise _refused(table, "its cold rows have several homes")
    members = first.member_list(cluster.num_devices)
    if len(members) > 1 and members != tuple(range(cluster.num_devices)):
        raise _refused(table, f"its cold rows are cut over devices {list(members)[:8]} alone")
    stop = max(band.stop for band in kept)
    return first.model_copy(update={"start": min(band.start for band in kept), "stop": stop})


def _numbers(cold: Band, rows: Ints, members: int, block: int) -> Ints:
    """New ids, such that equal blocks of them are what each member keeps."""
    place = np.arange(len(rows))
    if cold.order == "blocks":
        place[np.argsort(rows, kind="stable")] = np.arange(len(rows))
        return place
    return (place + cold.offset) % members * block + place // members


def _refused(table: Table, why: str) -> UserError:
    return UserError(f"TorchRec cannot keep table {table.name!r} in two halves: {why}; {INSTEAD}")
