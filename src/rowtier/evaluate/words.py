"""Placements in words: what a person would say about a band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rowtier.band import Band
from rowtier.cluster import DEVICE, Cluster
from rowtier.units import show_count


@dataclass(frozen=True)
class HomeRange:
    """A run of positions with one kind of home: bands that differ only by columns are one cut."""

    start: int
    stop: int
    tier: str
    home: str  # in words
    brief: str  # the same, without how rows travel
    owners: int = 0  # listed members, of the whole cluster

    @property
    def rows(self) -> int:
        """How many positions it holds."""
        return self.stop - self.start


def cuts(bands: Sequence[Band], cluster: Cluster) -> list[HomeRange]:
    """The bands of a table from the hottest to the coldest."""
    runs: dict[tuple[int, int], list[Band]] = {}
    for band in sorted(bands, key=lambda band: (band.start, band.stop)):
        runs.setdefault((band.start, band.stop), []).append(band)
    return [
        HomeRange(
            start, stop, _tiers(run), home(run, cluster), brief(run, cluster), _owners(run, cluster)
        )
        for (start, stop), run in runs.items()
    ]


def home(run: Sequence[Band], cluster: Cluster) -> str:
    """Where bands of the same positions live and how their rows are read."""
    band = run[0]
    parts = [_copies(band, cluster) + _members(run, cluster), f"in {_tiers(run)}", *_travel(band)]
    return ", ".join(parts)


def brief(run: Sequence[Band], cluster: Cluster) -> str:
    """Where bands of the same positions live; one copy goes without saying."""
    said = _members(run, cluster).strip(" ,")
    if run[0].scope != cluster.top:
        said = " ".join(filter(None, (_copies(run[0], cluster), said)))
    return f"{said} in {_tiers(run)}"


def placement(found: Sequence[HomeRange], table_rows: int) -> str:
    """All cuts of a table in one line; neighbours that read alike are told together."""
    told: list[list[HomeRange]] = []
    for cut in found:
        if told and _alike(told[-1][-1], cut):
            told[-1].append(cut)
        else:
            told.append([cut])
    if len(told) == 1:
        return _together(told[0])
    said = []
    for index, group in enumerate(told):
        which = "hottest" if index == 0 else "coldest" if group[-1].stop == table_rows else "next"
        rows = group[-1].stop - group[0].start
        said.append(f"{which} {show_count(rows)}: {_together(group)}")
    return "; ".join(said)


def _alike(one: HomeRange, other: HomeRange) -> bool:
    if one.brief == other.brief:
        return True
    return one.owners > 0 < other.owners and one.tier == other.tier


def _together(group: Sequence[HomeRange]) -> str:
    if len({cut.brief for cut in group}) == 1:
        return group[0].brief
    return f"in pieces on single devices in {group[0].tier}"


def numbers(values: Sequence[int], most: int = 4) -> str:
    """Numbers as runs, "0–3, 7": long lists are cut short."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    said = [str(a) if a == b else f"{a}–{b}" for a, b in runs[:most]]
    return ", ".join(said) + (" …" if len(runs) > most else "")


def _owners(run: Sequence[Band], cluster: Cluster) -> int:
    if run[0].scope != cluster.top:
        return 0
    return len({m for band in run if band.members != "all" for m in band.members})


def _tiers(run: Sequence[Band]) -> str:
    return " and ".join(dict.fromkeys(band.tier for band in run))


def _copies(band: Band, cluster: Cluster) -> str:
    if band.scope == cluster.top:
        return "one copy"
    return f"a copy on every {DEVICE}" if band.scope == DEVICE else f"one copy per {band.scope}"


def _members(run: Sequence[Band], cluster: Cluster) -> str:
    band = run[0]
    if band.scope == DEVICE:
        return ""
    level = cluster.level_of(band.scope)
    listed = [m for b in run for m in b.member_list(cluster.group_size(level))]
    if len(run) > 1:
        return f" in {len(run)} column parts on {_named(listed, band, cluster)}"
    if band.members == "all":
        return ", spread" if band.order == "spread" else " in blocks of rows"
    how = "" if len(listed) == 1 else " spread over" if band.order == "spread" else " in blocks on"
    return f"{how or ' on'} {_named(listed, band, cluster)}"


def _named(members: Sequence[int], band: Band, cluster: Cluster) -> str:
    places = sorted(set(members))
    if band.scope != cluster.top:
        return f"member{'s' if len(places) > 1 else ''} {numbers(places)} of each"
    holders = cluster.members(cluster.level_of(band.scope))
    kinds: dict[str, list[int]] = {}
    for place in places:
        kind, number = cluster.holder_name(holders[place]).rsplit(" ", 1)
        kinds.setdefault(kind, []).append(int(number))
    return " and ".join(f"{k}{'s' if len(n) > 1 else ''} {numbers(n)}" for k, n in kinds.items())


def _travel(band: Band) -> list[str]:
    if band.scope == DEVICE:
        return [f"{band.sync} sync"]
    if band.exchange == "sums":
        return ["partial sums travel"]
    ways = [word for word, on in (("coalesced", band.coalesced), ("staged", band.staged)) if on]
    return [" and ".join(ways)] if ways else []
