"""Growing tables in a replay: ids get rows step by step, as they would in training."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pyarrow as pa

from rowtier.evaluate.batches import RowBags, StepSamples, StepWindow
from rowtier.plan.plan import Plan
from rowtier.profile.growing import GrowingTable, GrowingVocabulary, IdFeature
from rowtier.profile.ids import IdValues
from rowtier.profile.readers.base import Ids
from rowtier.tables import Table


class StepGrowth:
    """The vocabularies of a plan's growing tables, and ids of steps that are not complete yet."""

    def __init__(self, plan: Plan) -> None:
        self._tables = {
            table.name: GrowingTable.of(
                GrowingVocabulary.of(table, plan.vocabularies.get(table.name))
            )
            for table, _ in plan
            if table.grows
        }
        self._held: dict[int, list[tuple[StepSamples, dict[str, Ids]]]] = defaultdict(list)
        self._clock = 0

    def hold(self, window: StepWindow) -> None:
        """Keep the ids of a window's samples until their steps are complete."""
        names = [name for one in self._tables.values() for name in one.vocabulary.table.features]
        for piece in window.pieces if names else ():
            ids = {n: window.chunk.features[n].cut(piece.start, piece.stop) for n in names}
            self._held[piece.step].append((piece, ids))

    def finish(self, step: int) -> dict[str, list[RowBags]]:
        """By table the rows of a whole step, which is one global batch; per feature."""
        held = sorted(self._held.pop(step, []), key=lambda entry: entry[0].first)
        self._clock += 1
        return {
            name: self._resolved(one, [ids for _, ids in held])
            for name, one in self._tables.items()
        }

    def _resolved(self, growing: GrowingTable, held: list[dict[str, Ids]]) -> list[RowBags]:
        table: Table = growing.vocabulary.table
        features = [_joined(name, [ids[name] for ids in held]) for name in table.features]
        rows = growing.resolve(features, self._clock, self._clock)
        return [
            RowBags(found, np.diff(feature.edges), True, feature.edges)
            for found, feature in zip(rows, features, strict=True)
        ]


def _joined(name: str, parts: list[Ids]) -> IdFeature:
    lengths = [
        np.ones(len(part.values), dtype=np.int64) if part.lengths is None else part.lengths
        for part in parts
    ]
    edges = np.concatenate(([0], np.cumsum(np.concatenate(lengths)))).astype(np.int64)
    return IdFeature(name, _values([part.values for part in parts if len(part.values)]), edges)


def _values(parts: list[IdValues]) -> IdValues:
    if not parts:
        return np.empty(0, dtype=np.int64)
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return pa.concat_arrays(parts)
