"""What a caller may assume about the training when it asks for a cost."""

from __future__ import annotations

from typing import Literal

from rowtier.fields import Name, Seconds
from rowtier.files import Noun
from rowtier.tables import Table

WEIGHT_BYTES = 4  # a lookup's own weight, fp32


class CostOptions(Noun):
    """Assumptions about the training; the defaults flatter no placement.

    `dense_s` is the time of the rest of the model, beside which a pipeline keeps copies equal, as
    far as the cluster's `work: hidden` says.
    """

    dense_s: Seconds = 0.0
    ids: Literal["wide", "narrow"] = "wide"
    training: bool = True  # count gradients, updates and sync; False: rows are only read
    weighted: frozenset[Name] = frozenset()  # tables whose lookups carry a weight each
    remap: Literal["array", "bitmap"] = "array"

    @property
    def reading(self) -> CostOptions:
        """The same of a step that only reads: `training` is False."""
        return self.model_copy(update={"training": False})

    def id_bytes(self, table: Table) -> int:
        """Bytes of an id on a link: 8, or 4 if narrow ids are allowed and the rows fit."""
        return 4 if self.ids == "narrow" and table.num_embeddings <= 2**31 else 8

    def bag_id_bytes(self, table: Table) -> int:
        """Bytes of an id that an owner pools: weighted lookups bring their weight along."""
        return self.id_bytes(table) + WEIGHT_BYTES * (table.name in self.weighted)


DEFAULTS = CostOptions()
