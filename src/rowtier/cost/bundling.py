"""Which tables the runtime runs as one, and in how many pieces: what a step's Python grows with.

Tables that are alike are laid one after the other (a *bundle*), and their bands that are placed
alike become one *piece*. A table runs alone if its rows are passed on by gateways, if sums of it
are added up in stages, if its columns lie apart, or if it is not pooled. Optimizers of one kind
are taken to have the same numbers: where they do not, the runtime keeps their tables apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from rowtier.band import Band, layers_of
from rowtier.cost.rates import Way
from rowtier.cost.tree import Tree
from rowtier.tables import Table
from rowtier.work import Work

MOST_ROWS = 2**31 - 1  # of a bundle: addresses of 4 bytes
TableBands = Iterable[tuple[Table, Sequence[Band]]]


def bundle_key(table: Table, bands: Sequence[Band], tree: Tree) -> Hashable | None:
    """What tables that run as one have in common; None: the table runs alone."""
    if table.pooling == "none" or len(layers_of(bands)) > 1:
        return None
    if places_of(bands, tree) > MOST_ROWS or any(band.staged for band in bands):
        return None
    return (table.embedding_dim, table.dtype, table.pooling, table.optimizer)


def piece_key(band: Band, tree: Tree) -> Hashable:
    """What bands that become one piece of a bundle have in common."""
    several = len(tree.positions(band, tree.scopes[band.scope])) > 1
    order = band.order if several else "spread"  # one member holds all rows in either
    return (band.scope, band.members, band.tier, Way.of(band, tree), order)


def places_of(bands: Sequence[Band], tree: Tree) -> int:
    """Places that bands take in a bundle, with what stays empty between them, at most."""
    return sum(band.rows + len(tree.positions(band, tree.scopes[band.scope])) for band in bands)


def bundled(tables: TableBands, tree: Tree) -> list[list[str]]:
    """Names of the tables that run as one, in their order."""
    groups: dict[Hashable, list[str]] = {}
    places: dict[Hashable, int] = {}
    for table, bands in tables:
        key, size = bundle_key(table, bands, tree), places_of(bands, tree)
        if key is None:
            key = ("alone", table.name)
        else:
            while places.get(key, 0) + size > MOST_ROWS:
                key = (key, "more")
        places[key] = places.get(key, 0) + size
        groups.setdefault(key, []).append(table.name)
    return list(groups.values())


@dataclass(frozen=True)
class PiecesRun:
    """How much a step's Python has to go through, and which lookups it goes through twice."""

    bundles: int  # of several tables
    pieces: int
    copied: int  # pieces that have several copies, which are kept equal
    mixed: frozenset[str]  # tables that run with both: rows that are fetched, and sums

    def work_s(self, work: Work, training: bool) -> float:
        """Seconds that bundles and pieces take, whatever they are asked for."""
        copied_s = work.copied_s * self.copied * training
        return work.bundle_s * self.bundles + work.band_s * self.pieces + copied_s

    def again_s(self, table: str, work: Work) -> float:
        """Seconds more for each of a table's lookups: what it needs of the other kind."""
        return work.lookup_s if table in self.mixed else 0.0


def pieces_run(tables: TableBands, tree: Tree) -> PiecesRun:
    """How many bundles and pieces the runtime runs for the tables of a plan."""
    bands_of = {table.name: (table, bands) for table, bands in tables}
    names = bundled(bands_of.values(), tree)
    pieces = copied = 0
    mixed: set[str] = set()
    for together in names:
        bands = [band for name in together for band in bands_of[name][1]]
        if len(together) > 1:
            bands = list({piece_key(band, tree): band for band in bands}.values())
        pieces += len(bands)
        if len({Way.of(band, tree).adds_up for band in bands}) > 1:
            mixed.update(together)
        copied += sum(tree.sizes[tree.scopes[band.scope]] < tree.devices for band in bands)
    bundles = sum(len(together) > 1 for together in names)
    return PiecesRun(bundles, pieces, copied, frozenset(mixed))
