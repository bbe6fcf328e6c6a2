import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from rowtier import Cluster, Level, Table, Tables, Tier, UserError
from rowtier.cluster import PRESETS
from rowtier.files import dump_json
from rowtier.folders import replace_folder
from rowtier.sayings import mistake_from
from rowtier.writing import write_atomic


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_saving_and_loading(name: str, tmp_path: Path) -> None:
    cluster = Cluster.preset(name)
    cluster.save(tmp_path / "cluster.yaml")
    again = Cluster.load(tmp_path / "cluster.yaml")
    assert again == cluster
    assert again.fingerprint == cluster.fingerprint
    assert yaml.safe_load((tmp_path / "cluster.yaml").read_text())["format_version"] == 1


def test_the_example_files_of_the_documentation_load(tmp_path: Path) -> None:
    (tmp_path / "tables.yaml").write_text(
        "batch_size: 4096  # per device\n"
        "tables:\n"
        "  - {name: item, num_embeddings: 80M, embedding_dim: 128, dtype: fp32,\n"
        "     pooling: none, features: [history], optimizer: rowwise_adagrad}\n"
    )
    tables = Tables.load(tmp_path / "tables.yaml")
    assert tables["item"].num_embeddings == 80_000_000
    tables.save(tmp_path / "again.yaml")
    assert Tables.load(tmp_path / "again.yaml") == tables


def test_python_takes_si_numbers_where_files_need_units() -> None:
    tier = Tier(name="hbm", capacity_bytes=24 * 2**30, bandwidth_bytes_per_s=1.5e12)
    assert tier.to_data() == {"name": "hbm", "capacity": "24GiB", "bandwidth": "1.5TB/s"}


def test_nouns_are_frozen_and_refuse_nonsense() -> None:
    level = Level(name="node", size=8, bandwidth_bytes_per_s=1e9)
    with pytest.raises(ValueError, match="frozen"):
        level.size = 4  # type: ignore[misc]
    with pytest.raises(ValueError, match="appears twice"):
        Table(name="t", num_embeddings=1, embedding_dim=1, features=("a", "a"))


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file.txt"
    write_atomic(target, "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match="No space left"):
        write_atomic(target, "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_a_failure_midway_leaves_the_old_folder_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "result"
    with replace_folder(target, "marker") as folder:
        (folder / "marker").write_text("one")
    with pytest.raises(RuntimeError), replace_folder(target, "marker") as folder:
        (folder / "marker").write_text("two")
        raise RuntimeError
    assert (target / "marker").read_text() == "one"
    assert os.listdir(tmp_path) == ["result"]
    with replace_folder(target, "marker") as folder:
        (folder / "marker").write_text("three")
    assert (target / "marker").read_text() == "three"
    assert os.listdir(tmp_path) == ["result"]


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="left alone"), replace_folder(tmp_path, "plan.json"):
        pass
    assert (tmp_path / "thesis.tex").exists()


def test_json_for_people_keeps_short_things_on_one_line() -> None:
    text = dump_json({"bands": [{"start": 0, "stop": 9}] * 2, "long": ["x" * 60] * 2})
    assert '"bands": [{"start": 0, "stop": 9}, {"start": 0, "stop": 9}]' in text
    assert max(map(len, text.splitlines())) < 100


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"share": "abc"}, "a number is needed"),
        ({"count": 1.5}, "a whole number is needed"),
        ({"count": "many"}, "a whole number is needed"),
        ({"really": 7}, "accepted: true, false"),
    ],
)
def test_what_is_wrong_with_a_number_is_said_in_our_words(given: dict[str, Any], said: str) -> None:
    class Numbers(BaseModel):
        share: float = 0.0
        count: int = 0
        really: bool = False

    with pytest.raises(ValidationError) as caught:
        Numbers(**given)
    (detail,) = caught.value.errors()
    assert mistake_from(Numbers, dict(detail)).accepted.startswith(said)
