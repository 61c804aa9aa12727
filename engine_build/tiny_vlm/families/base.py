"""What a family of samples is: a way to draw a picture and a way to ask about it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, NamedTuple, TypeVar

from engine_build.tiny_vlm.canvas import Canvas

FactsT = TypeVar("FactsT")


class Exchange(NamedTuple):
    """A question and its answer; the answer carries the marks of `wording.key`."""

    kind: str
    question: str
    answer: str


Asker = Callable[[Random, FactsT], tuple[str, str]]
"""Makes (question, marked answer) about a picture with the given facts."""


@dataclass(frozen=True)
class Family(Generic[FactsT]):
    """One kind of sample.

    Attributes:
        name: the family's name.
        draw: draws a picture and returns it with the facts it shows.
        ask: makes one exchange about a picture; may be called again for another about the same.
    """

    name: str
    draw: Callable[[Random], tuple[Canvas, FactsT]]
    ask: Callable[[Random, FactsT], Exchange]


def ask_one_of(rng: Random, facts: FactsT, askers: Sequence[tuple[str, Asker[FactsT]]]) -> Exchange:
    """Lets one of the named askers, chosen at random, make the exchange."""
    kind, asker = askers[rng.randrange(len(askers))]
    question, answer = asker(rng, facts)
    return Exchange(kind, question, answer)
