"""OpenAI-style chat messages, read strictly.

Turns the client's `messages` into the form that chat templates take, and collects the images in
order of appearance. Every departure from the form is one error that names the place, such as
``messages[1].content[0]``. Knows no tokenizer and decodes no image.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from recap.config import LimitSettings
from recap.errors import InvalidRequestError

Turn = dict[str, Any]
"""``{"role": ..., "content": text or list of parts}``, as chat templates take it."""

_ROLES = ("system", "user", "assistant")
_PART_TYPES = ("text", "image", "image_url")

# An image inside the JSON text has its own limit. JSON may write "/" as "\/".
_INLINE_IMAGE = re.compile(r'"data:image\\?/[A-Za-z0-9+/=;,.\\-]*"', re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class ImageSource:
    """An image of the request, not decoded yet.

    Attributes:
        field: Where the client put it, for errors.
        data: Encoded bytes, base64 text, data URI, or an image that is decoded already.
    """

    field: str
    data: bytes | Image.Image


@dataclass(frozen=True, eq=False)
class Conversation:
    """A checked chat.

    Attributes:
        turns: Role and content of each message; an image is the part ``{"type": "image"}``.
        images: One per image part, in order.
    """

    turns: list[Turn]
    images: list[ImageSource]


def image_sources(images: Sequence[bytes | Image.Image]) -> list[ImageSource]:
    """The `image` input as sources."""
    return [ImageSource(f"image[{i}]", data) for i, data in enumerate(images)]


def single_turn(text: str, images: list[ImageSource]) -> Conversation:
    """One user turn: the images, then the text."""
    parts: list[dict[str, str]] = [{"type": "image"} for _ in images]
    if text:
        parts.append({"type": "text", "text": text})
    return Conversation([{"role": "user", "content": parts}], images)


def check_text(text: str, field: str, limits: LimitSettings) -> None:
    """Refuses text that is longer than `max_text_bytes` or that UTF-8 cannot carry.

    Raises:
        InvalidRequestError: Too long, or half of a surrogate pair stands alone.
    """
    _check_length(_utf8_bytes(text, field), field, limits)


def parse_messages(
    messages: str | list[Any], images: Sequence[bytes | Image.Image], limits: LimitSettings
) -> Conversation:
    """Reads a chat.

    Args:
        messages: JSON text, or what it parses to: a list of ``{"role", "content"}`` whose last is
            the user's. Content is a string or a list of ``{"type": "text", "text": ...}``,
            ``{"type": "image"}`` (the next of `images`) and ``{"type": "image_url", "image_url":
            {"url": data URI}}`` (or the URI itself; ``detail`` is accepted and has no effect).
        images: The images that ``{"type": "image"}`` parts refer to, in order.
        limits: `max_text_bytes` holds for `messages` without the images inside it.

    Raises:
        InvalidRequestError: Not of this form; the field is the path of what is wrong.
    """
    if isinstance(messages, str):
        messages = _load(messages, limits)
    if not isinstance(messages, list) or not messages:
        raise InvalidRequestError("messages", "must be a non-empty JSON list of messages")
    reader = _Reader(images)
    turns = [reader.turn(message, f"messages[{i}]") for i, message in enumerate(messages)]
    _check_length(reader.text_bytes, "messages", limits)
    _check_last(turns[-1], f"messages[{len(turns) - 1}]")
    unused = sum(1 for _ in reader.pending)
    if unused:
        raise InvalidRequestError(
            "image",
            f'{len(images)} given, but messages has {len(images) - unused} {{"type": "image"}} '
            "parts; there must be one part per image",
        )
    return Conversation(turns, reader.sources)


class _Reader:
    """One pass over the messages; collects images and counts text."""

    def __init__(self, images: Sequence[bytes | Image.Image]) -> None:
        self.pending: Iterator[ImageSource] = iter(image_sources(images))
        self.sources: list[ImageSource] = []
        self.text_bytes = 0

    def turn(self, message: Any, path: str) -> Turn:
        _check_keys(message, ("role", "content"), (), path)
        role, content = message["role"], message["content"]
        if role not in _ROLES:
            raise InvalidRequestError(
                f"{path}.role", f"must be one of {', '.join(_ROLES)}, got {_shown(role)}"
            )
        if isinstance(content, str):
            return {"role": role, "content": self._text(content, f"{path}.content")}
        if not isinstance(content, list) or not content:
            raise InvalidRequestError(
                f"{path}.content", "must be a string or a non-empty list of parts"
            )
        parts = [self._part(part, f"{path}.content[{i}]") for i, part in enumerate(content)]
        return {"role": role, "content": parts}

    def _part(self, part: Any, path: str) -> dict[str, str]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _PART_TYPES:
            raise InvalidRequestError(
                path,
                "must be an object whose type is one of "
                f"{', '.join(_PART_TYPES)}, got {_shown(kind if isinstance(part, dict) else part)}",
            )
        if kind == "text":
            _check_keys(part, ("type", "text"), (), path)
            return {"type": "text", "text": self._text(part["text"], f"{path}.text")}
        self.sources.append(self._image(part, path))
        return {"type": "image"}

    def _text(self, text: Any, path: str) -> str:
        if not isinstance(text, str):
            raise InvalidRequestError(path, f"must be a string, got {_shown(text)}")
        self.text_bytes += _utf8_bytes(text, path)
        return text

    def _image(self, part: dict[str, Any], path: str) -> ImageSource:
        if part["type"] == "image":
            _check_keys(part, ("type",), (), path)
            source = next(self.pending, None)
            if source is None:
                raise InvalidRequestError(path, "refers to one more image than `image` holds")
            return source
        _check_keys(part, ("type", "image_url"), (), path)
        url, path = part["image_url"], f"{path}.image_url"
        if isinstance(url, dict):
            _check_keys(url, ("url",), ("detail",), path)
            url, path = url["url"], f"{path}.url"
        if not isinstance(url, str) or not url[:5].lower() == "data:":
            raise InvalidRequestError(
                path,
                "must be a data URI (data:image/png;base64,...); URLs are not fetched",
            )
        return ImageSource(path, url.encode("utf-8", "replace"))


def _load(text: str, limits: LimitSettings) -> Any:
    """Parses JSON text whose size, inline images aside, is within the limit."""
    inline = sum(match.end() - match.start() for match in _INLINE_IMAGE.finditer(text))
    _check_length(_utf8_bytes(text, "messages") - inline, "messages", limits)
    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidRequestError("messages", "is nested too deeply") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequestError("messages", f"must be JSON; it is not from {place} on") from None
    except ValueError:
        # The one other complaint: Python reads no integers of more than 4,300 digits.
        raise InvalidRequestError("messages", "must be JSON with numbers of fewer digits") from None


def _check_last(turn: Turn, path: str) -> None:
    if turn["role"] != "user":
        raise InvalidRequestError(f"{path}.role", "the last message must be the user's")
    content = turn["content"]
    if not content or all(part == {"type": "text", "text": ""} for part in content):
        raise InvalidRequestError(f"{path}.content", "must not be empty: give text or an image")


def _check_keys(value: Any, required: Iterable[str], optional: Iterable[str], path: str) -> None:
    """Holds an object to its keys, so that nothing a client asks for is silently ignored."""
    if not isinstance(value, dict):
        raise InvalidRequestError(path, f"must be an object, got {_shown(value)}")
    for key in required:
        if key not in value:
            raise InvalidRequestError(path, f"must have {key}")
    for key in value:
        if key not in required and key not in optional:
            raise InvalidRequestError(path, f"has an unknown key {_shown(key)}")


def _check_length(n_bytes: int, field: str, limits: LimitSettings) -> None:
    if n_bytes > limits.max_text_bytes:
        raise InvalidRequestError(
            field, f"must have at most {limits.max_text_bytes} bytes of text, got {n_bytes}"
        )


def _utf8_bytes(text: str, field: str) -> int:
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            field, f"must be Unicode text: half a surrogate pair at character {error.start}"
        ) from None


def _shown(value: Any) -> str:
    """A client's value for an error message: short, and printable whatever it holds."""
    shown = ascii(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."
