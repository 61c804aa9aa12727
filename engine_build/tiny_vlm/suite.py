"""Fixed sets of prompts for benchmarks, made by the generator.

`mini` holds the seven families of the generator, each like a kind of public benchmark, and three
families of prompt shapes: two images in one turn, a second turn, and no image. `warmup` holds a few
prompts of the same kinds from other seeds. Both are the same in every process.

The shipped checkpoint was trained on the first seven only. The other three are there to send every
shape of prompt through the system; the checkpoint's texts for them are poor and sometimes one word
over and over, which flatters any drafter. Report figures by family, and sums over the seven.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from PIL import Image

from engine_build.tiny_vlm.families import FAMILIES
from engine_build.tiny_vlm.generator import FOLLOW_UPS, Sample, dialogue, sample
from engine_build.tiny_vlm.seeds import MINI_SEEDS, WARMUP_SEEDS, block_seed

SUITE_MAX_TOKENS = 96
"""`max_tokens` for every prompt of a suite; the longest true answer of `mini` has 62 tokens."""

MINI_PER_FAMILY = 40
MINI_TEXT_ONLY = 20
WARMUP_SIZE = 8
_ORDER_SEED = 0

Message = dict[str, Any]


@dataclass(frozen=True)
class SuiteSample:
    """One prompt.

    Attributes:
        id: unique in its suite, e.g. `mini/chart/007`.
        family: a family of the generator, `two_image`, `second_turn` or `text_only`.
        messages: OpenAI-style chat that ends with a user's turn; every content is a list of
            `{"type": "image"}` and `{"type": "text", "text": ...}`.
        images: PNG files, in the order in which the messages mention them.
        answer: the true answer, or None where there is none.
        attributes: the parts of the answer that depend on the image, in order.
    """

    id: str
    family: str
    messages: list[Message]
    images: list[bytes]
    answer: str | None
    attributes: list[str]


@dataclass(frozen=True)
class _Prompt:
    messages: list[Message]
    images: list[Image.Image]
    answer: str | None
    attributes: list[str]


def user_turn(text: str, images: int = 0) -> Message:
    """A user's message: images first, then the text."""
    pictures: list[dict[str, str]] = [{"type": "image"} for _ in range(images)]
    return {"role": "user", "content": [*pictures, {"type": "text", "text": text}]}


def _assistant_turn(text: str) -> Message:
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def _single(made: Sample) -> _Prompt:
    messages = [user_turn(made.question, images=1)]
    return _Prompt(messages, [made.image], made.answer, made.attributes)


_SELF_EVIDENT = ("chart", "doc", "table", "sci")
"""Families whose questions say by themselves which of two pictures they are about."""


def _two_image(seed: int, index: int) -> _Prompt:
    """Two pictures of different families and a question that only one of them answers."""
    rng = Random(seed)
    asked_family = _SELF_EVIDENT[index % len(_SELF_EVIDENT)]
    other_family = rng.choice([name for name in FAMILIES if name != asked_family])
    asked, other = sample(seed, asked_family), sample(seed, other_family)
    images = [asked.image, other.image]
    if rng.random() < 0.5:
        images.reverse()
    return _Prompt([user_turn(asked.question, images=2)], images, asked.answer, asked.attributes)


def _second_turn(seed: int, index: int) -> _Prompt:
    """A question with its true answer, then another question about the same picture."""
    families = list(FOLLOW_UPS)
    first, second = dialogue(seed, families[index % len(families)])
    messages = [
        user_turn(first.question, images=1),
        _assistant_turn(first.answer),
        user_turn(second.question),
    ]
    return _Prompt(messages, [first.image], second.answer, second.attributes)


def _text_only(seed: int, index: int) -> _Prompt:
    """A question of one of the families without its picture, so that nothing answers it."""
    families = list(FAMILIES)
    made = sample(seed, families[index % len(families)])
    return _Prompt([user_turn(made.question)], [], None, [])


_EXTRA_FAMILIES: dict[str, Callable[[int, int], _Prompt]] = {
    "two_image": _two_image,
    "second_turn": _second_turn,
    "text_only": _text_only,
}

SUITE_FAMILIES = (*FAMILIES, *_EXTRA_FAMILIES)
"""The families of `mini`, in the order of their blocks of seeds."""


def load_suite(name: str, per_family: int | None = None) -> list[SuiteSample]:
    """Makes the prompts of a suite.

    The families of `mini` are interleaved in a fixed shuffled order: served family by family, a
    memory that lasts over requests would meet every family when it is tuned to it.

    Args:
        name: `mini` (40 prompts a family, 20 of `text_only`) or `warmup` (8 prompts).
        per_family: keeps the first so many prompts of every family, in the order of the whole
            suite; for `mini` only.

    Raises:
        ValueError: there is no such suite, or `per_family` does not suit it.
    """
    if name == "mini":
        if per_family is not None and per_family < 1:
            raise ValueError(f"per_family must be at least 1, not {per_family}")
        return [_make("mini", MINI_SEEDS, family, i) for family, i in _mini_order(per_family)]
    if name == "warmup":
        if per_family is not None:
            raise ValueError("the suite 'warmup' has no subsets by family")
        return [_make(name, WARMUP_SEEDS, family, 0) for family in SUITE_FAMILIES[:WARMUP_SIZE]]
    raise ValueError(f"no such suite: {name!r}; there are 'mini' and 'warmup'")


def _mini_order(per_family: int | None) -> list[tuple[str, int]]:
    """(family, index) of the prompts of `mini`, shuffled as a whole, then filtered."""
    order = [
        (family, i)
        for family in SUITE_FAMILIES
        for i in range(MINI_TEXT_ONLY if family == "text_only" else MINI_PER_FAMILY)
    ]
    Random(_ORDER_SEED).shuffle(order)
    return [(family, i) for family, i in order if per_family is None or i < per_family]


def _make(suite: str, seeds: range, family: str, index: int) -> SuiteSample:
    seed = block_seed(seeds, SUITE_FAMILIES.index(family), index)
    if family in FAMILIES:
        prompt = _single(sample(seed, family))
    else:
        prompt = _EXTRA_FAMILIES[family](seed, index)
    return SuiteSample(
        id=f"{suite}/{family}/{index:03d}",
        family=family,
        messages=prompt.messages,
        images=[png_bytes(image) for image in prompt.images],
        answer=prompt.answer,
        attributes=prompt.attributes,
    )


def png_bytes(image: Image.Image) -> bytes:
    """An image as the bytes of a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
