"""Which tables are run both for rows and for sums, said once more without `rowtier.cost`."""

from __future__ import annotations

from collections import defaultdict

from rowtier import Band, Cluster, Table


def mixed_tables(placed: list[tuple[Table, tuple[Band, ...]]], cluster: Cluster) -> set[str]:
    """Tables that run as one with a table of the other kind, or that have bands of both."""
    kinds, key_of = defaultdict(set), {}
    for table, bands in placed:
        kind = (table.embedding_dim, table.dtype, table.pooling, table.optimizer)
        columns = {band.columns for band in bands}
        alone = table.pooling == "none" or len(columns) > 1 or any(b.staged for b in bands)
        key_of[table.name] = table.name if alone else kind
        for band in bands:
            asks = cluster.level_of(band.scope) > 0
            kinds[key_of[table.name]].add(band.exchange == "sums" and asks)
    return {name for name, key in key_of.items() if len(kinds[key]) > 1}
