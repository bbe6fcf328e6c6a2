"""What a user does next with each kind of input: it is done, or a `RowtierError` says why not."""

from __future__ import annotations

import contextlib
import io
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import rowtier
from fault_kinds.fuzz.draw import Case
from rowtier.backends.read import even_heat
from rowtier.cost.step import step_cost
from rowtier.errors import InvalidError
from rowtier.evaluate.explain import explain
from rowtier.evaluate.predict import predict
from rowtier.evaluate.what_if import changed
from rowtier.kinds import load
from rowtier.plan.constraints import Constraints
from rowtier.plan.make import make_plan
from rowtier.plan.options import PlanOptions
from rowtier.plan.plan import Plan
from rowtier.plan.verify import verify
from rowtier.profile.look import expected_of, look_at_all
from rowtier.profile.make import make_profile
from rowtier.profile.profile import Profile
from rowtier.units import parse_bandwidth, parse_bytes, parse_count, parse_seconds, parse_share

MOST_COUNTED = 2**22  # rows
EXIT_CODES = (0, 2, 3)


class NonsenseError(Exception):
    """A result that no refusal and no answer is."""


def run_target(case: Case, folder: Path, corpus: Path) -> None:
    """Do with a base in `folder` what its users do; `corpus` has all bases as they were."""
    TARGETS[case.base](folder, case, corpus)


def _finite(*numbers: float) -> None:
    for number in numbers:
        if not math.isfinite(number) or number < 0:
            raise NonsenseError(f"a figure is {number}")


def _tables(folder: Path, _: Case, corpus: Path) -> None:
    tables = rowtier.Tables.load(folder / "tables.yaml")
    tables.save(folder / "again.yaml")
    if rowtier.Tables.load(folder / "again.yaml").fingerprint != tables.fingerprint:
        raise NonsenseError("saved and loaded again, the tables are others")
    cluster = rowtier.Cluster.load(corpus / "cluster" / "cluster.yaml")
    plan = make_plan(even_heat(tables), cluster, "row-wise")
    _finite(predict(plan).step_s)


def _cluster(folder: Path, _: Case, corpus: Path) -> None:
    cluster = rowtier.Cluster.load(folder / "cluster.yaml")
    cluster.save(folder / "again.yaml")
    if rowtier.Cluster.load(folder / "again.yaml").fingerprint != cluster.fingerprint:
        raise NonsenseError("saved and loaded again, the cluster is another")
    profile = Profile.load(corpus / "curve" / "profile")
    for method in ("row-wise", "size"):
        plan = make_plan(profile, cluster, method)
        _finite(predict(plan).step_s)


def _constraints(folder: Path, _: Case, corpus: Path) -> None:
    constraints = Constraints.load(folder / "constraints.yaml")
    plan = Plan.load(corpus / "plan-row-wise" / "plan")
    mistakes = list(constraints.mistakes(plan.profile, plan.cluster))
    if mistakes:
        raise InvalidError("constraints", mistakes)
    cost = step_cost(plan.bands, plan.profile, plan.cluster, plan.order, plan.assumed)
    list(constraints.violations(plan.bands, cost))
    _finite(*constraints.excess(cost).values())
    make_plan(plan.profile, plan.cluster, "row-wise", PlanOptions(constraints=constraints))


def _profile(folder: Path, _: Case, corpus: Path) -> None:
    profile = Profile.load(folder / "profile")
    for look in look_at_all(profile):
        _finite(look.coverage, look.pooling, look.lookups, *look.served_by, look.wasted_bytes)
    for stats in profile.stats:
        _all_finite(expected_of(profile, stats).to_dict())
    cluster = rowtier.Cluster.load(corpus / "cluster" / "cluster.yaml")
    plan = make_plan(profile, cluster, "row-wise")
    _finite(predict(plan).step_s)


def _all_finite(data: Any) -> None:
    """Intervals may be unknown (NaN), figures may not be infinite."""
    if isinstance(data, float) and math.isinf(data):
        raise NonsenseError(f"a forecast is {data}")
    if isinstance(data, (dict, list, tuple)):
        for value in data.values() if isinstance(data, dict) else data:
            _all_finite(value)


def _plan(folder: Path, _: Case, __: Path) -> None:
    plan = load(folder / "plan")
    assert isinstance(plan, Plan)
    prediction = predict(plan)
    _finite(prediction.step_s)
    prediction.to_dict()
    explain(plan).to_dict()
    verify(plan)
    if plan.order is not None:
        for table, _bands in plan:
            plan.rows_in_order(table.name)


def _data(name: str) -> Callable[[Path, Case, Path], None]:
    def profile(folder: Path, _: Case, __: Path) -> None:
        tables = rowtier.Tables.load(folder / "tables.yaml")
        if sum(table.num_embeddings for table in tables) > MOST_COUNTED:
            return  # it takes as long as it says
        found = make_profile(folder / name, tables)
        for look in look_at_all(found):
            _finite(look.coverage, look.pooling)

    return profile


def _vocabulary(folder: Path, _: Case, __: Path) -> None:
    table = rowtier.Table(
        name="word", num_embeddings=20, embedding_dim=4, features=("word",), ids="vocabulary"
    )
    for name in ("words", "numbers"):
        found = rowtier.Vocabulary.load(folder / f"{name}.parquet")
        found.check(table, name)
        ids: Any = ["w1", "w2", "other"] if found.strings else [0, 7, 99]
        with contextlib.suppress(rowtier.RowtierError):
            rowtier.rows_of(table, ids, found)


def _texts(_: Path, case: Case, corpus: Path) -> None:
    change = case.changes[0]
    for parse in (parse_bytes, parse_bandwidth, parse_seconds, parse_count, parse_share):
        with contextlib.suppress(rowtier.RowtierError):
            _finite(abs(parse(change["value"])))
    plan = Plan.load(corpus / "plan-row-wise" / "plan")
    cluster, batch_size = changed(plan, [f"{change['key']}={change['value']}"])
    replanned = make_plan(plan.profile, cluster, "row-wise")
    cost = step_cost(replanned.bands, plan.profile, cluster, None, plan.assumed)
    _finite(cost.step_s, predict(replanned, batch_size=batch_size).step_s)


def _options(folder: Path, case: Case, corpus: Path) -> None:
    from rowtier.cli.main import main

    places = {
        "plan": corpus / "plan-row-wise" / "plan",
        "counted": corpus / "counted" / "profile",
        "cluster": corpus / "cluster" / "cluster.yaml",
        "parquet": corpus / "parquet",
        "out": folder / "out",
    }
    arguments = list(case.changes[0]["value"])
    for name, path in places.items():
        arguments = [text.replace(f"{{{name}}}", str(path)) for text in arguments]
    code: object = 0
    with (
        mock.patch.object(sys, "argv", ["rowtier", *arguments]),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.chdir(folder) if hasattr(contextlib, "chdir") else contextlib.nullcontext(),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    shutil.rmtree(folder / "out", ignore_errors=True)
    if code not in EXIT_CODES:
        raise NonsenseError(f"exit code {code}")


TARGETS: dict[str, Callable[[Path, Case, Path], None]] = {
    "tables": _tables,
    "cluster": _cluster,
    "constraints": _constraints,
    "counted": _profile,
    "curve": _profile,
    "plan": _plan,
    "plan-row-wise": _plan,
    "parquet": _data("data.parquet"),
    "npz": _data("data.npz"),
    "tsv": _data("data.tsv"),
    "tsv-gz": _data("data.tsv.gz"),
    "vocabulary": _vocabulary,
    "texts": _texts,
    "options": _options,
}
