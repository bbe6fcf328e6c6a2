"""The operations that a step is made of, on arrays of one device.

On the host arrays are numpy's, elsewhere torch's tensors: what `side.py` makes. Ids, addresses,
slots, spots and edges are int64 (addresses of lookups may be int32), values fp32; rows of tables
may be of 16 bits in `gather` and `update` (on the host float16, or uint16 for the bits of bf16).
What is called *empty* has no entries: an empty `weights` stands for ones.

Sums of floats follow one rule, on every device: the terms of a row are added in their order to
what is there, the first `CHUNK` of them one by one; each further chunk of so many is summed for
itself, and those sums are added in order. So a row that half of a batch looks up is not one long
chain, and the bits are the same whoever adds. The host's own loops (`host.py`) add all terms one
by one, as nobody waits there, and have the same bits where no row has more than `CHUNK`;
`device/chained.py` holds them to the rule. All operations give the same bits everywhere, except
`squares` (in fp64) and `weights_back`, whose terms may be added in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from rowtier.runtime.kernels.rule import Rule

CHUNK = 256  # a hot row of 64 Ki lookups is then two chains of 256
Array = Any  # numpy's on the host, a tensor elsewhere


class Kernels(Protocol):
    """Sixteen operations; arguments are of one device, and what is changed is said first."""

    name: str

    def remap(self, ids: Array, ends: Array, places: Array, tables: Array) -> tuple[Array, Array]:
        """Give ids their addresses (int32), part by part up to `ends`, and which parts lack some.

        `places` are lines of where a part's table begins in `tables`, and of its rows; addresses
        of a part that has an id outside of its table are undefined.
        """
        ...

    def distinct(self, address: Array, rows: int) -> tuple[Array, Array]:
        """Give the distinct addresses, rising, all below `rows`, and which of them each is."""
        ...

    def holders(self, address: Array, bands: Array, owners: Array, ranks: int) -> Array:
        """Give the rank (int32) that holds each address, or `ranks` where no band has it.

        Bands are lines of start, stop, offset, rows of a block (0: spread) and members, by start.
        """
        ...

    def group(self, keys: Array, size: int) -> tuple[Array, Array]:
        """Give the order that brings keys below `size` together, each as they came, and counts."""
        ...

    def gather(self, rows: Array, slots: Array, lane: Array, at: Array, first: int) -> None:
        """Copy rows, from their column `first` on, in fp32, to their spots, which are distinct."""
        ...

    def add_rows(
        self, rows: Array, slots: Array, weights: Array, lane: Array, at: Array, first: int
    ) -> None:
        """Add rows, weighted, to spots of the lane.

        `first` is a column of whichever is wider: there as many columns count as the other has.
        """
        ...

    def pool(
        self, lane: Array, at: Array, edges: Array, weights: Array, out: Array | None, first: int
    ) -> Array:
        """Add the rows of every bag, weighted, to its line of `out` from column `first` on.

        Without `out` there are new lines, as wide as the lane.
        """
        ...

    def pool_back(
        self, lane: Array, at: Array, edges: Array, weights: Array, grad: Array, first: int
    ) -> None:
        """Add every bag's gradient, weighted, to the spots of its rows: the transpose of `pool`."""
        ...

    def weights_back(
        self, lane: Array, at: Array, edges: Array, grad: Array, first: int, out: Array
    ) -> None:
        """Add to `out`, of each lookup that has a spot, its row times its bag's gradient."""
        ...

    def spread(self, lane: Array, at: Array, out: Array, first: int) -> None:
        """Copy every lookup's row, if it has a spot (≥ 0), to its line of `out` from `first` on."""
        ...

    def spread_back(self, lane: Array, at: Array, grad: Array, first: int) -> None:
        """Add every lookup's gradient to the spot of its row: the transpose of `spread`."""
        ...

    def sum_segments(
        self, lane: Array, at: Array, weights: Array, order: Array, starts: Array, scale: float
    ) -> Array:
        """Give the weighted sums of entries `order[starts[k] : starts[k + 1]]`, times `scale`.

        Entry e is the row `at[e]` of the lane, with weight `weights[e]`; no segment is empty.
        """
        ...

    def sum_and_update(
        self, rule: Rule, rows: Array, slots: Array, lane: Array, at: Array, weights: Array,
        order: Array, starts: Array, scale: float,
    ) -> None:  # fmt: skip
        """Do what `sum_segments` and `update` do one after the other; for SGD only."""
        ...

    def squares(self, grads: Array) -> Array:
        """Give the sum of g² of every row, added up in fp64 in any order, rounded to fp32."""
        ...

    def update(
        self, rule: Rule, weights: Array, slots: Array, grads: Array, state: Sequence[Array],
        squares: Array,
    ) -> None:  # fmt: skip
        """Change the rows at distinct slots, and their state, by their gradients, as the rule says.

        `squares` are means of g² over whole rows, for row-wise Adagrad; empty for the others.
        """
        ...

    def count_bands(self, entries: Array, counts: Array, starts: Array) -> Array:
        """Give bands × ranks: how many of each rank's entries lie between two of the starts."""
        ...


OPERATIONS = tuple(name for name in vars(Kernels) if not name.startswith("_") and name != "name")
