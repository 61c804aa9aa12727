"""A canvas that remembers what was drawn where.

Families draw through `Canvas`, so that every image comes with annotations: points with a label of
`vocabulary.LABELS`. It knows shapes and text, but nothing about questions.
"""

import math
from functools import cache
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from engine_build.tiny_vlm.vocabulary import COLORS, LABEL_IDS, Rgb

INK: Rgb = (20, 20, 20)
_GLYPH_MIDDLE = 0.6
"""Where the middle of a glyph lies below the top of its line, as a part of the font size."""


class Annotation(NamedTuple):
    """What can be seen at one point of an image (pixels from the top left)."""

    x: float
    y: float
    label: str

    @property
    def label_id(self) -> int:
        """The label's number in the label table."""
        return LABEL_IDS[self.label]


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size)


def text_width(text: str, size: int) -> float:
    """Width in pixels of one line of text."""
    return _font(size).getlength(text)


class Canvas:
    """An RGB image being drawn, with its annotations."""

    def __init__(self, width: int, height: int, background: Rgb) -> None:
        """Starts an image of one colour."""
        self.image = Image.new("RGB", (width, height), background)
        self.draw = ImageDraw.Draw(self.image)
        self.annotations: list[Annotation] = []

    def annotate(self, x: float, y: float, label: str) -> None:
        """Records that `label` can be seen at a point, moved into the image if it lies outside."""
        if label not in LABEL_IDS:
            raise ValueError(f"no such label: {label!r}")
        width, height = self.image.size
        self.annotations.append(
            Annotation(min(max(x, 0), width - 1), min(max(y, 0), height - 1), label)
        )

    def text(self, x: float, y: float, text: str, size: int, fill: Rgb = INK) -> None:
        """Writes one line with its top left corner at a point; annotates every character."""
        self.draw.text((x, y), text, font=_font(size), fill=fill)
        for i, character in enumerate(text):
            if character == " ":
                continue
            left, right = text_width(text[:i], size), text_width(text[: i + 1], size)
            self.annotate(x + (left + right) / 2, y + size * _GLYPH_MIDDLE, f"ch:{character}")

    def box(self, x0: float, y0: float, x1: float, y1: float, fill: Rgb) -> None:
        """Fills an axis-aligned rectangle, both corners included."""
        self.draw.rectangle([x0, y0, x1, y1], fill=fill)

    def shape(self, name: str, cx: float, cy: float, r: float, color: str) -> None:
        """Draws one of `vocabulary.SHAPES` about a point; does not annotate it."""
        fill = COLORS[color]
        if name == "ring":
            width = max(3, int(r * 0.35))
            self.draw.ellipse([cx - r, cy - r, cx + r, cy + r], outline=fill, width=width)
        elif name == "heart":
            self._heart(cx, cy, r, fill)
        elif name == "cross":
            t = r * 0.33
            self.box(cx - r, cy - t, cx + r, cy + t, fill)
            self.box(cx - t, cy - r, cx + t, cy + r, fill)
        elif name == "circle":
            self.draw.ellipse([cx - r, cy - r, cx + r, cy + r], fill=fill)
        elif name == "square":
            half = r * 0.88
            self.box(cx - half, cy - half, cx + half, cy + half, fill)
        else:
            self.draw.polygon(_outline(name, cx, cy, r), fill=fill)

    def _heart(self, cx: float, cy: float, r: float, fill: Rgb) -> None:
        top, bottom = cy - r * 0.9, cy + r * 0.1
        self.draw.ellipse([cx - r, top, cx, bottom], fill=fill)
        self.draw.ellipse([cx, top, cx + r, bottom], fill=fill)
        side, shoulder = r * 0.95, cy - r * 0.2
        self.draw.polygon([(cx - side, shoulder), (cx + side, shoulder), (cx, cy + r)], fill=fill)


def _outline(name: str, cx: float, cy: float, r: float) -> list[tuple[float, float]]:
    """The corners of a shape that is a polygon."""
    if name == "triangle":
        return [(cx, cy - r), (cx - r, cy + r * 0.85), (cx + r, cy + r * 0.85)]
    if name == "diamond":
        return [(cx, cy - r * 1.1), (cx - r * 0.75, cy), (cx, cy + r * 1.1), (cx + r * 0.75, cy)]
    if name == "star":
        corners = []
        for i in range(10):
            radius = r * 1.1 if i % 2 == 0 else r * 0.45
            angle = i * math.pi / 5
            corners.append((cx + radius * math.sin(angle), cy - radius * math.cos(angle)))
        return corners
    raise ValueError(f"no such shape: {name!r}")
