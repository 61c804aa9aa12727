"""Small pictures as encoded files."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from PIL import Image

DEMO = (Path(__file__).parents[2] / "engine_build" / "tiny_vlm" / "demo.png").read_bytes()


def plain(width: int, height: int, colour: str = "red", kind: str = "PNG") -> bytes:
    """A picture of one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(buffer, kind)
    return buffer.getvalue()


def huge() -> bytes:
    """10,000 x 10,000 pixels in a file of a few kilobytes."""
    buffer = io.BytesIO()
    Image.new("1", (10_000, 10_000)).save(buffer, "PNG")
    return buffer.getvalue()


def data_uri(data: bytes, kind: str) -> bytes:
    """The picture as a data URI that says it is a `kind`."""
    return f"data:image/{kind};base64,".encode() + base64.b64encode(data)
