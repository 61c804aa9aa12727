"""Scene description: an open question about a picture of two to four shapes."""

from random import Random

from engine_build.tiny_vlm.canvas import Canvas
from engine_build.tiny_vlm.families.base import Asker, Exchange, Family, ask_one_of
from engine_build.tiny_vlm.families.shapes import ShapesFacts, draw_shapes
from engine_build.tiny_vlm.vocabulary import NUMBERS, ORDINALS
from engine_build.tiny_vlm.wording import join_and, key, with_article


def _draw(rng: Random) -> tuple[Canvas, ShapesFacts]:
    # Three shapes are twice as likely as two or four.
    return draw_shapes(rng, rng.choice([2, 3, 3, 4]))


def _describe(rng: Random, facts: ShapesFacts) -> tuple[str, str]:
    question = rng.choice(["Describe the image.", "Describe this image."])
    count, background = NUMBERS[len(facts.shapes)], facts.background
    leads = (
        "In the {} there is a {}.",
        "The {} holds a {}.",
        "At the {} we find a {}.",
        "Finally, the {} has a {}.",
    )
    sentences = [
        lead.format(key(shape.position), shape.full)
        for lead, shape in zip(leads, facts.shapes, strict=False)
    ]
    start = f"The image shows {key(count)} shapes on a {key(background)} background."
    return question, " ".join([start, *sentences])


def _show(rng: Random, facts: ShapesFacts) -> tuple[str, str]:
    question = rng.choice(["What is shown in this picture?", "What does the picture show?"])
    shapes = join_and([with_article(shape.full) for shape in facts.shapes])
    positions = join_and([key(shape.position) for shape in facts.shapes])
    answer = (
        f"This picture contains {shapes}. The background is plain {key(facts.background)}. "
        f"The objects are placed at the {positions}."
    )
    return question, answer


def _caption(rng: Random, facts: ShapesFacts) -> tuple[str, str]:
    question = rng.choice(["Write a caption for this image.", "Give me a caption."])
    parts = []
    for i, shape in enumerate(facts.shapes):
        article = "A" if i == 0 else "a"
        place = "in" if i % 2 == 0 else "near"
        parts.append(f"{article} {shape.full} {place} the {key(shape.position)}")
    return question, f"{join_and(parts)}, drawn over {key(facts.background)} paper."


def _detail(rng: Random, facts: ShapesFacts) -> tuple[str, str]:
    question = rng.choice(
        ["Please describe the scene in detail.", "Explain everything you can see."]
    )
    count = NUMBERS[len(facts.shapes)]
    start = f"Against a {key(facts.background)} background I can see {key(count)} objects."
    sentences = [
        f"The {ordinal} is {with_article(shape.full)} at the {key(shape.position)}."
        for ordinal, shape in zip(ORDINALS, facts.shapes, strict=False)
    ]
    return question, " ".join([start, *sentences])


_ASKERS: tuple[tuple[str, Asker[ShapesFacts]], ...] = (
    ("describe", _describe),
    ("show", _show),
    ("caption", _caption),
    ("detail", _detail),
)


def _ask(rng: Random, facts: ShapesFacts) -> Exchange:
    return ask_one_of(rng, facts, _ASKERS)


FAMILY = Family("scene", _draw, _ask)
