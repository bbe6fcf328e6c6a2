"""A figure of a paper against ours: what was said, what we found, and where it does not hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.claims.markdown import amount
from harness.claims.results import Data
from harness.form import Goal, meets

Settings = Mapping[str, float]


@dataclass(frozen=True)
class Claim:
    """One figure of a paper, and where ours is found."""

    paper: str
    claim: str
    said: str
    bar: Goal
    baseline: str
    how: str
    benchmark: str
    figure: str | Callable[[Data], float | None]
    by_setting: Callable[[Data], Settings]
    form: str = "×"

    def value(self, data: Data) -> float | None:
        """Our figure, or None where it was not measured."""
        if callable(self.figure):
            return self.figure(data)
        found = data["figures"].get(self.figure)
        return None if found is None else float(found)


@dataclass(frozen=True)
class Judged:
    """A claim with what we found."""

    claim: Claim
    ours: float | None
    short: Settings
    settings: int

    @property
    def reached(self) -> bool | None:
        """Whether our figure reaches the paper's; None if not measured."""
        return None if self.ours is None else meets(self.ours, self.claim.bar)

    @property
    def where_not(self) -> str:
        """The settings that fall short, by name."""
        if self.ours is None:
            return "not measured"
        if not self.settings:
            return "measured in one setting only"
        if not self.short:
            return f"holds in all {self.settings} settings"
        listed = [
            f"{name} ({amount(value, self.claim.form)})" for name, value in self.short.items()
        ]
        return f"short in {len(self.short)} of {self.settings} settings: {'; '.join(listed)}"

    def row(self) -> dict[str, object]:
        """The claim as a row of a benchmark."""
        return {
            "paper": self.claim.paper,
            "claim": self.claim.claim,
            "paper's figure": self.claim.said,
            "ours": self.ours,
            "baseline": self.claim.baseline,
            "how": self.claim.how,
            "where it does not hold": self.where_not,
            "reached": self.reached,
            "benchmark": self.claim.benchmark,
        }


def judge(claim: Claim, results: Mapping[str, Data]) -> Judged:
    """What the results say of a claim; a result that is not there is not measured."""
    data = results.get(claim.benchmark)
    if data is None:
        return Judged(claim, None, {}, 0)
    each = claim.by_setting(data)
    short = {name: value for name, value in each.items() if not meets(value, claim.bar)}
    return Judged(claim, claim.value(data), short, len(each))
