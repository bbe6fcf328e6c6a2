"""What a rank does besides moving bytes: the `work:` of a cluster file.

A handful of coefficients, measured by `rowtier calibrate` on the runtime's own kernels, and
multiplied by what the cost model counts. A file without them takes work to be free.

Launches of kernels have none of their own. A step makes so many for itself, for each round, bundle
and band, and for each band with copies; seconds of a launch times that number is part of `step_s`,
`round_s`, `bundle_s`, `band_s` and `copied_s`, and measuring steps could not tell it from them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rowtier.fields import BytesPerSecond, Seconds
from rowtier.files import Noun

# Optimizers that compute as much as another, whose time is measured, beside the bytes of their
# state: momentum is no more than sums and products, adamw one product more than adam.
_UPDATED_LIKE = {"momentum": "sgd", "adamw": "adam"}


class UpdateWork(Noun):
    """Seconds of updating one row, beside what its bytes take in memory, by optimizer.

    `momentum` takes what `sgd` takes, `adamw` what `adam` takes.
    """

    sgd: Seconds = 0.0
    adagrad: Seconds = 0.0
    rowwise_adagrad: Seconds = 0.0
    adam: Seconds = 0.0


class Work(Noun):
    """Seconds of a rank's own work, each for one of something.

    A *bundle* is several tables that run as one. A *distinct* row is one that a reader fetches once
    for all its lookups, a *plain* one it fetches for one of them. A *row* is one written
    to or read from a buffer: packed for a reader, unpacked by it, and the same for gradients and
    copies; a *sum* is the same of a partial sum. `buffer` is the rate of their bytes, `output`
    that of what the model gets, and of its gradients. `hidden` is the share of the rest of the
    model's time beside which a pipeline can keep copies equal; without one it is 0.
    """

    step_s: Seconds = Field(default=0.0, alias="step")
    round_s: Seconds = Field(default=0.0, alias="round")  # of an exchange, beside its latency
    table_s: Seconds = Field(default=0.0, alias="table")
    bundle_s: Seconds = Field(default=0.0, alias="bundle")
    band_s: Seconds = Field(default=0.0, alias="band")
    copied_s: Seconds = Field(default=0.0, alias="copied")  # more for a band that has copies
    lookup_s: Seconds = Field(default=0.0, alias="lookup")
    distinct_s: Seconds = Field(default=0.0, alias="distinct")
    plain_s: Seconds = Field(default=0.0, alias="plain")
    row_s: Seconds = Field(default=0.0, alias="row")
    sum_s: Seconds = Field(default=0.0, alias="sum")
    buffer_bytes_per_s: BytesPerSecond | None = Field(default=None, alias="buffer")
    output_bytes_per_s: BytesPerSecond | None = Field(default=None, alias="output")
    update: UpdateWork = UpdateWork()
    hidden: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0

    def copy_s(self, row_bytes: float) -> float:
        """Seconds of writing a row of this size to a buffer, or of reading it there."""
        return self.row_s + row_bytes * self.byte_s

    def sum_copy_s(self, sum_bytes: float) -> float:
        """The same of a partial sum."""
        return self.sum_s + sum_bytes * self.byte_s

    def asked_s(self, once: bool) -> float:
        """Seconds of a reader for a row that it asks for, beside writing and reading it."""
        return self.distinct_s if once else self.plain_s

    @property
    def byte_s(self) -> float:
        """Seconds of a byte in a buffer."""
        return 0.0 if self.buffer_bytes_per_s is None else 1 / self.buffer_bytes_per_s

    @property
    def output_byte_s(self) -> float:
        """Seconds of a byte that the model gets."""
        return 0.0 if self.output_bytes_per_s is None else 1 / self.output_bytes_per_s

    def update_s(self, optimizer: str) -> float:
        """Seconds of updating a row."""
        return float(getattr(self.update, _UPDATED_LIKE.get(optimizer, optimizer)))

    @property
    def is_free(self) -> bool:
        """Whether nothing is counted, since nothing was measured."""
        return self == Work(hidden=self.hidden)
