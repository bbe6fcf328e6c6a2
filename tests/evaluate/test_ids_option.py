"""`--ids` and `--weighted`: what is assumed about ids, the same for all commands that ask."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cli.run import run
from cli.test_replay_cli import make

import rowtier
from rowtier import Band, Plan
from rowtier.cost.options import CostOptions


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan with copies, rows that are fetched and owners that pool."""
    made = tmp_path_factory.mktemp("ids")
    make(made, 2, 1280)
    plan = Plan.load(made / "plan")
    home = {"tier": plan.cluster.tier_names[0], "coalesced": True, "sync": "sparse"}
    bands = {
        table.name: (
            Band(start=0, stop=9, scope="device", **home),
            Band(start=9, stop=20, scope="cluster", **home),
            Band(start=20, stop=table.num_embeddings, scope="cluster", exchange="sums", **home),
        )
        for table, _ in plan
    }
    replace(plan, bands=bands).save(made / "plan")
    return made


def replayed(folder: Path, *options: str) -> dict[tuple[str, str, str], float]:
    code, text, errors = run(
        "replay", str(folder / "plan"), str(folder / "data.npz"), "--json", *options
    )
    assert (code, errors) == (0, "")
    return {(f["of"], f["name"], f["at"]): f["replayed"] for f in json.loads(text)["figures"]}


def test_narrow_ids_are_half_as_long_and_nothing_else_changes(folder: Path) -> None:
    wide, narrow = replayed(folder), replayed(folder, "--ids", "narrow")
    assert replayed(folder, "--ids", "wide") == wide
    halved = {key for key in wide if "ids" in key[1]}
    timed = {"step", "links", "exchange", "keeping equal"}
    assert {key[1].split()[0] for key in halved} == {"ids", "sync_ids"}
    for key, value in wide.items():
        if key in halved:
            assert narrow[key] == value / 2
        elif key[1] not in timed:
            assert narrow[key] == value


def test_weights_travel_with_the_ids_of_their_table(folder: Path) -> None:
    plain, weighted = replayed(folder), replayed(folder, "--weighted", "table_0")
    both = replayed(folder, "--weighted", "table_0", "--weighted", "table_1")
    level = next(of for of, name, at in plain if name == "ids" and not at)
    at = next(at for of, name, at in plain if (of, name) == ("table_0", "ids"))
    assert weighted["table_0", "ids", at] > plain["table_0", "ids", at]
    assert weighted["table_1", "ids", at] == plain["table_1", "ids", at]
    assert both[level, "ids", ""] > weighted[level, "ids", ""] > plain[level, "ids", ""]


def test_predict_and_compare_assume_the_same(folder: Path) -> None:
    plan = str(folder / "plan")
    options = CostOptions(ids="narrow", weighted=frozenset({"table_1"}))
    expected = rowtier.predict(Plan.load(plan), options)
    assert expected.step_s < rowtier.predict(Plan.load(plan)).step_s
    asked = ["--ids", "narrow", "--weighted", "table_1", "--json"]
    assert json.loads(run("predict", plan, *asked)[1])["step_s"] == expected.step_s
    (found,) = json.loads(run("compare", plan, *asked)[1])["plans"]
    assert found["step_s"] == expected.step_s
    data = ["--data", str(folder / "data.npz")]
    (found,) = json.loads(run("compare", plan, *asked, *data)[1])["plans"]
    assert found["replayed"]["predicted"] == expected.step_s


@pytest.mark.parametrize("command", ["predict", "replay", "compare"])
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--ids", "slim"], "--ids 'slim': accepted are wide, narrow"),
        (["--weighted", "t"], "no such table; there are table_0, table_1"),
    ],
)
def test_what_is_refused_says_what_is_accepted(
    folder: Path, command: str, arguments: list[str], says: str
) -> None:
    data = [str(folder / "data.npz")] if command == "replay" else []
    code, _, errors = run(command, str(folder / "plan"), *data, *arguments)
    assert code == 2
    assert says in " ".join(errors.split())
