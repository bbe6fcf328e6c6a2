"""The usual placements of the same tables on the same machine, to measure a plan against."""

from __future__ import annotations

from dataclasses import replace

from rowtier.plan.make import make_plan
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan


def plan_baseline(method: str, plan: Plan) -> Plan:
    """Place the tables of a plan by another method, on the plan's own statistics and cluster.

    With the plan's row order, blocks of row ids are as hot as they really are. Of a plan that
    serves, what is made serves, too.
    """
    made = make_plan(plan.profile, plan.cluster, method, PlanOptions(serve=plan.serves))
    return replace(
        made, order=plan.hotness_order, made_for=plan.made_for, vocabularies=plan.vocabularies
    )
