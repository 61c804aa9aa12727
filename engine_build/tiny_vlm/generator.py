"""Makes one sample, picture, question and answer, from a seed.

The same seed and family give the same sample bit for bit, in any process: everything is drawn from
one `random.Random(seed)`. Pixels of text also depend on Pillow's built-in font and rasterizer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from PIL import Image

from engine_build.tiny_vlm.canvas import Annotation, Canvas
from engine_build.tiny_vlm.families import FAMILIES, Exchange
from engine_build.tiny_vlm.wording import Span, parse_keyed


@dataclass(frozen=True)
class Sample:
    """One picture with a question about it and the true answer.

    Attributes:
        seed: what it was made from.
        family: one of `families.FAMILIES`.
        kind: the kind of question within the family.
        image: RGB, both sides multiples of 28 pixels. Do not draw on it.
        annotations: what can be seen where in the image.
        question: the user's text.
        answer: the true answer.
        spans: ranges of characters in `answer` that depend on the image, in order.
    """

    seed: int
    family: str
    kind: str
    image: Image.Image
    annotations: tuple[Annotation, ...]
    question: str
    answer: str
    spans: tuple[Span, ...]

    @property
    def attributes(self) -> list[str]:
        """The parts of the answer that depend on the image, in order."""
        return [self.answer[start:end] for start, end in self.spans]


FOLLOW_UPS: Mapping[str, str] = MappingProxyType(
    {"scene": "gqa", "gqa": "gqa", "chart": "chart", "ocr": "ocr", "doc": "doc", "table": "table"}
)
"""Family of a first question to the family that asks the second one about the same picture.

`sci` is missing: a diagram allows one question only."""


def sample(seed: int, family: str | None = None) -> Sample:
    """Makes the sample of a seed.

    Args:
        seed: see `seeds` for who may use which.
        family: a name in `families.FAMILIES`; None lets the seed choose.

    Raises:
        KeyError: there is no such family.
    """
    rng = Random(seed)
    if family is None:
        family = rng.choice(list(FAMILIES))
    maker = FAMILIES[family]
    canvas, facts = maker.draw(rng)
    return _assemble(seed, family, canvas, maker.ask(rng, facts))


def dialogue(seed: int, family: str) -> tuple[Sample, Sample]:
    """Makes two samples of different kinds about one picture.

    The first one equals `sample(seed, family)`.

    Args:
        seed: see `seeds` for who may use which.
        family: a key of `FOLLOW_UPS`.
    """
    rng = Random(seed)
    second_family = FOLLOW_UPS[family]
    canvas, facts = FAMILIES[family].draw(rng)
    first = FAMILIES[family].ask(rng, facts)
    second = FAMILIES[second_family].ask(rng, facts)
    while second.kind == first.kind:
        second = FAMILIES[second_family].ask(rng, facts)
    return (
        _assemble(seed, family, canvas, first),
        _assemble(seed, second_family, canvas, second),
    )


def _assemble(seed: int, family: str, canvas: Canvas, exchange: Exchange) -> Sample:
    answer, spans = parse_keyed(exchange.answer)
    return Sample(
        seed=seed,
        family=family,
        kind=exchange.kind,
        image=canvas.image,
        annotations=tuple(canvas.annotations),
        question=exchange.question,
        answer=answer,
        spans=spans,
    )
