"""rowtier decides where every row of an embedding table lives, and proves how well.

    profile = rowtier.Profile.load("profile/")
    cluster = rowtier.Cluster.open("recshard-16")
    plan = rowtier.make_plan(profile, cluster, method="size-lookup")
    plan.save("plan/")

Names are imported when first used, so that `import rowtier` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rowtier.band import Band
    from rowtier.cluster import Cluster, Device, Level, Server, Tier
    from rowtier.errors import (
        InfeasibleError,
        InvalidError,
        MismatchError,
        RowtierError,
        UserError,
    )
    from rowtier.evaluate.compare import Comparison, compare
    from rowtier.evaluate.diff import Diff, diff
    from rowtier.evaluate.explain import Explanation, explain
    from rowtier.evaluate.predict import Prediction, predict
    from rowtier.evaluate.replay import Replay, replay
    from rowtier.kinds import load
    from rowtier.plan.constraints import Constraints
    from rowtier.plan.make import METHODS, make_plan
    from rowtier.plan.options import PlanOptions
    from rowtier.plan.plan import Certificate, Plan
    from rowtier.profile.curve import Curve
    from rowtier.profile.ids import rows_of
    from rowtier.profile.make import ProfileOptions, make_profile
    from rowtier.profile.profile import FeatureStats, Profile, RowCounts, TableStats
    from rowtier.profile.vocabulary import Vocabulary
    from rowtier.report.html import Report, make_report
    from rowtier.runtime.checkpoint.read_export import ServedRows, read_export
    from rowtier.runtime.deltas.delta import Delta
    from rowtier.synth.make import WORKLOADS, make_workload
    from rowtier.tables import Table, Tables
    from rowtier.work import UpdateWork, Work

_HOME = {
    "Cluster": "cluster", "Device": "cluster", "Level": "cluster", "Server": "cluster",
    "Tier": "cluster",
    "InfeasibleError": "errors", "InvalidError": "errors", "MismatchError": "errors",
    "RowtierError": "errors", "UserError": "errors",
    "Comparison": "evaluate.compare", "compare": "evaluate.compare",
    "Diff": "evaluate.diff", "diff": "evaluate.diff",
    "Explanation": "evaluate.explain", "explain": "evaluate.explain",
    "Prediction": "evaluate.predict", "predict": "evaluate.predict",
    "Replay": "evaluate.replay", "replay": "evaluate.replay",
    "Band": "band", "load": "kinds",
    "Constraints": "plan.constraints",
    "METHODS": "plan.make", "PlanOptions": "plan.options", "make_plan": "plan.make",
    "Certificate": "plan.plan", "Plan": "plan.plan",
    "Curve": "profile.curve",
    "rows_of": "profile.ids", "Vocabulary": "profile.vocabulary",
    "FeatureStats": "profile.profile", "Profile": "profile.profile",
    "RowCounts": "profile.profile", "TableStats": "profile.profile",
    "ProfileOptions": "profile.make", "make_profile": "profile.make",
    "Delta": "runtime.deltas.delta",
    "Report": "report.html", "make_report": "report.html",
    "ServedRows": "runtime.checkpoint.read_export",
    "read_export": "runtime.checkpoint.read_export",
    "WORKLOADS": "synth.make", "make_workload": "synth.make",
    "Table": "tables", "Tables": "tables",
    "UpdateWork": "work", "Work": "work",
}  # fmt: skip

__all__ = [
    "METHODS",
    "WORKLOADS",
    "Band",
    "Certificate",
    "Cluster",
    "Comparison",
    "Constraints",
    "Curve",
    "Delta",
    "Device",
    "Diff",
    "Explanation",
    "FeatureStats",
    "InfeasibleError",
    "InvalidError",
    "Level",
    "MismatchError",
    "Plan",
    "PlanOptions",
    "Prediction",
    "Profile",
    "ProfileOptions",
    "Replay",
    "Report",
    "RowCounts",
    "RowtierError",
    "ServedRows",
    "Server",
    "Table",
    "TableStats",
    "Tables",
    "Tier",
    "UpdateWork",
    "UserError",
    "Vocabulary",
    "Work",
    "__version__",
    "compare",
    "diff",
    "explain",
    "load",
    "make_plan",
    "make_profile",
    "make_report",
    "make_workload",
    "predict",
    "read_export",
    "replay",
    "rows_of",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rowtier' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rowtier.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
