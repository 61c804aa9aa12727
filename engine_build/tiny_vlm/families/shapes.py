"""Pictures of coloured shapes in a 3 by 3 grid, shared by the families `scene` and `gqa`."""

from dataclasses import dataclass
from random import Random

from engine_build.tiny_vlm.canvas import Canvas
from engine_build.tiny_vlm.vocabulary import BACKGROUNDS, COLOR_NAMES, POSITIONS, SHAPES
from engine_build.tiny_vlm.wording import key

SIDE = 112
_CELL, _FIRST_CENTER = 37, 19


@dataclass(frozen=True)
class PlacedShape:
    """One shape of a picture; `position` names its cell."""

    size: str
    color: str
    shape: str
    position: str

    @property
    def short(self) -> str:
        """Colour and shape, marked as attributes."""
        return f"{key(self.color)} {key(self.shape)}"

    @property
    def full(self) -> str:
        """Size, colour and shape, marked as attributes."""
        return f"{key(self.size)} {self.short}"


@dataclass(frozen=True)
class ShapesFacts:
    """A picture of shapes, ordered from the top left to the bottom right."""

    background: str
    shapes: tuple[PlacedShape, ...]


def draw_shapes(rng: Random, count: int) -> tuple[Canvas, ShapesFacts]:
    """Draws `count` shapes in different cells."""
    background = rng.choice(list(BACKGROUNDS))
    canvas = Canvas(SIDE, SIDE, BACKGROUNDS[background])
    cells = sorted(rng.sample(range(len(POSITIONS)), count))
    placed = tuple(_place(rng, canvas, cell) for cell in cells)
    return canvas, ShapesFacts(background, placed)


def _place(rng: Random, canvas: Canvas, cell: int) -> PlacedShape:
    shape = rng.choice(SHAPES)
    color = rng.choice(COLOR_NAMES)
    size = rng.choice(["small", "large"])
    radius = rng.uniform(7.5, 9) if size == "small" else rng.uniform(14, 16)
    cx = _FIRST_CENTER + _CELL * (cell % 3) + rng.uniform(-2, 2)
    cy = _FIRST_CENTER + _CELL * (cell // 3) + rng.uniform(-2, 2)
    canvas.shape(shape, cx, cy, radius, color)
    for label in (f"co:{color}", f"sh:{shape}", f"sz:{size}"):
        canvas.annotate(cx, cy, label)
    return PlacedShape(size, color, shape, POSITIONS[cell])
