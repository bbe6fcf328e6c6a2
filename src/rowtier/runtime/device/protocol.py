"""The operations that a step is made of, on tensors of one device.

Ids, addresses, slots, spots and edges are int64 (addresses of lookups may be int32), values fp32;
rows of tables may be fp16 or bf16 in `gather` and `update`. What is called *empty* has no entries:
an empty `weights` stands for ones.

Sums of floats follow one rule, on every device: the terms of a row are added in their order to
what is there, the first `CHUNK` of them one by one; each further chunk of so many is summed for
itself, and those sums are added in order. So a row that half of a batch looks up is not one long
chain, and the bits are the same whoever adds. Nothing else is left open: all operations give the
same bits everywhere, except `squares`, whose terms may be added in any order in fp64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from rowtier.runtime.device.rule import Rule

CHUNK = 256  # a hot row of 64 Ki lookups is then two chains of 256


class Kernels(Protocol):
    """Fourteen operations; arguments are of one device, and what is changed is said first."""

    name: str

    def remap(
        self, ids: Tensor, ends: Tensor, places: Tensor, tables: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Give ids their addresses (int32), part by part up to `ends`, and which parts lack some.

        `places` are lines of where a part's table begins in `tables`, and of its rows; addresses
        of a part that has an id outside of its table are undefined.
        """
        ...

    def distinct(self, address: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Give the distinct addresses, rising, all below `rows`, and which of them each is."""
        ...

    def holders(self, address: Tensor, bands: Tensor, owners: Tensor, ranks: int) -> Tensor:
        """Give the rank (int32) that holds each address, or `ranks` where no band has it.

        Bands are lines of start, stop, offset, rows of a block (0: spread) and members, by start.
        """
        ...

    def group(self, keys: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Give the order that brings keys below `size` together, each as they came, and counts."""
        ...

    def gather(self, rows: Tensor, slots: Tensor, lane: Tensor, at: Tensor) -> None:
        """Copy rows, in fp32, to their spots of the lane, which are distinct."""
        ...

    def add_rows(
        self, rows: Tensor, slots: Tensor, weights: Tensor, lane: Tensor, at: Tensor, first: int
    ) -> None:
        """Add rows, weighted, from their column `first` on, to spots of the lane."""
        ...

    def pool(
        self, lane: Tensor, at: Tensor, edges: Tensor, weights: Tensor, out: Tensor, first: int
    ) -> None:
        """Add the rows of every bag, weighted, to its line of `out` from column `first` on."""
        ...

    def pool_back(
        self, lane: Tensor, at: Tensor, edges: Tensor, weights: Tensor, grad: Tensor, first: int
    ) -> None:
        """Add every bag's gradient, weighted, to the spots of its rows: the transpose of `pool`."""
        ...

    def spread(self, lane: Tensor, at: Tensor, out: Tensor, first: int) -> None:
        """Copy every lookup's row, if it has a spot (≥ 0), to its line of `out` from `first` on."""
        ...

    def spread_back(self, lane: Tensor, at: Tensor, grad: Tensor, first: int) -> None:
        """Add every lookup's gradient to the spot of its row: the transpose of `spread`."""
        ...

    def sum_segments(
        self, lane: Tensor, at: Tensor, weights: Tensor, order: Tensor, starts: Tensor, scale: float
    ) -> Tensor:
        """Give the weighted sums of entries `order[starts[k] : starts[k + 1]]`, times `scale`.

        Entry e is the row `at[e]` of the lane, with weight `weights[e]`; no segment is empty.
        """
        ...

    def squares(self, grads: Tensor) -> Tensor:
        """Give the sum of g² of every row, added up in fp64 in any order, rounded to fp32."""
        ...

    def update(
        self, rule: Rule, weights: Tensor, slots: Tensor, grads: Tensor, state: Sequence[Tensor],
        squares: Tensor,
    ) -> None:  # fmt: skip
        """Change the rows at distinct slots, and their state, by their gradients, as the rule says.

        `squares` are means of g² over whole rows, for row-wise Adagrad; empty for the others.
        """
        ...

    def count_bands(self, entries: Tensor, counts: Tensor, starts: Tensor) -> Tensor:
        """Give bands × ranks: how many of each rank's entries lie between two of the starts."""
        ...


OPERATIONS = tuple(name for name in vars(Kernels) if not name.startswith("_") and name != "name")
