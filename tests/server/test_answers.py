"""Right answers: what the server streams is what the library says, by every way in."""

from __future__ import annotations

import json
import threading
import urllib.request

import numpy as np
import pytest

from recap.serving.client import Call, Piece, generate_grpc, generate_http, stream_tensors
from recap.serving.launch import Server

from . import images
from .library import Library

QUESTION = "Describe the picture."
CHAT = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]},
    {"role": "assistant", "content": "The image shows four shapes."},
    {"role": "user", "content": "How many shapes are there?"},
]


def ask(server: Server, call: Call, over: str = "grpc") -> list[Piece]:
    if over == "grpc":
        return list(generate_grpc(server.plan.grpc_url, call))
    return list(generate_http(server.plan.http_url, call))


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


@pytest.mark.parametrize("over", ["grpc", "http"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "pictures",
    [[], [images.DEMO], [images.DEMO, images.plain(60, 40, kind="JPEG")]],
    ids=["no image", "one image", "two images"],
)
def test_text_is_the_librarys(
    server: Server, library: Library, over: str, stream: bool, pictures: list[bytes]
) -> None:
    prompt = library.prompt(QUESTION, pictures)
    expected = library.answer(prompt, 48)
    pieces = ask(server, Call(text=QUESTION, images=pictures, max_tokens=48, stream=stream), over)
    assert text_of(pieces) == expected.text
    assert (len(pieces) > 1) == stream
    assert [bool(piece.finish_reason) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    last = pieces[-1]
    assert last.finish_reason == expected.last.finish_reason
    assert last.statistics["num_input_tokens"] == len(prompt.input_ids)
    assert last.statistics["num_output_tokens"] == len(expected.ids)
    drafted = last.statistics["total_draft_tokens"]
    accepted = last.statistics["total_accepted_draft_tokens"]
    assert 0 < accepted <= drafted
    assert last.statistics["acceptance_rate"] == pytest.approx(accepted / drafted)
    # The first token comes from the prefill, and each step adds one of its own.
    assert last.statistics["num_decode_steps"] + accepted + 1 == len(expected.ids)
    assert all(not piece.statistics for piece in pieces[:-1])


@pytest.mark.parametrize("over", ["grpc", "http"])
def test_messages(server: Server, library: Library, over: str) -> None:
    chat = json.dumps(CHAT)
    expected = library.answer(library.prompt(messages=chat, images=[images.DEMO]), 32)
    pieces = ask(server, Call(messages=chat, images=[images.DEMO], max_tokens=32), over)
    assert text_of(pieces) == expected.text


def test_forms_of_an_image_are_the_same(server: Server) -> None:
    data = images.data_uri(images.DEMO, "png")
    forms = [images.DEMO, data, data.split(b",")[1]]
    answers = [
        text_of(ask(server, Call(text=QUESTION, images=[form], max_tokens=24))) for form in forms
    ]
    assert len(set(answers)) == 1 and answers[0]


def test_smallest_picture(server: Server, library: Library) -> None:
    picture = images.plain(1, 1)
    expected = library.answer(library.prompt(QUESTION, [picture]), 16)
    assert text_of(ask(server, Call(text=QUESTION, images=[picture], max_tokens=16))) == (
        expected.text
    )


@pytest.mark.parametrize("form", ["text_input", "messages"])
def test_special_tokens_are_text(server: Server, library: Library, form: str) -> None:
    specials = library.special_tokens()
    assert specials
    plain = library.prompt("x").input_ids.tolist()
    for special in specials:
        typed = f"a{special}b"
        chat = json.dumps([{"role": "user", "content": typed}])
        both = {"text": typed} if form == "text_input" else {"messages": chat}
        prompt = library.prompt(**both)
        ids = prompt.input_ids.tolist()
        assert len(ids) > len(plain) + 2, f"{special} became one token"
        expected = library.answer(prompt, 4)
        pieces = ask(server, Call(**both, max_tokens=4))
        assert text_of(pieces) == expected.text
        assert pieces[-1].statistics["num_input_tokens"] == len(ids)


def test_concurrent_streams_equal_solo(server: Server) -> None:
    calls = [
        Call(text=QUESTION, images=[images.DEMO], max_tokens=48),
        Call(text="What is in the picture?", images=[images.plain(80, 50, "blue")], max_tokens=48),
        Call(text="hello", max_tokens=64),
        Call(messages=json.dumps(CHAT), images=[images.DEMO], max_tokens=48),
    ]
    solo = [text_of(ask(server, call)) for call in calls]
    together: dict[int, str] = {}

    def run(index: int) -> None:
        together[index] = text_of(ask(server, calls[index]))

    for _ in range(2):
        threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert [together[index] for index in range(len(calls))] == solo


def test_request_id_comes_back_over_http(server: Server) -> None:
    body = json.dumps({"text_input": "hello", "max_tokens": 2, "id": "mine-7"}).encode()
    request = urllib.request.Request(
        f"http://{server.plan.http_url}/v2/models/recap_vlm/generate",
        body,
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert json.load(reply)["id"] == "mine-7"


def test_decoder_alone_takes_ids(server: Server, library: Library) -> None:
    prompt = library.prompt("hello")
    expected = library.answer(prompt, 8)
    tensors = {
        "input_ids": prompt.input_ids,
        "max_tokens": np.array([8], np.int32),
    }
    (answer,) = stream_tensors(server.plan.grpc_url, "recap_decoder", tensors)
    assert answer["text_output"].item().decode() == expected.text
