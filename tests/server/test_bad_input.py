"""Bad input gets one clear error that names the field and leaks nothing; the next request works."""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from recap.serving.client import (
    Call,
    ServerError,
    generate_grpc,
    generate_http,
    stop,
    stream_tensors,
)
from recap.serving.launch import Server

from . import images
from .library import Library

CALLS = {
    "no text": (Call(), r"text_input: must be given"),
    "empty text": (Call(text=""), r"text_input: must not be empty"),
    "text and messages": (Call(text="a", messages="[]"), r"messages: cannot be combined"),
    "messages that are no JSON": (Call(messages="{nope"), r"messages: "),
    "messages without a turn": (Call(messages="[]"), r"messages: "),
    "not an image": (Call(text="a", images=[b"no image at all!"]), r"image\[0\]: "),
    "an empty image": (Call(text="a", images=[b""]), r"image\[0\]: "),
    "a web address": (Call(text="a", images=[b"http://127.0.0.1/x.png"]), r"image\[0\]: "),
    "a truncated PNG": (Call(text="a", images=[images.DEMO[:400]]), r"image\[0\]: "),
    "one good image, one bad": (
        Call(text="a", images=[images.DEMO, images.DEMO[:-300]]),
        r"image\[1\]: ",
    ),
    "10,000 x 10,000 pixels": (Call(text="a", images=[images.huge()]), r"image\[0\]: .*pixels"),
    "a data URI that lies": (
        Call(text="a", images=[images.data_uri(images.DEMO, "jpeg")]),
        r"image\[0\]: the data URI says JPEG but carries PNG",
    ),
    "ten images": (Call(text="a", images=[images.plain(20, 20)] * 10), r"image: .*8"),
    "a prompt beyond the context": (Call(text="word " * 5000), r"prompt: is \d+ tokens long"),
    "max_tokens 0": (Call(text="a", max_tokens=0), r"max_tokens: must be in \[1, 1024\], got 0"),
    "max_tokens negative": (Call(text="a", max_tokens=-5), r"max_tokens: must be in .* got -5"),
    "max_tokens huge": (Call(text="a", max_tokens=2**31 - 1), r"max_tokens: must be in"),
    "stop for an unknown id": (Call(stop=True, request_id="nobody"), r"nobody"),
}
OURS = "|".join(re.escape(str(path)) for path in (Path(__file__).parents[2], sys.prefix))
LEAKS = re.compile(rf"Traceback|\.py|{OURS}|/tmp/|/home/|site-packages|At:")


def assert_clear(message: str, pattern: str) -> None:
    assert re.search(pattern, message), message
    assert not LEAKS.search(message), message
    assert "\n" not in message and len(message) < 400, message


@pytest.fixture(autouse=True)
def next_request_works(server: Server) -> Iterator[None]:
    yield
    *_, last = generate_grpc(server.plan.grpc_url, Call(text="hello", max_tokens=2), 60)
    assert last.statistics["num_output_tokens"] == 2


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("over", ["grpc", "http"])
def test_refused_with_one_clear_error(server: Server, name: str, over: str) -> None:
    call, pattern = CALLS[name]
    with pytest.raises(ServerError) as refused:
        if over == "grpc":
            list(generate_grpc(server.plan.grpc_url, call, 60))
        else:
            list(generate_http(server.plan.http_url, call, 60))
    assert_clear(str(refused.value), pattern)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", np.array([5], np.int64)),
        ("max_tokens", np.array([5.0], np.float32)),
        ("max_tokens", np.array([5, 5], np.int32)),
        ("stream", np.array([1], np.int32)),
        ("text_input", np.array([1], np.int32)),
        ("text_input", np.array([b"a", b"b"], np.object_)),
        ("text_input", np.array([[b"a"]], np.object_)),
        ("image", np.zeros((1, 3, 8, 8), np.float32)),
        ("text_input", np.array([b"\xff\xfe"], np.object_)),
        ("unknown", np.array([5], np.int32)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.dtype}{list(value.shape)}",
)
def test_wrong_tensors(server: Server, name: str, value: np.ndarray) -> None:
    tensors = {"text_input": np.array([b"hello"], np.object_), name: value}
    with pytest.raises(ServerError) as refused:
        list(stream_tensors(server.plan.grpc_url, "recap_vlm", tensors, timeout_s=60))
    assert_clear(str(refused.value), name)


def post(server: Server, path: str, body: bytes) -> tuple[int, dict]:
    request = urllib.request.Request(
        f"http://{server.plan.http_url}/v2/models/recap_vlm/{path}",
        body,
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            status, text = reply.status, reply.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    return status, json.loads(text.decode().removeprefix("data: "))


def test_http_status_of_our_errors(server: Server) -> None:
    for body in ({}, {"text_input": "a", "max_tokens": 0}, {"text_input": "a", "image": "nope"}):
        for path in ("generate", "generate_stream"):
            status, answer = post(server, path, json.dumps(body).encode())
            assert status == 400, (body, answer)
            assert_clear(answer["error"], "text_input|max_tokens|image")


def test_decoder_refuses_what_does_not_fit(server: Server) -> None:
    ids = np.array([5, 6, 7], np.int32)
    features = np.zeros((1, 4, 256), np.float32)
    for tensors, pattern in (
        ({"input_ids": ids[:0]}, "prompt: must not be empty"),
        ({"input_ids": ids + 100_000}, "input_ids: every id"),
        ({"input_ids": -ids}, "input_ids: every id"),
        ({"input_ids": ids, "image_features": features}, "image_features|image_layout|image"),
    ):
        with pytest.raises(ServerError) as refused:
            list(stream_tensors(server.plan.grpc_url, "recap_decoder", tensors, timeout_s=60))
        assert_clear(str(refused.value), pattern)


def grid(*rows: tuple[int, ...]) -> np.ndarray:
    return np.array([rows], np.int64)


def test_malformed_steps_of_the_pipeline(server: Server, library: Library) -> None:
    """Direct calls with tensors that our own preprocessing never makes, beside a good request."""
    url = server.plan.grpc_url
    good = Call(text="Describe the picture.", images=[images.DEMO], max_tokens=200)
    expected = library.answer(library.prompt("Describe the picture.", [images.DEMO]), 200).text
    prompt = library.prompt("Describe.", [images.DEMO])
    pixels, layout = prompt.pixel_values[None], prompt.image_layout[None]
    encoded = {"pixel_values": pixels, "image_layout": layout}
    (features,) = [
        answer["image_features"] for answer in stream_tensors(url, "vision_encoder", encoded)
    ]
    decoded = {
        "input_ids": prompt.input_ids,
        "image_features": features,
        "image_layout": layout,
        "max_tokens": np.array([4], np.int32),
    }
    _, high, wide = layout[0, 0].tolist()
    layouts = [
        grid((1, 2, 2)),
        grid((high, wide)),
        grid((high * wide,)),
        grid((1, 1, high, wide)),
        grid((1, -high, -wide)),
        grid((0, 2, 2), (1, high, wide)),
        grid((1, 1, high * wide)),
        grid((2**62, 4, 1), (1, high, wide)),
        grid((2**63 - 1,) * 3),
        np.zeros((1, 1, 0), np.int64),
    ]
    wrong = [("vision_encoder", encoded | {"image_layout": each}) for each in layouts]
    wrong += [("recap_decoder", decoded | {"image_layout": each}) for each in layouts]
    for rows in (pixels[:, :-4], pixels[:, :0], pixels[:, :, :-1], pixels[:, :, :0]):
        wrong.append(("vision_encoder", encoded | {"pixel_values": rows}))
    for rows in (features[:, :-1], features[:, :, :-1], features[:, :, :0], features * np.nan):
        wrong.append(("recap_decoder", decoded | {"image_features": rows}))
    running = generate_grpc(url, good, 60)
    text = next(running).text
    for model, tensors in wrong:
        with pytest.raises(ServerError) as refused:
            list(stream_tensors(url, model, tensors, timeout_s=60))
        assert_clear(str(refused.value), "^image|^pixel_values")
    assert text + "".join(piece.text for piece in running) == expected


def test_stop_is_not_found_on_an_ended_request(server: Server) -> None:
    call = Call(text="hello", max_tokens=2)
    list(generate_grpc(server.plan.grpc_url, call, 60))
    with pytest.raises(ServerError, match=call.request_id):
        stop(server.plan.grpc_url, call.request_id)
