"""What a plan that serves refuses: it has no room for optimizer state, and nothing trains."""

from __future__ import annotations

from rowtier.errors import UserError
from rowtier.plan.plan import Plan


def refuse_training(plan: Plan, what: str) -> None:
    """Refuse a call that trains, if the plan was made to serve."""
    if plan.serves:
        raise UserError(
            f"{what}: the plan was made with --serve, so its rows are only read; look up under "
            "torch.no_grad() or after eval(), or plan without --serve to train"
        )
