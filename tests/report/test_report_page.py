"""What a report says and holds, without opening it."""

import base64
import gzip
import html
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.run import run
from evaluate.drifting import machine, planned
from evaluate.drifting import profile as moving
from report.report_cases import EVIL, cluster, plan, profile

import rowtier
from rowtier.band import Band
from rowtier.cost.step import step_cost
from rowtier.evaluate.drift import drift
from rowtier.evaluate.phrases import prices
from rowtier.evaluate.words import cuts, home, numbers, placement
from rowtier.plan.make import make_plan
from rowtier.report.alerts import find_alerts
from rowtier.report.facts import Facts
from rowtier.report.sheets import MAX_BARS, curves, load_sheet, memory_sheet, tables_sheet
from rowtier.report.verdict import certificate_facts

pytest.importorskip("vl_convert", reason="charts need rowtier[report]")


def packed(html: str, name: str) -> Any:
    found = re.search(rf'id="packed-{name}">([^<]*)<', html)
    assert found is not None
    return gzip.decompress(base64.b64decode(found[1])).decode()


@pytest.fixture(scope="module")
def report() -> rowtier.Report:
    return rowtier.make_report(plan("joint"))


def test_equal_plans_give_equal_pages(report: rowtier.Report) -> None:
    assert rowtier.make_report(plan("joint")).html == report.html


def test_the_page_is_small_and_asks_for_nothing(report: rowtier.Report) -> None:
    page = report.html
    assert len(page.encode()) < 600_000
    assert "default-src 'none'" in page
    assert not re.search(r'(src|href)="(?!#|data:)', page)


def test_names_are_never_html(report: rowtier.Report) -> None:
    assert "document.title='broken'" not in report.html
    assert "<img" not in report.html
    names = [row[0] for row in json.loads(packed(report.html, "data"))["sheets"]["tables"]["rows"]]
    assert names == ["user", "item", EVIL]


def test_the_page_says_what_the_plan_claims(report: rowtier.Report) -> None:
    made = plan("joint")
    assert made.certificate is not None
    assert f"{made.certificate.gap:.1%}" in report.headline
    for fact in (made.certificate.binding, made.fingerprint, made.made_for.profile, "row-wise"):
        assert fact in report.html
    assert "rowtier plan --profile profile/ --cluster cluster.yaml --method joint" in report.html


class Priced(rowtier.Certificate):
    found_by: str = ""


def priced() -> Priced:
    memory = {"resource": "hbm", "unit": "GB", "saves": 0.002}
    links = {"resource": "cluster", "unit": "GB/s", "saves": 0.0003}
    return Priced(
        **{"view": "step", "objective": 2.0, "bound": 1.0, "binding": "hbm"},
        **{"prices": (memory, links), "from_statistics": 0.2, "found_by": "search"},
    )


def test_prices_and_uncertainty_are_told_in_words() -> None:
    assert prices(priced()) == [
        "1 GB more hbm everywhere: at most 2 ms a step",
        "1 GB/s more on every cluster link: at least 300 µs a step",
    ]
    said = find_alerts(Facts.of(replace(plan("joint"), certificate=priced()), baselines=False))
    assert any("the statistics leave room for 20.0%" in alert.text for alert in said)


def test_a_new_field_of_a_certificate_is_shown_by_its_name() -> None:
    facts = dict(certificate_facts(priced()))
    assert facts["found by"] == "search"
    assert facts["gap, as certified"] == "100.000%"


def test_every_chart_names_its_unit(report: rowtier.Report) -> None:
    charts = json.loads(packed(report.html, "data"))["charts"]
    assert set(charts) == {"memory hbm", "memory dram", "load", "curve", "links", "comparison"}
    text = json.dumps(charts, ensure_ascii=False)
    assert '"MiB"' in text
    assert '"GiB"' in text
    assert "a step" in text


def test_shares_of_the_step_add_up_to_one() -> None:
    facts = Facts.of(plan("joint"), baselines=False)
    assert sum(facts.shares) == pytest.approx(1)
    assert min(facts.shares) > 0


def test_a_table_alone_takes_the_whole_step() -> None:
    assert Facts.of(plan("row-wise", ("only",)), baselines=False).shares == [pytest.approx(1)]


def test_memory_and_load_are_those_of_the_cost_model() -> None:
    made = plan("joint")
    cost, facts = (
        step_cost(made.bands, made.profile, made.cluster),
        Facts.of(made, baselines=False),
    )
    sheet = memory_sheet(facts)
    assert sum(sheet.column("bytes")) == pytest.approx(cost.memory.total.sum(), rel=1e-5)  # type: ignore[arg-type]
    load = load_sheet(facts).where("kind", "memory").where("holder", "device 0")
    assert sum(load.column("seconds")) == pytest.approx(cost.time.memory_s[0], rel=1e-5)  # type: ignore[arg-type]


def test_a_thousand_devices_are_drawn_as_groups_and_kept_in_full() -> None:
    made = make_plan(profile("a", "b"), cluster(nodes=128, devices=8), "row-wise")
    facts = Facts.of(made, baselines=False)
    for sheet in (memory_sheet(facts).where("tier", "hbm"), load_sheet(facts)):
        owner = sheet.columns[0]
        assert len(set(sheet.column(owner))) == 1024
        drawn = {bar for bar in sheet.column("bar") if bar}
        assert 1 < len(drawn) <= MAX_BARS
        assert "0–15" in drawn


def test_thinned_curves_keep_the_share_at_both_ends() -> None:
    facts = Facts.of(plan("joint"), baselines=False)
    found = curves(facts)
    first = facts.plan.profile.stats[0].curve
    assert found["shares"][0][0] == round(1e4 * float(first.share(1)))
    assert found["shares"][0][-1] == 10_000
    for cut in found["cuts"]:
        assert sum(share for _, share, _, _ in cut) == pytest.approx(1, rel=1e-3)


def test_slow_lookups_of_a_table_are_those_outside_the_first_tier() -> None:
    facts = Facts.of(plan("joint"), baselines=False)
    slow = np.array(tables_sheet(facts).column("slow_share"), dtype=float)
    lookups = np.array([facts.plan.profile.lookups_per_step(s) for s in facts.plan.profile.stats])
    assert (slow * lookups).sum() / lookups.sum() == pytest.approx(facts.load.slow_share, rel=1e-3)


def test_a_baseline_that_does_not_fit_says_why() -> None:
    small = cluster(capacity="1MiB")
    tight = small.model_copy(
        update={"device": small.device.model_copy(update={"tiers": small.device.tiers[:1]})}
    )
    one = profile("big", rows=30_000)
    made = rowtier.make_report(make_plan(one, tight, "row-wise"))
    assert "does not fit: " in made.html
    assert any("no room for" in alert.text for alert in made.alerts)


def test_without_baselines_none_is_planned(tmp_path: Path) -> None:
    plan("size").save(tmp_path / "plan")
    code, out, _ = run(
        *("report", str(tmp_path / "plan"), "-o", str(tmp_path / "r.html")),
        *("--no-baselines", "--json"),
    )
    assert code == 0
    assert json.loads(out)["bytes"] == (tmp_path / "r.html").stat().st_size
    data = json.loads(packed((tmp_path / "r.html").read_text(), "data"))
    assert [row[0] for row in data["sheets"]["comparison"]["rows"]] == ["size"]


def test_memory_over_its_capacity_is_a_problem() -> None:
    facts = Facts.of(plan("joint"), baselines=False)
    pool, held = facts.pools[0]
    crowded = held | {"buffers": pool.capacity_bytes // 2, "weights": pool.capacity_bytes}
    facts.__dict__["pools"] = [(pool, crowded), *facts.pools[1:]]
    first = find_alerts(facts)[0]
    assert first.level == "problem"
    assert "hbm of device 0 is over its capacity" in first.text
    assert "--fit all" in first.text


def test_statistics_too_thin_to_rank_rows_are_a_warning() -> None:
    curve = plan("sca")
    made = replace(curve, order={t.name: np.arange(t.num_embeddings) for t, _ in curve})
    facts = Facts.of(made, baselines=False)
    seldom = [replace(look, lookups=2 * look.touched) for look in facts.looks]
    assert not any("thin" in alert.text for alert in find_alerts(facts))
    facts.__dict__["looks"] = seldom
    (thin,) = [alert for alert in find_alerts(facts) if "thin" in alert.text]
    assert thin.level == "warning"
    assert all("2.0 lookups per touched row" in line for line in thin.more)


def test_a_missing_library_is_named_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan("size").save(tmp_path / "plan")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    code, _, errors = run("report", str(tmp_path / "plan"), "-o", str(tmp_path / "r.html"))
    assert code == 2
    assert "vl_convert" in errors
    assert 'pip install "rowtier[report]"' in errors
    assert not (tmp_path / "r.html").exists()


def test_a_folder_is_not_overwritten(tmp_path: Path) -> None:
    code, _, errors = run("report", str(tmp_path), "-o", str(tmp_path))
    assert code == 2
    assert "is a folder; give a file" in " ".join(errors.split())


def band(start: int, stop: int, **more: Any) -> Band:
    return Band(start=start, stop=stop, **({"scope": "cluster", "tier": "hbm"} | more))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([band(0, 9)], "one copy, spread, in hbm"),
        ([band(0, 9, order="blocks")], "one copy in blocks of rows, in hbm"),
        (
            [band(0, 9, scope="device", sync="sparse")],
            "a copy on every device, in hbm, sparse sync",
        ),
        (
            [band(0, 9, scope="node", coalesced=True, staged=True)],
            "one copy per node, spread, in hbm, coalesced and staged",
        ),
        (
            [band(0, 9, members=(3,), exchange="sums")],
            "one copy on device 3, in hbm, partial sums travel",
        ),
        ([band(0, 9, members=(0, 1, 3))], "one copy spread over devices 0–1, 3, in hbm"),
        ([band(0, 9, scope="node", members=(1,))], "one copy per node on member 1 of each, in hbm"),
        (
            [band(0, 9, members=(0,), columns=(0, 8)), band(0, 9, members=(2,), columns=(8, 16))],
            "one copy in 2 column parts on devices 0, 2, in hbm",
        ),
    ],
)
def test_homes_are_told_in_words(given: list[Band], said: str) -> None:
    assert home(given, cluster()) == said


def test_neighbours_that_read_alike_are_told_together() -> None:
    bands = [
        band(0, 10, staged=True),
        band(10, 30),
        *(band(a, a + 10, members=(a % 4,)) for a in (30, 40, 50)),
        band(60, 100, tier="dram"),
    ]
    assert placement(cuts(bands, cluster()), 100) == (
        "hottest 30: spread in hbm; next 30: in pieces on single devices in hbm; "
        "coldest 40: spread in dram"
    )


def test_numbers_are_told_as_runs() -> None:
    assert numbers([5, 0, 1, 2]) == "0–2, 5"
    assert numbers(range(0, 20, 2)) == "0, 2, 4, 6 …"


@pytest.mark.parametrize("chart", ["load", "links"])
def test_charts_are_drawn_for_names_that_every_object_has(chart: str) -> None:
    import vl_convert

    from rowtier.cluster import Cluster
    from rowtier.report.charts import all_charts
    from rowtier.report.sheets import all_sheets

    drawn = []
    for names in (
        ("node", "cluster", "hbm", "dram"),
        ("constructor", "__proto__", "toString", "x"),
    ):
        data = cluster().to_data()
        parts = [*data["levels"], *data["device"]["tiers"]]
        for part, name in zip(parts, names, strict=True):
            part["name"] = name
        made = make_plan(profile("user", "valueOf"), Cluster.model_validate(data), "size-lookup")
        facts = Facts.of(made, False)
        sheet = all_sheets(facts)[chart]
        rows = [dict(zip(sheet.columns, row, strict=True)) for row in sheet.rows]
        spec = all_charts(facts, all_sheets(facts))[chart]
        spec |= {"datasets": {"sheet": rows}, "width": 400}
        drawn.append(vl_convert.vegalite_to_svg(spec).count('aria-roledescription="bar"'))
    assert drawn[0] == drawn[1] > 4


def test_newer_data_has_a_part_of_the_page(tmp_path: Path) -> None:
    old = planned(moving(0, 0), machine("6KiB"))
    found = drift(old, moving(150, 0), stop=lambda: True)
    page = rowtier.make_report(old, baselines=False, drift=found).html
    text = " ".join(re.sub("<[^>]*>", " ", html.unescape(page)).split())
    assert found.verdict[1:] in text
    assert all(said in text for said in found.says)
    sheet = json.loads(packed(page, "data"))["sheets"]["drift"]
    assert [row[0] for row in sheet["rows"]] == ["t0", "t1"]
    assert 'href="#drift"' in page
    assert 'href="#drift"' not in rowtier.make_report(old, baselines=False).html
    old.save(tmp_path / "plan")
    moving(150, 0).save(tmp_path / "new")
    output = str(tmp_path / "report.html")
    more = ("--drift", str(tmp_path / "new"), "--no-baselines")
    code, _, errors = run("report", str(tmp_path / "plan"), "-o", output, *more)
    assert (code, errors) == (0, "")
    assert "On newer data" in Path(output).read_text()
