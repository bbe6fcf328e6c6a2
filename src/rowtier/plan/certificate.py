"""The Certificate: how good a plan is, what proves it, and what it was made for."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, FiniteFloat

from rowtier.fields import Name
from rowtier.files import Noun
from rowtier.plan.constraints import ReservedBytes

GIGA = 1e9
STEP_VIEWS = ("step", "read-only")  # whose objective is the time of a step


class MadeFor(Noun):
    """Fingerprints of what a plan was made from."""

    profile: str
    cluster: str


class Price(Noun):
    """What more of one resource would save of the objective, per step.

    For one more GB of a memory, on every device, at most this; for one more GB/s of each of a
    level's links at least this, as rows can then be placed anew.
    """

    resource: Name  # tier or level
    unit: Literal["GB", "GB/s"]
    saves: FiniteFloat


class ProvedCase(Noun):
    """Prices that prove a bound for plans that take part in no other rounds."""

    widest: Name | None = None  # level that anybody asks through; None: nobody asks
    meets: Name | None = None  # the first level at which copies meet; None: there are no copies
    relayed: bool = False  # whether rows may pass from gateway to gateway
    prices: tuple[FiniteFloat, ...]


class Proof(Noun):
    """Prices of a byte of every memory that prove a bound: whatever they are, it is one.

    Memories of a device first, fastest first, then those of servers. What must be true of the
    cluster or of the statistics is not in here: `prove.py` takes it from them. On RecShard's
    objective that is all it takes, and there are no prices.
    """

    prices: tuple[FiniteFloat, ...]  # for all plans
    # Earlier versions wrote the bytes that these are prices of. Nothing reads them any more.
    capacity_bytes: tuple[float, ...] = ()
    sync_weight: float = Field(default=1.0, ge=0.0, le=1.0)  # if some of it is hidden
    holder_weights: tuple[FiniteFloat, ...] = ()  # of devices, and of each kind of servers
    # Where shares of lookups that go by sums are cut.
    masses: tuple[tuple[FiniteFloat, ...], ...] = ()
    cases: tuple[ProvedCase, ...] = ()  # plans that have fewer rounds


RoundKind = Literal["exchange", "gateways", "copies"]


class RoundsUsed(Noun):
    """Rounds that a plan has of one kind, and what nothing beats that has none of them."""

    kind: RoundKind
    rounds: int
    without: FiniteFloat | None = None  # seconds; None: every plan has them


class Caution(Noun):
    """What planning for less heat than was seen costs if all goes as expected, and saves if not.

    Objectives in the certificate's view, of the cautious plan and of the plan that would have
    been made without caution.
    """

    confidence: FiniteFloat
    expected: FiniteFloat  # this plan, if hot rows are as hot as expected
    expected_without: FiniteFloat
    pessimistic: FiniteFloat  # this plan, if they are only as hot as the confidence says
    pessimistic_without: FiniteFloat

    @property
    def price(self) -> float:
        """Share that caution adds to the objective if all goes as expected."""
        return self.expected / self.expected_without - 1 if self.expected_without else 0.0

    @property
    def gain(self) -> float:
        """Share that caution saves if hot rows are as cold as it feared."""
        return 1 - self.pessimistic / self.pessimistic_without if self.pessimistic_without else 0.0


class Certificate(Noun):
    """How far a plan can be from the best: nothing beats `bound`, the plan costs `objective`.

    `covers` says which plans `bound` is about, and by which measure.

    `from_statistics` is the share by which the objective may be off because the statistics
    are: what it rises by if hot rows take only the low end of their 90 % interval.
    """

    view: Name  # which objective of the cost model
    objective: FiniteFloat
    bound: FiniteFloat
    covers: str = ""  # empty in files of versions that did not write it
    left: tuple[ReservedBytes, ...] = ()  # bytes left free beside rows, where all must fit
    binding: str
    prices: tuple[Price, ...] = ()
    rounds: tuple[RoundsUsed, ...] = ()  # of `joint`
    proof: Proof | None = None  # `plan/prove.py` recomputes the bound from it
    from_statistics: FiniteFloat | None = None
    caution: Caution | None = None

    @property
    def gap(self) -> float:
        """At most this share above the best possible."""
        return self.objective / self.bound - 1 if self.bound else 0.0

    @property
    def times_a_step(self) -> bool:
        """Whether the objective is the time of a step: of training, or of one that reads."""
        return self.view in STEP_VIEWS
