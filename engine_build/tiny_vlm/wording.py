"""Small helpers for English answers in which some spans depend on the image.

A family writes its answer as an ordinary string in which `key(value)` wraps each attribute in two
control characters; `parse_keyed` takes them out again and returns where the attributes stand.
"""

from collections.abc import Sequence
from typing import NamedTuple

_OPEN, _CLOSE = "\x01", "\x02"
_VOWELS = "aeiou"


class Span(NamedTuple):
    """A half-open range of characters, `text[start:end]`."""

    start: int
    end: int


class KeyedText(NamedTuple):
    """A text and the spans of its attributes, in order and not overlapping."""

    text: str
    spans: tuple[Span, ...]


def key(value: object) -> str:
    """Marks a value as an attribute: something that cannot be said without seeing the image."""
    return f"{_OPEN}{value}{_CLOSE}"


def parse_keyed(marked: str) -> KeyedText:
    """Removes the marks of `key` and returns the plain text with the spans they enclosed."""
    characters: list[str] = []
    spans: list[Span] = []
    start = 0
    for character in marked:
        if character == _OPEN:
            start = len(characters)
        elif character == _CLOSE:
            spans.append(Span(start, len(characters)))
        else:
            characters.append(character)
    return KeyedText("".join(characters), tuple(spans))


def join_and(parts: Sequence[str]) -> str:
    """Joins parts as an English list: `a`, `a and b`, `a, b and c`."""
    if len(parts) == 1:
        return parts[0]
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def with_article(noun: str) -> str:
    """Puts `a` or `an` before a noun phrase, which may begin with a marked attribute."""
    return ("an " if noun.lstrip(_OPEN)[0] in _VOWELS else "a ") + noun


def plural(noun: str) -> str:
    """The plural of a shape's name."""
    return noun + ("es" if noun.endswith("s") else "s")
