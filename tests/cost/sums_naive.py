"""Sums of bags in the walk of `cost_naive.py`: who adds up what, and sends it where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rowtier import Band, TableStats

if TYPE_CHECKING:
    from cost.cost_naive import Walk

Masses = Sequence[dict[int, float]]  # per band the share of lookups by holder


def walk_sums(walk: Walk, stats: TableStats, bands: Sequence[Band], mass: Masses) -> None:
    """Walk over the sums that the bands of a table exchange."""
    _Sums(walk, stats, bands, mass).run()


@dataclass
class _Sums:
    walk: Walk
    stats: TableStats
    bands: Sequence[Band]
    mass: Masses

    def _sums_per_sample(self, q: float) -> float:
        """Features of a sample that look anything up in a share q of the lookups."""
        total = 0.0
        for feature in self.stats.features:
            lengths = list(feature.lengths)
            if not lengths and feature.present:
                whole = feature.lookups // feature.present
                more = feature.lookups - whole * feature.present
                lengths = [(whole, feature.present - more), (whole + 1, more)]
            for length, samples in lengths:
                miss = (1 - min(q, 1.0)) ** length
                total += samples / self.stats.samples * (1 - miss)
        return total

    def run(self) -> None:
        """Send the sums of every column."""
        walk, table = self.walk, self.stats.table
        batch, rate = walk.profile.batch_size, walk.cluster.work.buffer_bytes_per_s
        pooled = [
            band
            for band in self.bands
            if band.exchange == "sums" and walk.cluster.level_of(band.scope)
        ]
        edges = {edge for band in pooled for edge in band.columns or (0, table.embedding_dim)}
        for column in range(table.embedding_dim):
            # Columns that the same bands have travel as one sum, which is packed as one row.
            sum_s = table.item_bytes / rate if rate else 0.0
            sum_s += walk.cluster.work.sum_s if column in edges else 0.0
            self.sum = batch * table.item_bytes, batch * walk.passes * sum_s
            for staged in (False, True):
                here = [
                    (walk.cluster.level_of(band.scope), mass)
                    for band, mass in zip(self.bands, self.mass, strict=True)
                    if band in pooled and band.staged == staged
                    if (band.columns or (0, 10**9))[0] <= column < (band.columns or (0, 10**9))[1]
                ]
                for reader in range(walk.W):
                    own = self._sums_per_sample(sum(mass[reader] for _, mass in here))
                    walk.does(reader, 2 * own * self.sum[1])
                    if staged:
                        self._staged_sums(reader, here)
                    else:
                        self._plain_sums(reader, here)

    def _send_sum(self, source: int, target: int, sums: float) -> None:
        """The one packs it, the other unpacks it, and if training both do so with gradients."""
        size_bytes, seconds = self.sum
        self.walk.send("forward", source, target, sums * size_bytes)
        self.walk.does(source, sums * seconds)
        self.walk.does(target, sums * seconds)

    def _plain_sums(self, reader: int, here: list) -> None:
        walk = self.walk
        for owner in range(walk.cluster.num_holders):
            far = walk.distance(reader, owner)
            if far:
                q = sum(mass[owner] for level, mass in here if level >= far)
                self._send_sum(owner, reader, self._sums_per_sample(q))

    def _staged_sums(self, reader: int, here: list) -> None:
        walk = self.walk
        for far in range(1, walk.K + 1):
            group = walk.group_of(reader, far)
            assert group is not None

            def sums(holders: tuple[int, ...], far: int = far) -> float:
                q = sum(mass[h] for level, mass in here if level >= far for h in holders)
                return self._sums_per_sample(q)

            for child in walk.children(far, group):
                if reader not in walk.groups[far - 1][child]:
                    collector = walk.device(far - 1, child, reader)
                    self._send_sum(collector, reader, sums(walk.groups[far - 1][child]))
                    self._collect(far - 1, child, reader, sums)
            for server in walk.attached(far, group):
                self._send_sum(server, reader, sums((server,)))

    def _collect(self, level: int, group: int, reader: int, sums) -> None:
        """Add up a group's sums in the device that has the reader's place in it."""
        walk = self.walk
        if level == 0:
            return
        collector = walk.device(level, group, reader)
        for child in walk.children(level, group):
            if collector not in walk.groups[level - 1][child]:
                source = walk.device(level - 1, child, reader)
                added = sums(walk.groups[level - 1][child])
                self._send_sum(source, collector, added)
                walk.extra_levels |= {level} if added else set()
            self._collect(level - 1, child, reader, sums)
        for server in walk.attached(level, group):
            added = sums((server,))
            self._send_sum(server, collector, added)
            walk.extra_levels |= {level} if added else set()
