"""What a caller may assume about the machine and the training when it asks for a cost."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rowtier.fields import Name
from rowtier.files import Noun
from rowtier.tables import Table

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Efficiency = Annotated[float, Field(gt=0.0, le=1.0)]

WEIGHT_BYTES = 4  # a lookup's own weight, fp32


class CostOptions(Noun):
    """Figures that are measured, not planned; the defaults flatter no placement.

    `overlap` is the share of replica sync that runs beside the dense backward pass (φ).
    Efficiencies are what a collective reaches of the link's bandwidth: `exchange` for the
    many small messages of ids, rows and partial sums, `sync` for the all-reduce of copies.
    """

    overlap: Share = 0.0
    exchange_efficiency: Efficiency = 1.0
    sync_efficiency: Efficiency = 1.0
    ids: Literal["wide", "narrow"] = "wide"
    training: bool = True  # count gradients, updates and sync; False: the forward pass alone
    weighted: frozenset[Name] = frozenset()  # tables whose lookups carry a weight each
    remap: Literal["array", "bitmap"] = "array"

    def id_bytes(self, table: Table) -> int:
        """Bytes of an id on a link: 8, or 4 if narrow ids are allowed and the rows fit."""
        return 4 if self.ids == "narrow" and table.num_embeddings <= 2**31 else 8

    def bag_id_bytes(self, table: Table) -> int:
        """Bytes of an id that an owner pools: weighted lookups bring their weight along."""
        return self.id_bytes(table) + WEIGHT_BYTES * (table.name in self.weighted)


DEFAULTS = CostOptions()
