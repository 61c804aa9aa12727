"""Tables of two or three people with an age and a city or a job."""

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from engine_build.tiny_vlm.canvas import Canvas
from engine_build.tiny_vlm.families.base import Asker, Exchange, Family, ask_one_of
from engine_build.tiny_vlm.vocabulary import CITIES, JOBS, NUMBERS, PEOPLE
from engine_build.tiny_vlm.wording import join_and, key

WIDTH = 140
HEIGHTS = {2: 84, 3: 112}
"""Height in pixels by the number of rows below the header."""

_ROW_HEIGHT = 26
_TEXT_LEFT = (3, 55, 90)
_RULES = (1, 51, 86, 138)
_RULE_COLOR = (130, 130, 130)
_HEADER_COLORS = [(225, 235, 250), (235, 235, 235), (250, 235, 220)]


class Row(NamedTuple):
    """One person; `extra` is the city or the job."""

    name: str
    age: int
    extra: str


@dataclass(frozen=True)
class TableFacts:
    """A table; `extra_header` heads the third column. Names differ from each other."""

    extra_header: str
    rows: tuple[Row, ...]


def _draw(rng: Random) -> tuple[Canvas, TableFacts]:
    count = rng.choice([2, 3])
    header = rng.choice(["City", "Job"])
    pool = CITIES if header == "City" else JOBS
    rows = tuple(
        Row(name, rng.randint(10, 99), rng.choice(pool)) for name in rng.sample(PEOPLE, count)
    )
    canvas = Canvas(WIDTH, HEIGHTS[count], (255, 255, 255))
    top = 2 + rng.randint(0, 2)
    _draw_grid(canvas, top, count, rng.choice(_HEADER_COLORS))
    for r, row in enumerate([("Name", "Age", header), *rows]):
        for left, value in zip(_TEXT_LEFT, row, strict=True):
            canvas.text(left + rng.randint(0, 2), top + r * _ROW_HEIGHT + 5, str(value), 14)
    return canvas, TableFacts(header, rows)


def _draw_grid(canvas: Canvas, top: int, count: int, header_color: tuple[int, int, int]) -> None:
    left, right = _RULES[0], _RULES[-1]
    canvas.box(left, top, right, top + _ROW_HEIGHT, header_color)
    for r in range(count + 2):
        y = top + r * _ROW_HEIGHT
        canvas.draw.line([(left, y), (right, y)], fill=_RULE_COLOR)
    for x in _RULES:
        canvas.draw.line([(x, top), (x, top + (count + 1) * _ROW_HEIGHT)], fill=_RULE_COLOR)


def _markdown(rng: Random, facts: TableFacts) -> tuple[str, str]:
    question = rng.choice(["Convert this table to markdown.", "Write the table in markdown."])
    lines = [f"| Name | Age | {key(facts.extra_header)} |", "|---|---|---|"]
    lines += [f"| {key(name)} | {key(age)} | {key(extra)} |" for name, age, extra in facts.rows]
    return question, "\n".join(lines)


def _row(rng: Random, facts: TableFacts) -> tuple[str, str]:
    asked = rng.choice(facts.rows)
    template = rng.choice(["What does the table say about {}?", "Give the row of {}."])
    others = join_and(
        [
            f"{key(row.name)}, aged {key(row.age)}, with {key(row.extra)}"
            for row in facts.rows
            if row.name != asked.name
        ]
    )
    answer = (
        f"According to the table, {asked.name} is {key(asked.age)} years old. "
        f"The {key(facts.extra_header.lower())} listed for {asked.name} is {key(asked.extra)}. "
        f"The other rows list {others}."
    )
    return template.format(asked.name), answer


def _oldest(rng: Random, facts: TableFacts) -> tuple[str, str]:
    oldest = max(facts.rows, key=lambda row: row.age)
    question = rng.choice(
        ["Who is the oldest person in the table?", "Which person has the highest age?"]
    )
    people = join_and([f"{key(row.name)} ({key(row.age)})" for row in facts.rows])
    extras = join_and([key(row.extra) for row in facts.rows])
    answer = (
        f"The table has {key(NUMBERS[len(facts.rows)])} people: {people}. "
        f"The oldest is {key(oldest.name)}, aged {key(oldest.age)}. "
        f"The last column is called {key(facts.extra_header)} and contains {extras}."
    )
    return question, answer


# Markdown stands twice: half of all table questions ask for it.
_ASKERS: tuple[tuple[str, Asker[TableFacts]], ...] = (
    ("markdown", _markdown),
    ("markdown", _markdown),
    ("row", _row),
    ("oldest", _oldest),
)


def _ask(rng: Random, facts: TableFacts) -> Exchange:
    return ask_one_of(rng, facts, _ASKERS)


FAMILY = Family("table", _draw, _ask)
