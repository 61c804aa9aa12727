"""Ending a running request: by a stop from another connection, or by hanging up."""

from __future__ import annotations

import time

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

# The echo model takes 0.1 s per step of at most 11 tokens for these: 9 s without a stop.
LONG = "slow " + "".join(chr(97 + (index * 7) % 26) for index in range(1000))


def is_running(server: Server, request_id: str) -> bool:
    """Asks by a stop, which ends it: ask only when it should be over."""
    try:
        stop(server.plan.grpc_url, request_id)
    except ServerError:
        return False
    return True


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("over", [generate_grpc, generate_http])
def test_stop_from_another_connection(echo_server: Server, over, stream: bool) -> None:
    grpc = over is generate_grpc
    url = echo_server.plan.grpc_url if grpc else echo_server.plan.http_url
    call = Call(text=LONG, max_tokens=1024, stream=True)
    pieces = over(url, call)
    first = next(pieces)
    begun = time.monotonic()
    if stream:
        stop(echo_server.plan.grpc_url, call.request_id)
    else:
        (answer,) = generate_http(
            echo_server.plan.http_url, Call(stop=True, request_id=call.request_id, stream=False)
        )
        assert (answer.text, answer.finish_reason) == ("", "cancelled")
        assert set(answer.statistics.values()) == {0}
    rest = list(pieces)
    assert time.monotonic() - begun < 5
    text = first.text + "".join(piece.text for piece in rest)
    assert rest[-1].finish_reason == "cancelled"
    assert LONG.startswith(text) and len(text) < len(LONG)
    assert not is_running(echo_server, call.request_id)


def test_stop_of_one_spares_the_others(echo_server: Server) -> None:
    url = echo_server.plan.grpc_url
    doomed, spared = Call(text=LONG, max_tokens=1024), Call(text="slow but sure", max_tokens=64)
    running, other = generate_grpc(url, doomed), generate_grpc(url, spared)
    next(running)
    text = next(other).text
    stop(url, doomed.request_id)
    assert text + "".join(piece.text for piece in other) == "slow but sure"
    assert list(running)[-1].finish_reason == "cancelled"


@pytest.mark.parametrize("request_id", ["nobody", ""])
def test_stop_of_nothing_is_one_clear_error(echo_server: Server, request_id: str) -> None:
    with pytest.raises(ServerError, match="nobody|stop: needs the id"):
        stop(echo_server.plan.grpc_url, request_id)


def test_hanging_up_on_the_decoder_cancels(echo_server: Server) -> None:
    ids = np.frombuffer(LONG.encode(), np.uint8).astype(np.int32)
    tensors = {"input_ids": ids, "stream": np.array([True]), "max_tokens": np.array([900], "i4")}
    url = echo_server.plan.grpc_url
    pieces = stream_tensors(url, "recap_decoder", tensors, request_id="hangs-up")
    next(pieces)
    pieces.close()
    # The watcher asks every 0.05 s; the request would need 8 s more.
    time.sleep(1.5)
    assert not is_running(echo_server, "hangs-up")
