"""Every entry of tests/bad_inputs is refused by `rowtier validate`, with the key and the remedy."""

import json
from pathlib import Path

import pytest
import yaml
from cli.run import run

HERE = Path(__file__).parent
EXPECTED = yaml.safe_load((HERE / "bad_inputs_expected.yaml").read_text())


def test_every_entry_has_an_expectation() -> None:
    entries = {entry.name for entry in (HERE / "bad_inputs").iterdir()}
    assert entries == set(EXPECTED)
    assert len(entries) >= 40


@pytest.mark.parametrize("entry", EXPECTED)
def test_a_bad_input_is_refused_by_name(entry: str) -> None:
    path = HERE / "bad_inputs" / entry
    code, text, errors = run("validate", str(path), "--json")
    assert (code, errors) == (2, "")
    message = json.loads(text)["error"]["message"]
    assert entry in message
    for part in EXPECTED[entry]:
        assert part in message


@pytest.mark.parametrize("entry", list(EXPECTED)[::9])
def test_the_refusal_reads_well_on_a_terminal(entry: str) -> None:
    code, text, errors = run("validate", str(HERE / "bad_inputs" / entry))
    assert (code, text) == (2, "")
    assert errors.startswith("error: ")
    assert "Traceback" not in errors
    assert all(len(line) <= 100 or " " not in line.strip() for line in errors.splitlines())
