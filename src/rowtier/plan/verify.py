"""Check a plan's claims by code that shares nothing with the solvers.

The invariants are `check.py`'s; the objective is recomputed from the finished bands by the
cost model, in the view that the certificate names, and the bound from its prices (`prove.py`). All
of it from the profile and the cluster that the plan was made from where they are given, else from
the plan's own copies. A solver's word is never enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rowtier.cluster import Cluster
from rowtier.cost.step import step_cost
from rowtier.cost.views import assumptions, objective
from rowtier.errors import Mistake
from rowtier.plan.check import find_mistakes, option_mistakes, stamp_mistakes
from rowtier.plan.claims import (
    PROOF_TOLERANCE,
    assumed,
    bound_mistakes,
    kept_mistakes,
    missing_proof,
    objective_mistakes,
    round_mistakes,
    word_mistakes,
)
from rowtier.plan.constraints import Constraints
from rowtier.plan.covers import known_covers
from rowtier.plan.originals import Originals
from rowtier.plan.plan import Plan
from rowtier.plan.prove import Proved, proof_mistakes, prove
from rowtier.profile.profile import Profile
from rowtier.reading import StrPath

__all__ = ["PROOF_TOLERANCE", "Verdict", "verify"]


@dataclass(frozen=True)
class Verdict:
    """What a plan claims, and what was found."""

    mistakes: tuple[Mistake, ...]
    view: str | None
    claimed: float | None
    recomputed: float | None
    bound: float | None  # as claimed
    covers: str  # which plans the bound is about; empty if the plan does not say
    proved: float | None  # the bound, recomputed from its prices
    step_s: float | None  # None where the bands cannot be priced
    against: str = Originals().says  # what everything was recomputed from
    assumes: tuple[str, ...] = ()  # beside profile and cluster: the word of who made the plan

    @property
    def holds(self) -> bool:
        """Whether every claim that can be checked holds."""
        return not self.mistakes

    @property
    def gap_is_proved(self) -> bool:
        """Whether the gap is more than a claim."""
        return self.gap is not None and (self.proved is not None or self.recomputed == 0)

    @property
    def gap(self) -> float | None:
        """At most this share above the best possible, as proved, or else as claimed.

        From the recomputed objective; none where a claim does not hold.
        """
        if self.mistakes or self.recomputed is None or self.certified is None:
            return None
        if self.certified == 0:
            return 0.0 if self.recomputed == 0 else None
        return max(0.0, self.recomputed / self.certified - 1)

    @property
    def certified(self) -> float | None:
        """The bound: no more than is claimed, and than is proved."""
        if self.bound is None or self.proved is None:
            return self.bound
        return min(self.bound, self.proved)

    def to_dict(self) -> dict[str, Any]:
        """The same facts for machines."""
        found = [{"key": m.key, "accepted": m.accepted} for m in self.mistakes]
        return {
            "holds": self.holds,
            "mistakes": found,
            "against": self.against,
            "assumes": list(self.assumes),
            "view": self.view,
            "gap": self.gap,
            "gap_is": None if self.gap is None else "proved" if self.gap_is_proved else "claimed",
            "covers": self.covers,
            "claimed": self.claimed,
            "recomputed": self.recomputed,
            "bound": self.bound,
            "proved": self.proved,
            "step_s": self.step_s,
        }


def verify(
    plan: Plan | StrPath,
    profile: Profile | StrPath | None = None,
    cluster: Cluster | StrPath | None = None,
) -> Verdict:
    """Recompute everything that a plan says about itself.

    From the profile and the cluster that it was made from, if they are given, else from its own
    copies of them. All three may be paths, and the cluster the name of a preset; of a plan folder
    also missing fingerprints are found.
    """
    mistakes = []
    if not isinstance(plan, Plan):
        from rowtier.plan.storage import missing_seals

        folder, plan = plan, Plan.load(plan)
        mistakes += missing_seals(folder)
    if profile is not None and not isinstance(profile, Profile):
        profile = Profile.load(profile)
    if cluster is not None and not isinstance(cluster, Cluster):
        cluster = Cluster.open(cluster)
    return _verified(plan, Originals(profile, cluster), mistakes)


def _verified(plan: Plan, originals: Originals, mistakes: list[Mistake]) -> Verdict:
    certificate = plan.certificate
    strange = list(stamp_mistakes(plan))
    differs = [] if any(option_mistakes(plan)) else list(originals.mistakes(plan))
    if not strange and not differs:
        plan = originals.seen_by(plan)
    strange += [*find_mistakes(plan), *word_mistakes(plan)]
    mistakes += [*differs, *strange]
    found = _Recomputed() if strange else _recomputed(plan, mistakes)
    proved = None if found.proved is None else found.proved.seconds
    covers = "" if certificate is None else certificate.covers
    if certificate is not None and not covers and proved is not None:
        wanted = plan.constraints or Constraints()  # files of earlier versions do not say
        covers = known_covers(plan.method, wanted, certificate.left, serves=plan.serves)[0]
    return Verdict(
        tuple(mistakes),
        None if certificate is None else certificate.view,
        None if certificate is None else certificate.objective,
        found.objective,
        None if certificate is None else certificate.bound,
        covers,
        None if mistakes else proved,
        found.step_s,
        originals.says,
        assumed(plan) if found.step_s is not None else (),
    )


@dataclass(frozen=True)
class _Recomputed:
    objective: float | None = None
    proved: Proved | None = None
    step_s: float | None = None


def _recomputed(plan: Plan, mistakes: list[Mistake]) -> _Recomputed:
    """What the bands cost and what is proved of that, with all claims held against it."""
    cost = step_cost(plan.bands, plan.profile, plan.cluster, plan.order, plan.assumed)
    mistakes += kept_mistakes(plan, cost)
    certificate = plan.certificate
    if certificate is None:
        return _Recomputed(step_s=cost.step_s)
    facts = (plan.bands, plan.profile, plan.cluster, plan.order)
    costs = objective(certificate.view, *facts, assumptions(certificate.view, plan.assumed))
    mistakes += objective_mistakes(certificate, costs)
    mistakes += round_mistakes(certificate, cost)
    mistakes += missing_proof(plan)
    mistakes += [mistake.below("certificate.proof") for mistake in proof_mistakes(plan)]
    proved = prove(plan)
    if proved is not None:
        mistakes += bound_mistakes(certificate, proved)
    return _Recomputed(costs, proved, cost.step_s)
