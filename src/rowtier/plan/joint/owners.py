"""A home with its owners: which holders of a kind have the rows, as bands that can be tried."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from rowtier.band import Band
from rowtier.cluster import Cluster
from rowtier.cost.tree import tree_of
from rowtier.plan.joint.homes import Home
from rowtier.profile.curve import Floats

Way = tuple[Band, ...]  # bands that together keep all columns of a row


def owned(home: Home, cluster: Cluster, dim: int, busy_s: Floats, owners: int) -> Iterator[Way]:
    """A home on all holders of its kind in a group, and on each of the least busy ones alone.

    Alone only for sums and for rows that are fetched once and directly. These of devices also in
    parts of the columns, each part on as many devices.
    """
    tree = tree_of(cluster)
    places = np.flatnonzero(tree.kinds[tree.members[home.level][0]] == home.kind).tolist()
    by_sums = home.band.exchange == "sums"
    if by_sums and home.level > 1 and not home.band.staged:
        staged = home.band.model_copy(update={"staged": True})
        yield from owned(home._replace(band=staged), cluster, dim, busy_s, owners)
    if home.kind == 0:
        yield (home.band.model_copy(update={"members": "all"}),)
    elif len(places) > 1:
        yield (home.band.model_copy(update={"members": tuple(places)}),)
    plainly = home.band.coalesced and not home.band.staged
    if (len(places) > 1 or home.kind) and (plainly or by_sums):
        there_s = busy_s[tree.members[home.level]].mean(axis=0)[places]
        for place in np.array(places)[np.argsort(there_s, kind="stable")[:owners]].tolist():
            yield (home.band.model_copy(update={"members": (place,)}),)
    parts, most = 2, min(len(places), dim) if owners > 1 else 2
    while (by_sums or plainly) and home.kind == 0 and parts <= min(most, len(places), dim):
        if len(places) % parts == 0:
            yield tuple(_column_parts(home.band, places, parts, dim))
        parts *= 2


def _column_parts(band: Band, places: list[int], parts: int, dim: int) -> Iterator[Band]:
    holders, edges = len(places) // parts, [dim * part // parts for part in range(parts + 1)]
    for part, columns in enumerate(pairwise(edges)):
        members = tuple(places[part * holders : (part + 1) * holders])
        yield band.model_copy(update={"members": members, "columns": columns})
