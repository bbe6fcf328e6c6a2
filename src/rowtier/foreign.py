"""Text of others (names, paths, values of files) made fit to be shown, whatever it holds.

A terminal obeys some characters instead of showing them: escapes that clear the screen, marks that
turn the direction of what follows, joiners that take no room. Here they become escapes that can be
seen, as Python spells them. Nothing here raises, however strange what it is given.
"""

from __future__ import annotations

import codecs
import reprlib

ELLIPSIS = "…"
PLAIN = "rowtier-plain"  # what streams do with letters that their encoding lacks
LONGEST_VALUE = 60  # characters of a value in a message
_LEVELS, _ENTRIES = 3, 12  # of lists and mappings in a value

# Letters and marks to Unicode, but nothing to see: selectors of variants and fillers.
_INVISIBLE = frozenset(
    chr(code)
    for start, stop in (
        (0x34F, 0x34F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x3164, 0x3164),
        (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xE0100, 0xE01EF),
    )
    for code in range(start, stop + 1)
)  # fmt: skip
# What rowtier's own sentences use, for terminals that know only ASCII.
_TWINS = (
    {"…": "...", "×": "x", "–": "-", "±": "+-", "µ": "u", "·": "*", "²": "2", "³": "3"}
    | {"→": "->", "≤": "<=", "≥": ">="}
    | dict(zip("▁▂▃▄▅▆▇█", "_.-=+*%#", strict=True))
)


def shown(text: object, width: int | None = None) -> str:
    """Text as one line that is only ever shown, never obeyed; cut to `width` columns if given."""
    said = text if isinstance(text, str) else _text(text)
    if width is not None and len(said) > 4 * width:  # a megabyte is not worth escaping
        said = said[: 2 * width] + said[-2 * width :]
    if not (said.isprintable() and _INVISIBLE.isdisjoint(said)):
        said = "".join(map(_visible, said))
    return said if width is None else cut(said, width)


def spelled(value: object, limit: int = LONGEST_VALUE) -> str:
    """A value as Python spells it, in at most `limit` characters and of any size."""
    try:
        said = shown(_Short(limit).repr(value))
    except Exception:  # such as RecursionError, or what a __repr__ raises
        said = f"a {type(value).__name__}"
    return said if len(said) <= limit else said[: limit - 1] + ELLIPSIS


def columns(text: str) -> int:
    """How many columns of a terminal a text takes; letters of East Asia take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """At most so many columns: both ends tell a name apart more often than its beginning alone."""
    if columns(text) <= width:
        return text
    tail = (width - 1) // 2
    return _begin(text, width - 1 - tail) + ELLIPSIS + _begin(text[::-1], tail)[::-1]


def plain(text: str, encoding: str) -> str:
    """The same in letters that an encoding has: a twin of ours, an escape of others."""
    return text if text.isascii() else text.encode(encoding, PLAIN).decode(encoding)


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(_TWINS.get(c) or ascii(c)[1:-1] for c in lacking), error.end


codecs.register_error(PLAIN, _replace)


def _begin(text: str, width: int) -> str:
    taken = 0
    for index, letter in enumerate(text):
        taken += columns(letter)
        if taken > width:
            return text[:index]
    return text


def _visible(letter: str) -> str:
    if letter in _INVISIBLE:
        return ascii(letter)[1:-1]
    return letter if letter.isprintable() else repr(letter)[1:-1]


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # whatever its __str__ raises
        return f"a {type(value).__name__}"


class _Short(reprlib.Repr):
    """Spells only as much of a value as can be shown, so that its size does not matter."""

    def __init__(self, limit: int):
        super().__init__()
        self.maxlevel = _LEVELS
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = _ENTRIES
        self.maxdict = self.maxdeque = self.maxarray = _ENTRIES
        self.maxstring = self.maxother = self.maxlong = 8 * limit

    def repr_int(self, value: int, _level: int) -> str:
        """Whole numbers in full, but for those that Python refuses to spell."""
        digits = value.bit_length() * 3 // 10
        return repr(value) if digits < self.maxlong else f"a number of about {digits:,} digits"
