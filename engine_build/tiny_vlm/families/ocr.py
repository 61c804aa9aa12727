"""Transcribing a sign of one or two lines."""

from dataclasses import dataclass
from random import Random

from engine_build.tiny_vlm.canvas import INK, Canvas, text_width
from engine_build.tiny_vlm.families.base import Asker, Exchange, Family, ask_one_of
from engine_build.tiny_vlm.vocabulary import COLOR_NAMES, COLORS, NUMBERS, SIGN_WORDS, Rgb
from engine_build.tiny_vlm.wording import key, with_article

WIDTH, HEIGHT = 140, 56
_LIGHT_PANELS = ("yellow", "pink", "cyan", "orange")
_FONT_SIZE = 20


@dataclass(frozen=True)
class SignFacts:
    """A sign; `second` is a word, a number of two digits, or None for a sign of one line."""

    panel: str
    letters: str
    first: str
    second: str | None

    @property
    def spelled(self) -> str:
        """The first word letter by letter, each marked as an attribute."""
        return ", ".join(key(letter) for letter in self.first)


def _draw(rng: Random) -> tuple[Canvas, SignFacts]:
    panel = rng.choice(COLOR_NAMES)
    is_light = panel in _LIGHT_PANELS
    ink: Rgb = INK if is_light else (255, 255, 255)
    canvas = Canvas(WIDTH, HEIGHT, COLORS[panel])
    canvas.draw.rectangle([2, 2, WIDTH - 3, HEIGHT - 3], outline=ink)

    has_second = rng.random() < 0.7
    first = rng.choice(SIGN_WORDS)
    # Drawn even where it is not shown, so that the rest of a sample does not depend on it.
    second = rng.choice(SIGN_WORDS) if rng.random() < 0.5 else str(rng.randint(10, 99))

    def put(text: str, y: int) -> None:
        left = (WIDTH - text_width(text, _FONT_SIZE)) / 2 + rng.uniform(-4, 4)
        canvas.text(left, y, text, _FONT_SIZE, ink)

    if has_second:
        put(first, 3 + rng.randint(0, 1))
        put(second, 27 + rng.randint(0, 2))
    else:
        put(first, 15 + rng.randint(-3, 3))
    canvas.annotate(8, 8, f"co:{panel}")
    letters = "black" if is_light else "white"
    return canvas, SignFacts(panel, letters, first, second if has_second else None)


def _read(rng: Random, facts: SignFacts) -> tuple[str, str]:
    question = rng.choice(["What does the sign say?", "Read the sign."])
    second = f" {key(facts.second)}" if facts.second else ""
    panel = with_article(key(facts.panel))
    answer = (
        f'The sign says "{key(facts.first)}{second}". '
        f"It is printed in {key(facts.letters)} letters on {panel} panel. "
        f"The first word has {key(NUMBERS[len(facts.first)])} letters."
    )
    return question, answer


def _transcribe(rng: Random, facts: SignFacts) -> tuple[str, str]:
    question = rng.choice(["Transcribe the text in the image.", "What text is visible?"])
    if facts.second:
        lines = f"{key(facts.first)} on the first line and {key(facts.second)} on the second line."
    else:
        lines = f"{key(facts.first)} on a single line."
    answer = (
        f"The visible text reads: {lines} The background color is {key(facts.panel)}. "
        f"Letter by letter, the top line is {facts.spelled}."
    )
    return question, answer


def _first_word(rng: Random, facts: SignFacts) -> tuple[str, str]:
    question = rng.choice(["What word is written at the top?", "What is the first word?"])
    if facts.second:
        rest = f"Below it you can read {key(facts.second)}."
    else:
        rest = f"There is {key('no')} other text."
    answer = (
        f"The word at the top is {key(facts.first)}, spelled {facts.spelled}. "
        f"{rest} The sign itself is {key(facts.panel)}."
    )
    return question, answer


_ASKERS: tuple[tuple[str, Asker[SignFacts]], ...] = (
    ("read", _read),
    ("transcribe", _transcribe),
    ("first_word", _first_word),
)


def _ask(rng: Random, facts: SignFacts) -> Exchange:
    return ask_one_of(rng, facts, _ASKERS)


FAMILY = Family("ocr", _draw, _ask)
