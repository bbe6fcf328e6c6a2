"""What a caller may ask of any planner."""

from __future__ import annotations

from pydantic import Field

from rowtier.files import Noun


class PlanOptions(Noun):
    """Wishes that hold for every method."""

    reserve: float = Field(default=0.0, ge=0.0, le=1.0)  # share of every tier to leave free
