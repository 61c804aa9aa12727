"""Fields of a receipt with two or three items."""

from dataclasses import dataclass
from random import Random

from engine_build.tiny_vlm.canvas import Canvas
from engine_build.tiny_vlm.families.base import Asker, Exchange, Family, ask_one_of
from engine_build.tiny_vlm.vocabulary import ITEMS, NUMBERS, STORES
from engine_build.tiny_vlm.wording import join_and, key

WIDTH, HEIGHT = 112, 140
_PAPERS = [(255, 255, 255), (250, 248, 238)]
_RULE = (120, 120, 120)


@dataclass(frozen=True)
class ReceiptFacts:
    """A receipt; `prices[i]` (whole dollars) belongs to `items[i]`, `date` is month/day."""

    store: str
    date: str
    items: tuple[str, ...]
    prices: tuple[int, ...]

    @property
    def total(self) -> int:
        """The sum of the prices in dollars."""
        return sum(self.prices)

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Item and price of every line, marked as attributes."""
        return [(key(i), key(p)) for i, p in zip(self.items, self.prices, strict=True)]


def _draw(rng: Random) -> tuple[Canvas, ReceiptFacts]:
    canvas = Canvas(WIDTH, HEIGHT, rng.choice(_PAPERS))
    store = rng.choice(STORES)
    count = rng.choice([2, 3])
    items = rng.sample(ITEMS, count)
    prices = [rng.randint(1, 9) for _ in items]
    date = f"{rng.randint(1, 12):02d}/{rng.randint(1, 28):02d}"
    facts = ReceiptFacts(store, date, tuple(items), tuple(prices))

    canvas.text(30 + rng.randint(-6, 6), 3, store, 16)
    canvas.text(8, 24, "Date", 13)
    canvas.text(60, 24, date, 13)
    canvas.draw.line([(6, 43), (106, 43)], fill=_RULE)
    y = 47
    for item, price in zip(items, prices, strict=True):
        canvas.text(8, y, item, 14)
        canvas.text(84, y, str(price), 14)
        y += 19
    canvas.draw.line([(6, y + 4), (106, y + 4)], fill=_RULE)
    canvas.text(8, y + 7, "Total", 15)
    canvas.text(80, y + 7, str(facts.total), 15)
    return canvas, facts


def _as_json(rng: Random, facts: ReceiptFacts) -> tuple[str, str]:
    question = rng.choice(
        ["Extract the receipt as JSON.", "Return the fields of this receipt as JSON."]
    )
    items = ", ".join(f'{{"name": "{item}", "price": {price}}}' for item, price in facts.lines)
    answer = (
        f'{{"store": "{key(facts.store)}", "date": "{key(facts.date)}", '
        f'"items": [{items}], "total": {key(facts.total)}}}'
    )
    return question, answer


def _list_items(rng: Random, facts: ReceiptFacts) -> tuple[str, str]:
    question = rng.choice(["List the items and their prices.", "What was bought and for how much?"])
    lines = [
        f"{i}. {item} - {price} dollars" for i, (item, price) in enumerate(facts.lines, start=1)
    ]
    start = f"The receipt from {key(facts.store)} lists:"
    return question, "\n".join([start, *lines, f"The total is {key(facts.total)} dollars."])


def _total(rng: Random, facts: ReceiptFacts) -> tuple[str, str]:
    question = rng.choice(
        ["What is the total and the date?", "When was this receipt printed and what is the total?"]
    )
    bought = join_and([f"{item} for {price}" for item, price in facts.lines])
    answer = (
        f"The receipt was printed by {key(facts.store)} on {key(facts.date)}. "
        f"The total amount is {key(facts.total)} dollars "
        f"for {key(NUMBERS[len(facts.items)])} items. The customer bought {bought}."
    )
    return question, answer


_ASKERS: tuple[tuple[str, Asker[ReceiptFacts]], ...] = (
    ("json", _as_json),
    ("list", _list_items),
    ("total", _total),
)


def _ask(rng: Random, facts: ReceiptFacts) -> Exchange:
    return ask_one_of(rng, facts, _ASKERS)


FAMILY = Family("doc", _draw, _ask)
