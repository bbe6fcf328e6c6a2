"""Text of others is shown, never obeyed, whatever it holds and however long it is."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowtier.cli.names import shortened
from rowtier.cli.show import json_text
from rowtier.errors import InvalidError, Mistake, UnitError
from rowtier.foreign import columns, cut, plain, shown, spelled
from rowtier.profile.columns import file_name

ANY = st.text(st.characters(exclude_categories=()), max_size=60)
OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(ANY, st.integers(3, 40))
def test_whatever_is_shown_is_one_line_that_no_terminal_obeys(text: str, width: int) -> None:
    for said in (shown(text), shown(text, width), spelled(text), *shortened([text, text], 40)):
        assert not OBEYED & {unicodedata.category(letter) for letter in said}
    assert columns(shown(text, width)) <= width
    assert columns(plain(shown(text, width), "ascii")) >= 0
    assert plain(shown(text), "ascii").isascii()


@given(st.text(st.characters(categories=("L", "N", "P", "S")), max_size=60))
def test_what_can_be_seen_is_left_as_it_is(text: str) -> None:
    assert "\\" in shown(text) or shown(text) == text


def test_escapes_are_spelled() -> None:
    assert shown("\x1b[2J\u202e\ud800\u200b\n") == r"\x1b[2J\u202e\ud800\u200b\n"
    assert shown("❤\ufe0f\u3164") == r"❤\ufe0f\u3164"


def test_wide_letters_are_cut_by_what_they_take() -> None:
    assert cut("表" * 28, 11) == "表表…表表"
    assert columns("表" * 28) == 56
    assert shortened(["表" * 28, "表" * 29], 20)[1].endswith(" (2)")
    assert all(columns(name) <= 20 for name in shortened(["表" * 28] * 12, 20))


HUGE = {
    "text": "x" * 10**6,
    "number": 1 << 10**6,
    "lists": [[[["x" * 99]] * 99]] * 99,
    "mapping": {1: "\ud800" * 999},
    "bytes": b"x" * 10**6,
}


@pytest.mark.parametrize("kind", HUGE)
def test_huge_values_are_shortened_in_messages(kind: str) -> None:
    value = HUGE[kind]
    assert len(spelled(value)) <= 60
    assert len(str(Mistake("key", value, "give less"))) < 100
    assert len(str(UnitError(value, "give less"))) < 100
    assert len(str(Mistake("k" * 10**6, value, "h" * 10**6))) < 3000


def test_what_cannot_be_spelled_is_named() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no")

        __str__ = __repr__

    assert "Silent" in spelled(Silent())
    assert shown(Silent()) == "a Silent"


def test_only_mistakes_begin_a_line() -> None:
    error = InvalidError("a\nb.yaml", [Mistake("k\ney", "v\nalue", "w\nord")])
    assert str(error).split("\n") == [r"a\nb.yaml: 1 mistake", r"  k\ney: 'v\nalue': w\nord"]


@given(ANY, st.sampled_from(["utf-8", "ascii", "latin-1"]))
def test_json_is_valid_in_any_encoding(text: str, encoding: str) -> None:
    said = json_text({"name": text, text: [1.5, float("inf")]}, encoding)
    assert said.isprintable()
    found = json.loads(said.encode(encoding).decode(encoding), parse_constant=int)
    assert found == {"name": text, text: [1.5, None]} or text == "name"


def test_terminals_without_unicode_get_twins() -> None:
    assert plain("1.5× – 3 µs …", "ascii") == "1.5x - 3 us ..."
    assert plain("1.5×", "latin-1") == "1.5×"
    assert plain("表", "ascii") == r"\u8868"


def test_files_of_tables_have_names_that_fit_and_differ() -> None:
    names = [
        "user",
        "a/b",
        "表" * 27,
        "表" * 28,
        "表" * 28 + "a",
        "表" * 199 + "b",
        "表" * 199 + "c",
    ]
    files = [file_name(name) for name in names]
    assert files[:2] == ["user.parquet", "a%2Fb.parquet"]
    assert "+" not in files[2]
    assert len(set(files)) == len(names)
    assert max(map(len, files)) <= 255
