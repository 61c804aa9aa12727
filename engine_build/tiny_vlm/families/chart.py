"""Reading bar and line charts of three or four values."""

from dataclasses import dataclass
from random import Random

from engine_build.tiny_vlm.canvas import Canvas, text_width
from engine_build.tiny_vlm.families.base import Asker, Exchange, Family, ask_one_of
from engine_build.tiny_vlm.vocabulary import CHART_TITLES, COLOR_NAMES, COLORS, MONTHS
from engine_build.tiny_vlm.wording import join_and, key

WIDTH, HEIGHT = 140, 112
_LEFT, _BASE, _TOP = 18, 96, 24
_PLOT_WIDTH, _MAX_VALUE = 118, 10
_LINE_COLORS = ("red", "blue", "green", "black", "purple", "orange")


@dataclass(frozen=True)
class ChartFacts:
    """A chart: `values[i]` belongs to `labels[i]`, from left to right."""

    kind: str
    title: str
    labels: tuple[str, ...]
    values: tuple[int, ...]

    @property
    def highest(self) -> int:
        """Index of the largest value, the first of equals."""
        return self.values.index(max(self.values))

    @property
    def lowest(self) -> int:
        """Index of the smallest value, the first of equals."""
        return self.values.index(min(self.values))

    def pairs(self, between: str) -> list[str]:
        """Label and value of every point, marked as attributes, with a word between them."""
        points = zip(self.labels, self.values, strict=True)
        return [f"{key(label)}{between}{key(value)}" for label, value in points]


def _height_of(value: float) -> float:
    return _BASE - value * (_BASE - _TOP) / _MAX_VALUE


def _draw(rng: Random) -> tuple[Canvas, ChartFacts]:
    is_line = rng.random() < 0.4
    count = rng.choice([3, 4, 4])
    title = rng.choice(CHART_TITLES)
    if rng.random() < 0.6:
        labels = [MONTHS[i] for i in sorted(rng.sample(range(len(MONTHS)), count))]
    else:
        labels = rng.sample("ABCDEFGH", count)
    values = [rng.randint(1, 9) for _ in range(count)]
    facts = ChartFacts("line" if is_line else "bar", title, tuple(labels), tuple(values))

    canvas = Canvas(WIDTH, HEIGHT, (255, 255, 255))
    canvas.text(50 + rng.randint(-8, 8), 1, title, 12)
    _draw_axes(canvas)
    bar_colors = rng.sample(COLOR_NAMES, count)
    line_color = rng.choice(_LINE_COLORS)
    step = _PLOT_WIDTH / count
    centers = [_LEFT + step * (i + 0.5) + 1 for i in range(count)]
    if is_line:
        _draw_line(canvas, facts, centers, line_color)
    else:
        _draw_bars(canvas, facts, centers, bar_colors)
    return canvas, facts


def _draw_axes(canvas: Canvas) -> None:
    for value in (5, 10):
        y = _height_of(value)
        canvas.draw.line([(_LEFT, y), (136, y)], fill=(205, 205, 205))
    for value in (0, 5, 10):
        x = 3 if value < 10 else 0
        canvas.text(x, _height_of(value) - 7, str(value), 10, (90, 90, 90))
    canvas.draw.line([(_LEFT, _TOP), (_LEFT, _BASE), (138, _BASE)], fill=(30, 30, 30))


def _write_label(canvas: Canvas, center: float, label: str) -> None:
    # Centred by the width at size 10 but written at 11: the checkpoint was trained on this.
    canvas.text(center - text_width(label, 10) / 2, 98, label, 11)


def _draw_bars(canvas: Canvas, facts: ChartFacts, centers: list[float], colors: list[str]) -> None:
    for i, (center, value) in enumerate(zip(centers, facts.values, strict=True)):
        top = _height_of(value)
        canvas.box(center - 8, top, center + 8, _BASE - 1, COLORS[colors[i]])
        canvas.annotate(center, (top + _BASE) / 2, f"co:{colors[i]}")
        canvas.annotate(center, top + 1, f"v:{value}")
        _write_label(canvas, center, facts.labels[i])
        canvas.text(center - 3, top - 12, str(value), 10)


def _draw_line(canvas: Canvas, facts: ChartFacts, centers: list[float], color: str) -> None:
    points = []
    for center, value, label in zip(centers, facts.values, facts.labels, strict=True):
        points.append((center, _height_of(value)))
        canvas.annotate(center, _height_of(value) + 1, f"v:{value}")
        _write_label(canvas, center, label)
    canvas.draw.line(points, fill=COLORS[color], width=2)
    for x, y in points:
        canvas.draw.ellipse([x - 3, y - 3, x + 3, y + 3], fill=COLORS[color])
        canvas.annotate(x, y, f"co:{color}")


def _left_to_right(facts: ChartFacts) -> str:
    pairs = join_and(facts.pairs(" at "))
    return f" From left to right, the {key(facts.kind)} chart shows {pairs}."


def _describe(rng: Random, facts: ChartFacts) -> tuple[str, str]:
    question = rng.choice(["Describe this chart.", "Summarize the chart."])
    points = zip(facts.labels, facts.values, strict=True)
    values = join_and([f"{key(value)} for {key(label)}" for label, value in points])
    answer = (
        f"This {key(facts.kind)} chart is titled {key(facts.title)}. The values are {values}. "
        f"The highest point is {key(facts.labels[facts.highest])} "
        f"and the lowest is {key(facts.labels[facts.lowest])}."
    )
    return question, answer


def _extremes(rng: Random, facts: ChartFacts) -> tuple[str, str]:
    question = rng.choice(
        ["Which category has the highest value?", "What is the maximum in the chart?"]
    )
    high, low = facts.highest, facts.lowest
    answer = (
        f"The highest value is {key(facts.values[high])}, reached by {key(facts.labels[high])}. "
        f"The lowest value is {key(facts.values[low])}, "
        f"which belongs to {key(facts.labels[low])}."
    )
    return question, answer + _left_to_right(facts)


def _value(rng: Random, facts: ChartFacts) -> tuple[str, str]:
    i = rng.randrange(len(facts.values))
    template = rng.choice(["What is the value of {}?", "How much is {} in the chart?"])
    label, value, high = facts.labels[i], facts.values[i], facts.highest
    answer = (
        f"According to the chart about {key(facts.title)}, the value of {label} is {key(value)}."
    )
    if value == max(facts.values):
        answer += " This is the highest of all."
    else:
        answer += f" The highest is {key(facts.labels[high])} with {key(facts.values[high])}."
    return template.format(label), answer + _left_to_right(facts)


def _as_json(rng: Random, facts: ChartFacts) -> tuple[str, str]:
    question = rng.choice(["List all values in the chart as JSON.", "Give the chart data as JSON."])
    points = zip(facts.labels, facts.values, strict=True)
    data = ", ".join(f'"{key(label)}": {key(value)}' for label, value in points)
    answer = f'{{"title": "{key(facts.title)}", "type": "{key(facts.kind)}", "data": {{{data}}}}}'
    return question, answer


_ASKERS: tuple[tuple[str, Asker[ChartFacts]], ...] = (
    ("describe", _describe),
    ("extremes", _extremes),
    ("value", _value),
    ("json", _as_json),
)


def _ask(rng: Random, facts: ChartFacts) -> Exchange:
    return ask_one_of(rng, facts, _ASKERS)


FAMILY = Family("chart", _draw, _ask)
