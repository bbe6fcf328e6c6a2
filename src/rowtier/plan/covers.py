"""Which plans a bound is about, in words: one list for those who certify and those who verify."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rowtier.plan.constraints import Constraints, ReservedBytes
from rowtier.units import show_bytes

JOINT = "plans of every kind that bands can say, by time of a step"
SERVING = "plans of every kind that bands can say, by time of a step that only reads"
RECSHARD_CUT = "plans that keep each row once, on devices, by memory time of the slowest device"
RECSHARD_WHOLE = (
    "plans that keep each table once, on one device, by memory time of the slowest device"
)
FLEXSHARD = (
    "plans that place what flexshard does not cut as row-wise does, cut the other tables into "
    "copies on every device, per node and once over all devices, fetch rows lookup by lookup and "
    "use no more memory of any device than row-wise at its peak, nor more for rows than there is, "
    "by time of all links"
)
SCA = (
    "plans whose rows have the holders that they have here and are fetched once per device and "
    "step, or are kept by every device in its fastest memory, beside exchange buffers and rows "
    "that fit nowhere else, by bytes on all links of a forward pass"
)
# By method: the view that it certifies in, and what its bounds may be about.
CERTIFIED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "joint": ("step", (JOINT,)),
    "recshard": ("recshard", (RECSHARD_CUT, RECSHARD_WHOLE)),
    "recshard-milp": ("recshard", (RECSHARD_WHOLE,)),
    "flexshard": ("flexshard", (FLEXSHARD,)),
    "sca": ("sca", (SCA,)),
}


def certified_view(method: str, *, serves: bool) -> str:
    """The view that a method certifies in: of `joint` the time of a step as the plan has it."""
    return "read-only" if serves and method == "joint" else CERTIFIED[method][0]


def joint_covers(constraints: Constraints, *, serves: bool) -> str:
    """What a bound of `joint` is about: its constraints take homes off the menu."""
    said = SERVING if serves else JOINT
    return f"{said}, within the constraints" if constraints.decides else said


def leaving(covers: str, left: Iterable[ReservedBytes]) -> str:
    """The same for plans that leave so many bytes free beside what is reserved (`fit: all`)."""
    tiers: dict[str, int] = {}
    for one in left:
        tiers[one.tier] = tiers.get(one.tier, 0) + one.amount_bytes
    said = " and ".join(f"{show_bytes(amount)} of {tier}" for tier, amount in tiers.items())
    return f"{covers}, leaving {said} free beside rows" if said else covers


def however_many(covers: str) -> str:
    """The same of a plan that may move only so many bytes: its bound is that without a budget."""
    return f"{covers}, however many bytes they would move"


def known_covers(
    method: str, constraints: Constraints, left: Iterable[ReservedBytes], *, serves: bool
) -> tuple[str, ...]:
    """All that a certificate of a method may say that its bound is about."""
    left = tuple(left)
    own = (joint_covers(constraints, serves=serves),)
    said = own if method == "joint" else CERTIFIED[method][1]
    found = tuple(leaving(one, left) for one in said)
    return (*found, *map(however_many, found))
