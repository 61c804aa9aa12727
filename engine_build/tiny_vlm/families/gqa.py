"""Spatial and counting questions about a picture of two to five shapes."""

from random import Random

from engine_build.tiny_vlm.canvas import Canvas
from engine_build.tiny_vlm.families.base import Asker, Exchange, Family, ask_one_of
from engine_build.tiny_vlm.families.shapes import PlacedShape, ShapesFacts, draw_shapes
from engine_build.tiny_vlm.vocabulary import COLOR_NAMES, NUMBERS, SHAPES
from engine_build.tiny_vlm.wording import join_and, key, plural, with_article

_PRESENT_SHAPE_RATE = 0.9
"""How often a counting question asks about a shape of the picture rather than about any."""


def _draw(rng: Random) -> tuple[Canvas, ShapesFacts]:
    return draw_shapes(rng, rng.choice([2, 3, 4, 5]))


def _list_shapes(shapes: tuple[PlacedShape, ...]) -> str:
    return join_and([with_article(shape.short) for shape in shapes])


def _overall(facts: ShapesFacts) -> str:
    """The closing sentence of answers about single shapes."""
    count = NUMBERS[len(facts.shapes)]
    return (
        f" Overall, the {key(facts.background)} picture shows {key(count)} shapes: "
        f"{_list_shapes(facts.shapes)}."
    )


def _all_of_them(facts: ShapesFacts) -> str:
    """The closing sentence of answers that already name every shape."""
    return f" All of them are drawn on a {key(facts.background)} background."


def _count(rng: Random, facts: ShapesFacts) -> tuple[str, str]:
    if rng.random() < _PRESENT_SHAPE_RATE:
        shape = rng.choice([each.shape for each in facts.shapes])
    else:
        shape = rng.choice(SHAPES)
    template = rng.choice(["How many {} are there?", "Count the {} in the image."])
    found = [each for each in facts.shapes if each.shape == shape]
    if not found:
        answer = (
            f"There are {key('no')} {plural(shape)} in the image. "
            f"The picture only has {_list_shapes(facts.shapes)}."
        )
    elif len(found) == 1:
        answer = (
            f"There is {key('one')} {shape} in the image. "
            f"It is {key(found[0].color)} and it sits at the {key(found[0].position)}."
        )
    else:
        colors = join_and([key(each.color) for each in found])
        answer = (
            f"There are {key(NUMBERS[len(found)])} {plural(shape)} in the image. "
            f"Their colors are {colors}."
        )
    return template.format(plural(shape)), answer + _overall(facts)


def _place(rng: Random, facts: ShapesFacts) -> tuple[str, str]:
    shape = rng.choice(facts.shapes)
    template = rng.choice(["What is in the {} of the image?", "Which object is at the {}?"])
    answer = (
        f"The object at the {shape.position} is {with_article(shape.full)}. "
        f"It is one of {key(NUMBERS[len(facts.shapes)])} shapes in the picture."
    )
    return template.format(shape.position), answer + _overall(facts)


def _colors(rng: Random, facts: ShapesFacts) -> tuple[str, str]:
    question = rng.choice(
        [
            "How many objects are there and what colors are they?",
            "Count all shapes and name their colors.",
        ]
    )
    colors = join_and([key(shape.color) for shape in facts.shapes])
    answer = (
        f"I count {key(NUMBERS[len(facts.shapes)])} objects. "
        f"From top to bottom, their colors are {colors}."
    )
    return question, answer + _all_of_them(facts)


def _exists(rng: Random, facts: ShapesFacts) -> tuple[str, str]:
    if rng.random() < 0.5:
        shown = rng.choice(facts.shapes)
        color, shape = shown.color, shown.shape
    else:
        color, shape = rng.choice(COLOR_NAMES), rng.choice(SHAPES)
    asked = f"{color} {shape}"
    template = rng.choice(["Is there {}?", "Can you find {}?"])
    found = [each for each in facts.shapes if each.shape == shape and each.color == color]
    if found:
        answer = (
            f"{key('Yes')}, there is {with_article(asked)}. It is {key(found[0].size)} "
            f"and located at the {key(found[0].position)} of the image."
        )
    else:
        answer = (
            f"{key('No')}, there is no {asked}. "
            f"Instead the image contains {_list_shapes(facts.shapes)}."
        )
    return template.format(with_article(asked)), answer + _overall(facts)


def _sizes(rng: Random, facts: ShapesFacts) -> tuple[str, str]:
    question = rng.choice(
        ["Which shapes are large and which are small?", "Sort the shapes by size."]
    )
    # "the" stands once, before the first shape of a list.
    large = [shape.short for shape in facts.shapes if shape.size == "large"]
    small = [shape.short for shape in facts.shapes if shape.size == "small"]
    if large:
        answer = f"The large shapes are the {join_and(large)}."
    else:
        answer = f"There are {key('no')} large shapes."
    if small:
        answer += f" The small ones are the {join_and(small)}."
    else:
        answer += f" There are {key('no')} small ones."
    return question, answer + _all_of_them(facts)


_ASKERS: tuple[tuple[str, Asker[ShapesFacts]], ...] = (
    ("count", _count),
    ("place", _place),
    ("colors", _colors),
    ("exists", _exists),
    ("sizes", _sizes),
)


def _ask(rng: Random, facts: ShapesFacts) -> Exchange:
    return ask_one_of(rng, facts, _ASKERS)


FAMILY = Family("gqa", _draw, _ask)
