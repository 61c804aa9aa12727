"""Bytes, base64 text and data URIs to pixels; limits; digests.

The one door through which a client's image enters. What comes out is an upright, opaque RGB image
or an `InvalidRequestError`: never a half-decoded picture, a warning or an error of Pillow's.
Knows nothing of models; `models.processor` calls it. Every function may be called from many
threads at once.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import warnings

import numpy as np
from PIL import Image

from recap.config import LimitSettings
from recap.errors import InvalidRequestError

# Pillow warns of large images when it opens them. `max_image_pixels` is our rule instead, checked
# before anything is decoded, and a warning that the process prints would be noise that any client
# can make. Once at import: `warnings.catch_warnings` is not safe among threads.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

ACCEPTED = (
    "a PNG, JPEG, WebP, GIF or BMP image as raw bytes, base64 text or "
    "a data URI (data:image/png;base64,...)"
)
"""The accepted forms, as error messages name them."""

_PILLOW_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 2**31)
"""Pillow refuses to open larger images, whatever our own limit says."""

_DATA_URI = re.compile(rb"data:([^,]{0,200}),", re.IGNORECASE)
_MEDIA_TYPES = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/jpg": "JPEG",  # not registered, but widely sent
    "image/webp": "WEBP",
    "image/gif": "GIF",
    "image/bmp": "BMP",
    "image/x-ms-bmp": "BMP",
}
_BASE64 = re.compile(rb"[A-Za-z0-9+/]*={0,2}")
_LINE_BREAKS = b"\r\n"  # `base64 photo.png` wraps its lines

_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_image(data: bytes, limits: LimitSettings, field: str = "image") -> Image.Image:
    """One image as a client sends it, decoded.

    Animations give their first frame, EXIF orientation is applied, transparency is composited on
    white, and 16-bit samples keep their upper byte.

    Args:
        data: Encoded image, its base64 text (line breaks allowed), or a data URI. A data URI must
            name the format it carries (``image/jpg`` counts as ``image/jpeg``).
        limits: `max_image_bytes` holds for the encoded image after base64, `max_image_pixels` for
            what its header states.
        field: Name of the input field for errors.

    Returns:
        Image of mode RGB, fully loaded.

    Raises:
        InvalidRequestError: Not such an image, truncated, corrupt or beyond a limit.
    """
    payload, declared = _unwrap(data, limits, field)
    if len(payload) > limits.max_image_bytes:
        raise _too_many_bytes(field, limits)
    kind = _sniff(payload)
    if kind is None:
        raise InvalidRequestError(field, f"must be {ACCEPTED}")
    if declared not in (None, kind):
        raise InvalidRequestError(
            field, f"the data URI says {declared} but carries {kind}; name the actual format"
        )
    return _decode(payload, kind, min(limits.max_image_pixels, _PILLOW_PIXELS), field)


def to_rgb(image: Image.Image) -> Image.Image:
    """The image as opaque RGB: palette, greyscale, CMYK, 16-bit and transparency handled."""
    if image.mode.startswith("I"):  # 16-bit greyscale; `convert` would clip instead of scale
        grey = np.clip(np.asarray(image).astype(np.int64), 0, 65535) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        overlay = image.convert("RGBA")
        canvas = Image.new("RGBA", image.size, "white")
        canvas.alpha_composite(overlay)
        return canvas.convert("RGB")
    return image.convert("RGB")


def digest(image: Image.Image) -> str:
    """Names an image by content: SHA-256, in hex, of its mode, size and pixels."""
    content = hashlib.sha256(f"{image.mode} {image.width}x{image.height} ".encode())
    content.update(image.tobytes())
    return content.hexdigest()


def _unwrap(data: bytes, limits: LimitSettings, field: str) -> tuple[bytes, str | None]:
    """The encoded image, and the format that a data URI claims (None for the other forms)."""
    if not data:
        raise InvalidRequestError(field, f"must not be empty: expected {ACCEPTED}")
    if _sniff(data) is not None:
        return data, None
    head = data[:8].lower()
    if head.startswith((b"http://", b"https:/")):
        raise InvalidRequestError(field, f"URLs are not fetched: expected {ACCEPTED}")
    if not head.startswith(b"data:"):
        return _from_base64(data, limits, field), None
    match = _DATA_URI.match(data)
    media_type, _, encoding = (match[1] if match else b"").decode("latin-1").lower().partition(";")
    declared = _MEDIA_TYPES.get(media_type.strip())
    # Parameters such as ;charset= may precede ;base64.
    if match is None or declared is None or encoding.split(";")[-1].strip() != "base64":
        raise InvalidRequestError(field, f"unsupported data URI: expected {ACCEPTED}")
    return _from_base64(data[match.end() :], limits, field), declared


def _from_base64(text: bytes, limits: LimitSettings, field: str) -> bytes:
    text = text.translate(None, _LINE_BREAKS)
    if len(text) * 3 // 4 > limits.max_image_bytes + 2:  # 2: the padding
        raise _too_many_bytes(field, limits)
    # The library's own validation lets superfluous padding pass.
    if len(text) % 4 or not _BASE64.fullmatch(text):
        raise InvalidRequestError(field, f"is not valid base64: expected {ACCEPTED}")
    return base64.b64decode(text)


def _sniff(data: bytes) -> str | None:
    """Pillow's name of the format that the first bytes announce."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WEBP"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    # Two letters could open a text as well; the reserved words after the file size are zero.
    if data.startswith(b"BM") and data[6:10] == bytes(4):
        return "BMP"
    return None


def _decode(payload: bytes, kind: str, max_pixels: int, field: str) -> Image.Image:
    """Decodes an encoded image of a known format.

    Pillow reports hostile input by exceptions of a dozen types, so all of them are the client's.
    """
    too_large = InvalidRequestError(field, f"must have at most {max_pixels} pixels")
    try:
        with Image.open(io.BytesIO(payload), formats=[kind]) as image:  # reads the header only
            if image.width * image.height > max_pixels:
                raise too_large
            image.load()
            return _upright(to_rgb(image), _orientation(image))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise too_large from None
    except (InvalidRequestError, MemoryError):
        raise
    except Exception:
        raise InvalidRequestError(field, f"is a truncated or corrupt {kind} image") from None


def _orientation(image: Image.Image) -> int:
    """EXIF orientation of a loaded image; 1 (upright) where the EXIF block is unreadable."""
    try:
        return image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # a damaged EXIF block does not damage the picture
        return 1


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    method = _UPRIGHT.get(orientation)
    return image if method is None else image.transpose(method)


def _too_many_bytes(field: str, limits: LimitSettings) -> InvalidRequestError:
    return InvalidRequestError(field, f"must have at most {limits.max_image_bytes} bytes")
