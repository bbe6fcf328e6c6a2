"""Plans by the cost model whose counts are gated: gaps of RM1 to RM3, bytes between nodes.

A few settings of recshard.py and traffic.py, enough to see that planning has not become worse.
"""

from __future__ import annotations

import sys

from harness.form import Measured, run
from traffic import Setting, planned

from rowtier import Cluster, PlanOptions, make_plan
from rowtier.synth.rm import rm_profile

KEY = ("setting", "method")
COUNTS = ("gap", "inter_node_bytes")
WAYS = {
    "recshard": ("recshard", PlanOptions()),
    "recshard, split": ("recshard", PlanOptions(split=True)),
    "joint": ("joint", PlanOptions()),
}


def gaps(model: str, ways: tuple[str, ...]) -> list[dict[str, object]]:
    """How far the plans of one model are from their bounds."""
    profile, cluster = rm_profile(model, seed=0), Cluster.preset("recshard-16")
    rows: list[dict[str, object]] = []
    for way in ways:
        certificate = make_plan(profile, cluster, *WAYS[way]).certificate
        assert certificate is not None
        rows.append({"setting": model, "method": way, "gap": certificate.gap})
    return rows


def moved(kind: str, zipf: float) -> list[dict[str, object]]:
    """Bytes between two nodes of eight devices under the papers' plans, no extra memory."""
    name = f"{kind}, Zipf {zipf}"
    return [
        {"setting": name, **{key: row[key] for key in ("method", "inter_node_bytes")}}
        for row in planned(Setting.of(kind, 2, zipf, seed=0), budget=0.0)
    ]


def measure(quick: bool) -> Measured:
    """The same whether quick or not."""
    del quick
    rows = gaps("rm1", ("recshard", "recshard, split"))
    rows += gaps("rm2", ("recshard", "recshard, split", "joint"))
    rows += gaps("rm3", ("recshard", "recshard, split"))
    for kind, zipf in (("sequence", 0.8), ("sequence", 1.2), ("pooled", 1.0)):
        print(f"{kind}, Zipf {zipf}", file=sys.stderr)
        rows += moved(kind, zipf)
    found = [gap for row in rows if isinstance(gap := row.get("gap"), float)]
    return Measured(rows, {"gap_max": max(found)})


if __name__ == "__main__":
    run("gated_plans", measure)
