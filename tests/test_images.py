"""Every kind of image a client may send, good and bad."""

from __future__ import annotations

import base64
import io
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from recap.config import LimitSettings
from recap.errors import InvalidRequestError
from recap.images import decode_image, digest, to_rgb

LIMITS = LimitSettings()
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MEDIA = {"PNG": "png", "JPEG": "jpeg", "WEBP": "webp", "GIF": "gif", "BMP": "bmp"}


def noise(width=24, height=16, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


def picture(width=24, height=16, seed=0):
    return Image.fromarray(noise(width, height, 3, seed))


def encode(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def data_uri(data, media):
    return b"data:image/" + media.encode() + b";base64," + base64.b64encode(data)


def one_bit_png(side):
    """A PNG of side x side white 1-bit pixels, a few kB however large."""

    def chunk(name, data):
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    packer = zlib.compressobj(9)
    row = b"\0" + b"\xff" * ((side + 7) // 8)
    packed = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    )


def refused(data, limits=LIMITS, field="image"):
    with pytest.raises(InvalidRequestError) as caught:
        decode_image(data, limits, field)
    assert caught.value.field == field
    return caught.value.rule


@pytest.mark.parametrize("kind", FORMATS)
def test_three_forms_of_one_image_are_equal(kind):
    data = encode(picture(), kind)
    text = base64.b64encode(data)
    wrapped = base64.encodebytes(data)
    forms = [data, text, wrapped, data_uri(data, MEDIA[kind])]
    images = [decode_image(form, LIMITS) for form in forms]
    assert {image.mode for image in images} == {"RGB"}
    assert len({digest(image) for image in images}) == 1
    if kind in ("PNG", "BMP"):
        assert np.array_equal(np.asarray(images[0]), noise())


def test_data_uri_variants():
    data = encode(picture(), "JPEG")
    text = base64.b64encode(data)
    for head in (b"data:image/jpg;base64,", b"DATA:IMAGE/JPEG;BASE64,"):
        decode_image(head + text, LIMITS)
    decode_image(b"data:image/jpeg;charset=utf-8;base64," + text, LIMITS)


@pytest.mark.parametrize(
    "head",
    [
        b"data:image/jpeg,",
        b"data:;base64,",
        b"data:text/plain;base64,",
        b"data:image/tiff;base64,",
        b"data:image/jpeg;base64",
    ],
)
def test_other_data_uris_are_refused(head):
    assert "data URI" in refused(head + base64.b64encode(encode(picture(), "JPEG")))


def test_data_uri_that_lies_names_both_formats():
    rule = refused(data_uri(encode(picture(), "JPEG"), "png"))
    assert "PNG" in rule and "JPEG" in rule


@pytest.mark.parametrize("url", [b"http://example.com/a.png", b"HTTPS://example.com/a.png"])
def test_urls_are_refused_and_accepted_forms_named(url):
    rule = refused(url)
    assert "URL" in rule and "base64" in rule and "data:image/png" in rule


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"just a text file\n",
        b"hello123",
        b"BMW is a car maker\n",
        b"file:///etc/passwd",
        b"\xff\xd8",
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a",
        b"RIFF\0\0\0\0WEBP",
        b"%PDF-1.4",
        b"\0" * 100,
    ],
)
def test_what_is_no_image_is_refused(data):
    refused(data)


def test_base64_with_garbage_is_refused():
    text = base64.b64encode(encode(picture()))
    for bad in (text[:40] + b"*" + text[40:], text + b"=", text[:-1], b" " + text, text + b"\0"):
        refused(bad)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {}),
        ("GIF", {}),
        ("BMP", {}),
    ],
)
def test_truncated_anywhere_is_an_error_or_the_whole_picture(kind, options):
    data = encode(picture(40, 30), kind, **options)
    whole = digest(decode_image(data, LIMITS))
    for end in range(1, len(data), 1 if len(data) < 2000 else 7):
        try:
            image = decode_image(data[:end], LIMITS)
        except InvalidRequestError:
            continue
        # Some formats end in bytes that carry no pixels (IEND, padding).
        assert digest(image) == whole, end
        assert end > len(data) - 16


@settings(max_examples=80, deadline=None)
@given(data=st.data(), kind=st.sampled_from(FORMATS))
def test_damaged_images_never_raise_anything_else(data, kind):
    damaged = bytearray(encode(picture(9, 7), kind))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert decode_image(bytes(damaged), LIMITS).mode == "RGB"
    except InvalidRequestError:
        pass


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_arbitrary_bytes_never_raise_anything_else(data):
    with pytest.raises(InvalidRequestError):
        decode_image(data, LIMITS)


# The module's own filter does not reach into pytest; the next test looks from outside.
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bomb_is_refused_from_its_header():
    bomb = one_bit_png(10_000)
    assert len(bomb) < 30_000
    assert "50000000 pixels" in refused(bomb)
    # Beyond what Pillow itself would open.
    assert "pixels" in refused(one_bit_png(20_000))


def test_bomb_leaks_no_warning():
    script = (
        "import sys; from recap.images import decode_image; from recap.config import LimitSettings;"
        "image = decode_image(sys.stdin.buffer.read(), LimitSettings(max_image_pixels=10**9));"
        "print(image.size)"
    )
    data = encode(Image.new("1", (9500, 9500)))
    process = subprocess.run(
        [sys.executable, "-W", "default", "-c", script], input=data, capture_output=True,
        env={"PYTHONPATH": "python_backend"}, check=True, timeout=60,
    )  # fmt: skip
    assert process.stdout.strip() == b"(9500, 9500)"
    assert b"Bomb" not in process.stderr


def test_limits_hold_at_the_border():
    data = encode(picture(10, 10))
    exact = LimitSettings(max_image_bytes=len(data), max_image_pixels=100)
    for form in (data, base64.b64encode(data), data_uri(data, "png")):
        decode_image(form, exact)
        small = LimitSettings(max_image_bytes=len(data) - 1)
        assert f"{len(data) - 1} bytes" in refused(form, small)
        assert "99 pixels" in refused(form, LimitSettings(max_image_pixels=99))
    assert "bytes" in refused(b"A" * 4000, LimitSettings(max_image_bytes=100))


def test_field_is_named():
    refused(b"", field="messages[0].content[1].image_url.url")


def test_one_pixel():
    assert decode_image(encode(Image.new("RGB", (1, 1), "red")), LIMITS).getpixel((0, 0)) == (
        255, 0, 0)  # fmt: skip


def test_transparency_is_composited_on_white():
    pixels = np.zeros((1, 3, 4), np.uint8)
    pixels[0, 1] = (200, 0, 0, 255)
    pixels[0, 2] = (0, 0, 0, 128)
    rgba = decode_image(encode(Image.fromarray(pixels, "RGBA")), LIMITS)
    assert [rgba.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (200, 0, 0)]
    assert abs(rgba.getpixel((2, 0))[0] - 127) <= 1

    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    for kind in ("PNG", "GIF"):
        image = decode_image(encode(palette, kind, transparency=0), LIMITS)
        assert [image.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (40, 50, 60)]

    grey_alpha = decode_image(encode(Image.new("LA", (1, 1), (9, 0))), LIMITS)
    assert grey_alpha.getpixel((0, 0)) == (255, 255, 255)


def test_sixteen_bit_greyscale_is_scaled_not_clipped():
    values = np.array([[0, 256, 32768, 65535]], np.uint16)
    image = decode_image(encode(Image.fromarray(values)), LIMITS)
    assert [image.getpixel((x, 0)) for x in range(4)] == [(v, v, v) for v in (0, 1, 128, 255)]


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK"])
def test_other_modes_become_rgb(mode):
    kind = "JPEG" if mode == "CMYK" else "PNG"
    source = picture().convert(mode)
    image = decode_image(encode(source, kind), LIMITS)
    assert image.mode == "RGB"
    error = np.abs(np.asarray(image, float) - np.asarray(source.convert("RGB"), float)).mean()
    assert error < (20 if kind == "JPEG" else 1e-9)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    # Stored so that undoing the orientation gives the upright picture: dark left half, bright top.
    upright = Image.new("L", (32, 16), 0)
    upright.paste(255, (0, 0, 8, 16))
    upright.paste(128, (8, 0, 32, 4))
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # inverse PIL transposes
    stored = upright if orientation == 1 else upright.transpose(undo[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(stored.convert("RGB"), "JPEG", quality=95, exif=exif)
    image = decode_image(data, LIMITS)
    assert image.size == upright.size
    error = np.abs(np.asarray(image.convert("L"), float) - np.asarray(upright, float)).mean()
    assert error < 8
    broken = data.replace(b"Exif\0\0", b"Exif\0\0\xff\xff", 1)
    try:
        decode_image(broken, LIMITS)
    except InvalidRequestError:
        pass


def test_first_frame_of_an_animation():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "green", "blue")]
    for kind in ("GIF", "WEBP", "PNG"):
        options = {"lossless": True} if kind == "WEBP" else {}
        data = encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert decode_image(data, LIMITS).getpixel((1, 1)) == (255, 0, 0)


def test_digest_tells_content_size_and_mode():
    image = picture()
    assert digest(image) == digest(image.copy())
    other = image.copy()
    other.putpixel((0, 0), (1, 2, 3))
    reshaped = Image.frombytes("RGB", (16, 24), image.tobytes())
    assert len({digest(i) for i in (image, other, reshaped, image.convert("L"))}) == 4
    assert len(digest(image)) == 64


def test_to_rgb_takes_any_image():
    assert to_rgb(Image.new("RGBA", (2, 2))).getpixel((0, 0)) == (255, 255, 255)


def test_many_threads():
    datas = [encode(picture(seed=i), kind) for i, kind in enumerate(FORMATS * 8)]
    alone = [digest(decode_image(data, LIMITS)) for data in datas]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda data: digest(decode_image(data, LIMITS)), datas)) == alone
