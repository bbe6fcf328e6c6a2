"""What a caller may ask of any planner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from rowtier.cost.memory import Reserve
from rowtier.cost.options import CostOptions
from rowtier.errors import Mistake
from rowtier.fields import Seconds
from rowtier.files import Noun
from rowtier.plan.constraints import Constraints, ReservedBytes

if TYPE_CHECKING:
    from rowtier.plan.plan import Plan


class PlanOptions(Noun):
    """Wishes that hold for every method; a method that has no use for one passes it over."""

    reserve: float = Field(default=0.0, ge=0.0, le=1.0)  # share of every tier to leave free
    constraints: Constraints = Constraints()  # pins, bytes to leave free, limits of links
    confidence: float | None = Field(default=None, gt=0.0, lt=1.0)  # plan for less heat than seen
    objective: Literal["step", "expected_max"] = "step"  # time of mean loads, or mean over steps
    batches: Literal["shuffled", "in_time_order"] = "shuffled"  # what a step is made of
    dense_s: Seconds = 0.0  # time of the rest of the model, beside which copies are kept equal
    fit: Literal["rows", "all"] = "rows"  # what must fit: rows, or buffers and remap tables too
    split: bool = Field(default=False, strict=True)  # tables may be cut over devices
    tolerance: float = Field(default=1e-3, ge=0.0)  # the gap at which a search may stop
    seed: int = Field(default=0, ge=0)  # of searches that try at random
    time_limit_s: float = Field(default=60.0, gt=0.0)  # of a solver that is not rowtier's own
    serve: bool = Field(default=False, strict=True)  # rows are only read: no state, no gradients
    rows_as: Literal["fp32", "fp16"] | None = None  # of a plan that serves: type of its rows

    @classmethod
    def cross_mistakes(cls, data: Mapping[str, Any]) -> Iterator[Mistake]:
        """Wishes that do not go together: serving has no sync to hide, training no other rows."""
        if data.get("serve"):
            if data.get("dense_s"):
                hint = "hides sync of copies, and a plan that serves has none; drop one of them"
                yield Mistake("dense_s", data["dense_s"], hint)
        elif data.get("rows_as") is not None:
            hint = "is for plans that serve: add serve, or set dtype in tables.yaml"
            yield Mistake("rows_as", data["rows_as"], hint)

    def leaving(self, more: Iterable[ReservedBytes]) -> PlanOptions:
        """The same wishes with more bytes left free."""
        reserve = (*self.constraints.reserve, *more)
        constraints = self.constraints.model_copy(update={"reserve": reserve})
        return self.model_copy(update={"constraints": constraints})

    @property
    def unusual(self) -> dict[str, Any]:
        """The wishes that are not as they are by default, constraints left aside."""
        return self.model_dump(exclude_defaults=True, exclude={"constraints"})

    @classmethod
    def of(cls, plan: Plan) -> PlanOptions:
        """The wishes that a plan was made with."""
        said = plan.origin.get("options", {})
        return cls(**said, constraints=plan.constraints or Constraints())

    @property
    def cost(self) -> CostOptions:
        """What the cost model is to assume."""
        return CostOptions(dense_s=self.dense_s, training=not self.serve)

    @property
    def reserved(self) -> Reserve:
        """All memory that rows may not use."""
        return self.constraints.reserved(self.reserve)
