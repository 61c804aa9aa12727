"""Characters that are several tokens arrive whole: accents, CJK, emoji, by every way out."""

from __future__ import annotations

import json
import urllib.request

import pytest

from recap.serving.client import Call, generate_grpc
from recap.serving.launch import Server

TEXTS = {
    "accents": "Crème brûlée à la façade, naïve Ångström. " * 3,
    "CJK": "漢字かな交じり文、한국어도 됩니다。 " * 3,
    "emoji": "🙂🙃 👩🏽‍🚀👨‍👩‍👧‍👦 🏳️‍🌈 🇺🇳 " * 3,
    "combining": "e\u0301a\u0308\u0323 \u200d\u200d \ufeff end",
    "plain": "no characters of several bytes at all, " * 3,
}


@pytest.mark.parametrize("name", TEXTS)
def test_grpc_pieces_join_to_the_whole(echo_server: Server, name: str) -> None:
    pieces = list(generate_grpc(echo_server.plan.grpc_url, Call(text=TEXTS[name], max_tokens=1024)))
    assert "".join(piece.text for piece in pieces) == TEXTS[name]
    assert len(pieces) > 2
    assert all("\N{REPLACEMENT CHARACTER}" not in piece.text for piece in pieces)
    assert pieces[-1].finish_reason == "stop"
    assert pieces[-1].statistics["num_output_tokens"] == len(TEXTS[name].encode()) + 1


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("stream", [True, False])
def test_every_http_line_is_utf8_json(echo_server: Server, name: str, stream: bool) -> None:
    body = json.dumps({"text_input": TEXTS[name], "max_tokens": 1024, "stream": stream}).encode()
    path = "generate_stream" if stream else "generate"
    request = urllib.request.Request(
        f"http://{echo_server.plan.http_url}/v2/models/recap_vlm/{path}",
        body,
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        lines = [line.decode("utf-8").strip() for line in reply]
    answers = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert "".join(answer["text_output"] for answer in answers) == TEXTS[name]
    assert ("num_output_tokens" in answers[0]) != stream
    assert "num_output_tokens" in answers[-1]


def test_cut_inside_a_character(echo_server: Server) -> None:
    """The limit of tokens falls into a character: what is left of it is marked as such."""
    pieces = list(generate_grpc(echo_server.plan.grpc_url, Call(text="ab漢字", max_tokens=4)))
    assert "".join(piece.text for piece in pieces) == "ab\N{REPLACEMENT CHARACTER}"
    assert pieces[-1].finish_reason == "length"
