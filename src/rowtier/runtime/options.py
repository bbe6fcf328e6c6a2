"""How a plan is run: what a user chooses when a module is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rowtier.errors import UserError
from rowtier.runtime.exchange.watchdog import Patience
from rowtier.runtime.store.storage import Init
from rowtier.runtime.store.tier_memories import Tiers

Gradients = Literal["mean", "sum"]
USUAL_HEAT_COUNTS = 64  # steps for each that is counted: well below 1 % of training time
_MOST_HEAT_COUNTS = 2**31


@dataclass(frozen=True)
class RunOptions:
    """How a plan is run; what it decides is not in here.

    `gradients`: "mean" divides the sum over all ranks by their number, as DDP and TorchRec
    do; "sum" does not. `ids`: "narrow" sends 4 bytes an id where the table allows.
    `rows`: batches hold rows, made with `plan.rows_of`, in place of ids.
    `tiers` maps tier names to folders, or `Disk`s; all others are RAM.
    `counters`: count rows and bytes of every band, which takes time in every step; bytes per
    link level are counted always. `heat_counts`: count the lookups of rows in one of so many
    training steps, for `profile()`; True is one in 64, None is off. `deltas`: mark rows that
    change, a byte a row, for `delta()` and `delta_of=` of `save_checkpoint`. `device`: where rows
    are computed with; None is a GPU if the plan has HBM and the process group reaches it, else the
    host. `watchdog_s`: a rank
    that waits so long for others warns; after `watchdog_abort_s` it raises.
    """

    gradients: Gradients = "mean"
    ids: Literal["narrow", "wide"] = "narrow"
    tiers: Tiers = field(default_factory=dict)
    local_world_size: int | None = None
    seed: int = 0
    init: Init | None = None
    rows: bool = False
    counters: bool = False
    heat_counts: int | None = None
    watchdog_s: float = Patience().warn_s
    watchdog_abort_s: float = Patience().abort_s
    deltas: bool = False
    device: str | None = None

    def __post_init__(self) -> None:
        for name, accepted in (("gradients", ("mean", "sum")), ("ids", ("narrow", "wide"))):
            if getattr(self, name) not in accepted:
                raise UserError(
                    f"{name} {getattr(self, name)!r}: accepted are {', '.join(accepted)}"
                )
        object.__setattr__(self, "heat_counts", _counted_steps(self.heat_counts))
        self.patience.check()

    @property
    def patience(self) -> Patience:
        """How long this rank waits for others."""
        return Patience(self.watchdog_s, self.watchdog_abort_s)


def _counted_steps(given: int | None) -> int | None:
    """Of how many training steps one is counted; None: of none."""
    if given is None or given is False:
        return None
    if given is True:
        return USUAL_HEAT_COUNTS
    if not isinstance(given, int) or not 0 <= given <= _MOST_HEAT_COUNTS:
        raise UserError(
            f"heat_counts {given!r}: give of how many steps one is counted, such as "
            f"{USUAL_HEAT_COUNTS}; 0 or None counts none"
        )
    return given or None
