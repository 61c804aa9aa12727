"""Multiple choice about five kinds of science diagram.

Every diagram gives the same `DiagramFacts`, so one function words all the questions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from engine_build.tiny_vlm.canvas import INK, Canvas
from engine_build.tiny_vlm.families.base import Exchange, Family
from engine_build.tiny_vlm.vocabulary import COLOR_NAMES, COLORS, Rgb
from engine_build.tiny_vlm.wording import key

SIDE = 112
_PAPERS: list[Rgb] = [(255, 255, 255), (240, 245, 250)]
_POLE_COLORS: dict[str, Rgb] = {"N": (220, 60, 60), "S": (70, 110, 220)}
_LIQUID: Rgb = (220, 40, 40)
_FORCES = {1: "weak", 2: "medium", 3: "strong"}


@dataclass(frozen=True)
class DiagramFacts:
    """What a diagram asks and shows.

    Attributes:
        kind: the kind of diagram.
        question: the question, without the choices.
        choices: the choices in their natural order.
        answer: the right one of them.
        seen: sentences on what this diagram shows, marked.
        rule: a sentence on the law behind it, the same for all diagrams of the kind.
    """

    kind: str
    question: str
    choices: tuple[str, ...]
    answer: str
    seen: str
    rule: str


def _magnets(rng: Random, canvas: Canvas) -> DiagramFacts:
    facing = [rng.choice("NS"), rng.choice("NS")]
    y = 40 + rng.randint(-8, 12)
    for side, pole in enumerate(facing):
        left = 6 + side * 54
        far = "S" if pole == "N" else "N"
        for j, letter in enumerate((far, pole) if side == 0 else (pole, far)):
            x = left + j * 23
            canvas.box(x, y, x + 23, y + 26, _POLE_COLORS[letter])
            canvas.text(x + 6, y + 4, letter, 16, (255, 255, 255))
            canvas.annotate(x + 11, y + 20, f"d:{letter}")
    alike = facing[0] == facing[1]
    answer = "repel" if alike else "attract"
    return DiagramFacts(
        kind="magnets",
        question="What will the two magnets do?",
        choices=("attract", "repel", "nothing"),
        answer=answer,
        seen=(
            f"The facing poles are {key(facing[0])} and {key(facing[1])}, and "
            f"{key('like' if alike else 'opposite')} poles {key(answer)} each other."
        ),
        rule="Magnets push apart when the same poles meet and pull together otherwise.",
    )


def _balance(rng: Random, canvas: Canvas) -> DiagramFacts:
    tilt = rng.choice([-1, 0, 1])  # -1: the left side is down
    left, right = rng.sample(COLOR_NAMES, 2)
    dy = 12 * tilt
    canvas.draw.polygon([(56, 50), (46, 100), (66, 100)], fill=(110, 110, 110))
    canvas.draw.line([(14, 50 - dy), (98, 50 + dy)], fill=(60, 60, 60), width=4)
    for x, y, color in ((22, 40 - dy, left), (90, 40 + dy, right)):
        canvas.box(x - 10, y - 16, x + 10, y + 5, COLORS[color])
        canvas.annotate(x, y - 4, f"co:{color}")
        canvas.annotate(x, y + 10, "d:pan")
    if tilt == 0:
        beam = f"The beam is {key('level')}, so the weights are equal."
    else:
        beam = f"The beam tilts down on the {key('left' if tilt < 0 else 'right')} side."
    return DiagramFacts(
        kind="balance",
        question="Which block is heavier?",
        choices=("the left block", "the right block", "neither"),
        answer=("the left block", "neither", "the right block")[tilt + 1],
        seen=(
            f"The {key(left)} block is on the left and the {key(right)} block is on the right. "
            f"{beam}"
        ),
        rule="On a balance, the side that carries more weight always moves down.",
    )


def _circuit(rng: Random, canvas: Canvas) -> DiagramFacts:
    closed = rng.random() < 0.5
    y = 30 + rng.randint(-6, 6)
    draw = canvas.draw
    draw.rectangle([16, y, 96, y + 52], outline=(30, 30, 30), width=2)
    canvas.box(46, y + 46, 66, y + 58, (90, 160, 90))  # the battery
    canvas.text(48, y + 44, "+", 12)
    paper = canvas.image.getpixel((0, 0))
    draw.rectangle([44, y - 2, 70, y + 2], fill=paper)  # the gap for the switch
    lever_end = (70, y) if closed else (66, y - 16)
    draw.line([(44, y), lever_end], fill=(30, 30, 30), width=3)
    canvas.annotate(57, y, "d:closed" if closed else "d:gap")
    glow = (255, 225, 60) if closed else (170, 170, 170)
    draw.ellipse([84, y + 14, 108, y + 38], fill=glow, outline=(30, 30, 30))
    canvas.annotate(96, y + 26, "d:lit" if closed else "d:unlit")
    return DiagramFacts(
        kind="circuit",
        question="Is current flowing in this circuit?",
        choices=("yes", "no"),
        answer="yes" if closed else "no",
        seen=(
            f"The switch is {key('closed' if closed else 'open')}, "
            f"so the lamp is {key('glowing' if closed else 'dark')}."
        ),
        rule="A lamp needs a complete loop of wire before it can shine.",
    )


def _thermometers(rng: Random, canvas: Canvas) -> DiagramFacts:
    levels = rng.sample(range(1, 10), 2)
    for i, level in enumerate(levels):
        x = 30 + 52 * i
        surface = 86 - level * 7.5
        canvas.draw.rectangle([x - 6, 8, x + 6, 90], outline=(40, 40, 40), width=1)
        canvas.draw.ellipse([x - 10, 84, x + 10, 104], fill=_LIQUID)
        canvas.box(x - 4, surface, x + 4, 90, _LIQUID)
        canvas.text(x - 20, 4, "AB"[i], 13)
        canvas.annotate(x, surface, f"v:{level}")
    return DiagramFacts(
        kind="thermometers",
        question="Which thermometer shows the higher temperature?",
        choices=("thermometer A", "thermometer B", "they are equal"),
        answer=f"thermometer {'A' if levels[0] > levels[1] else 'B'}",
        seen=(
            f"The liquid in A reaches level {key(levels[0])} "
            f"while the liquid in B reaches level {key(levels[1])}."
        ),
        rule="A liquid expands when it is heated, so a taller column means more heat.",
    )


def _forces(rng: Random, canvas: Canvas) -> DiagramFacts:
    left, right = rng.sample(list(_FORCES), 2)
    y = 56 + rng.randint(-12, 12)
    color = rng.choice(COLOR_NAMES)
    canvas.box(44, y - 12, 68, y + 12, COLORS[color])
    canvas.annotate(56, y, f"co:{color}")
    for start, direction, force in ((43, -1, left), (69, 1, right)):
        end = start + direction * (6 + force * 9)
        canvas.draw.line([(start, y), (end, y)], fill=INK, width=3)
        canvas.draw.polygon([(end + direction * 6, y), (end, y - 6), (end, y + 6)], fill=INK)
        canvas.annotate(end, y, "d:arrowL" if direction < 0 else "d:arrowR")
        canvas.annotate(end, y, f"v:{force}")
    return DiagramFacts(
        kind="forces",
        question="In which direction will the box move?",
        choices=("to the left", "to the right", "it will not move"),
        answer="to the left" if left > right else "to the right",
        seen=(
            f"The {key(color)} box is pulled by a {key(_FORCES[left])} force on the left "
            f"and a {key(_FORCES[right])} force on the right."
        ),
        rule="An object accelerates toward the side of the greater force.",
    )


_DIAGRAMS: tuple[Callable[[Random, Canvas], DiagramFacts], ...] = (
    _magnets,
    _balance,
    _circuit,
    _thermometers,
    _forces,
)


def _draw(rng: Random) -> tuple[Canvas, DiagramFacts]:
    canvas = Canvas(SIDE, SIDE, rng.choice(_PAPERS))
    diagram = _DIAGRAMS[rng.randrange(len(_DIAGRAMS))]
    return canvas, diagram(rng, canvas)


def _ask(rng: Random, facts: DiagramFacts) -> Exchange:
    choices = list(facts.choices)
    rng.shuffle(choices)
    lettered = list(zip("ABC", choices, strict=False))
    question = f"{facts.question} " + " ".join(f"({letter}) {text}" for letter, text in lettered)
    letter = "ABC"[choices.index(facts.answer)]
    explanation = f"{facts.seen} {facts.rule}"
    if rng.randrange(2) == 0:
        answer = f"The answer is {key(f'({letter})')}: {key(facts.answer)}. {explanation}"
    else:
        question += " Explain first."
        answer = f"{explanation} Therefore the answer is {key(f'({letter})')}, {key(facts.answer)}."
    return Exchange(facts.kind, question, answer)


FAMILY = Family("sci", _draw, _ask)
