import json
from pathlib import Path

import numpy as np
import pytest
from cli.run import run
from strategies import counted

from rowtier import Cluster, Profile, Table, Tables
from rowtier.cluster import PRESETS


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    stats = tuple(
        counted(
            Table(name=f"t{i}", num_embeddings=1000 * (i + 1), embedding_dim=8, features=("f",)),
            rng.poisson(2, 1000 * (i + 1)),
            samples=10**6,
        )
        for i in range(5)
    )
    Profile(128, stats).save(tmp_path / "profile")
    return tmp_path / "profile"


def test_help_of_plan_lists_every_preset() -> None:
    text = "".join(run("plan", "--help")[1].replace("│", "").split())
    for name in PRESETS:
        assert name in text


def test_help_lists_the_commands_that_exist() -> None:
    code, text, _ = run("--help")
    assert code == 0
    for command in ("synth", "plan", "compare", "validate"):
        assert f" {command} " in text
    assert max(map(len, text.splitlines())) <= 100


def test_plan_then_compare_then_validate(profile: Path, tmp_path: Path) -> None:
    for method in ("row-wise", "size"):
        code, text, errors = run(
            "plan", "--profile", str(profile), "--cluster", "recshard-16",
            "--method", method, "-o", str(tmp_path / method),
        )  # fmt: skip
        assert (code, errors) == (0, "")
        assert f"{method} places 5 tables" in text
    code, text, _ = run("compare", str(tmp_path / "row-wise"), str(tmp_path / "size"))
    assert code == 0
    assert "ms a step" in text.splitlines()[0]
    assert "device 15" in text
    assert max(map(len, text.splitlines())) <= 100
    code, text, _ = run("compare", str(tmp_path / "row-wise"), str(tmp_path / "size"), "--json")
    facts = json.loads(text)
    assert [plan["plan"] for plan in facts["plans"]] == ["row-wise", "size"]
    assert len(facts["plans"][0]["lookups"]) == 16
    made_for = ["--profile", str(profile), "--cluster", "recshard-16"]
    assert run("validate", str(tmp_path / "size"), *made_for)[0] == 0
    code, _, errors = run("validate", str(tmp_path / "size"), "--cluster", "local")
    assert code == 2
    assert "recshard-16" in errors
    assert "local" in errors


def test_an_infeasible_plan_exits_with_3_and_writes_nothing(profile: Path, tmp_path: Path) -> None:
    tight = Cluster.preset("local").model_dump(by_alias=True)
    for tier in tight["device"]["tiers"]:
        tier["capacity"] = 1000
    Cluster.model_validate(tight).save(tmp_path / "tight.yaml")
    code, text, errors = run(
        "plan", "--profile", str(profile), "--cluster", str(tmp_path / "tight.yaml"),
        "-o", str(tmp_path / "plan"),
    )  # fmt: skip
    assert (code, text) == (3, "")
    assert "is missing; add" in errors
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--method", "best"], "row-wise, row-wise-coalesced, table-wise"),
        (["--cluster", "nowhere"], "recshard-16"),
        (["--profile", "nowhere"], "no such profile folder"),
        (["--reserve", "150%"], "10%"),
        (["--confidence", "100%"], "confidence"),
        (["--time-limit", "0"], "--time-limit 0"),
    ],
)
def test_a_users_mistake_is_exit_code_2(
    profile: Path, tmp_path: Path, arguments: list[str], says: str
) -> None:
    given = {"--profile": str(profile), "--cluster": "local", "-o": str(tmp_path / "plan")}
    given |= dict([arguments])
    code, _, errors = run("plan", *[word for pair in given.items() for word in pair])
    assert code == 2
    assert says in errors
    assert not (tmp_path / "plan").exists()


def test_plan_leaves_a_folder_with_other_things_alone(profile: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("precious")
    arguments = ["--profile", str(profile), "--cluster", "local", "-o", str(tmp_path / "home")]
    code, _, errors = run("plan", *arguments)
    assert code == 2
    assert "left alone" in errors


def test_plans_for_different_profiles_are_not_compared(profile: Path, tmp_path: Path) -> None:
    first = Profile.load(profile)
    Profile(64, first.stats).save(tmp_path / "other")
    for name in ("profile", "other"):
        run("plan", "--profile", str(tmp_path / name), "--cluster", "local",
            "-o", str(tmp_path / f"plan-{name}"))  # fmt: skip
    code, _, errors = run("compare", str(tmp_path / "plan-profile"), str(tmp_path / "plan-other"))
    assert code == 2
    assert "compare plans of the same two" in errors


def test_validate_names_each_kind(profile: Path, tmp_path: Path) -> None:
    Cluster.preset("local").save(tmp_path / "cluster.yaml")
    table = Profile.load(profile).stats[0].table
    Tables(batch_size=4, tables=(table,)).save(tmp_path / "tables.yaml")
    table.save(tmp_path / "table.yaml")
    kinds = {"cluster.yaml": "cluster", "tables.yaml": "tables", "table.yaml": "table"}
    for file, kind in kinds.items():
        facts = json.loads(run("validate", str(tmp_path / file), "--json")[1])
        assert (facts["kind"], facts["valid"]) == (kind, True)
    assert json.loads(run("validate", str(profile), "--json")[1])["kind"] == "profile"
