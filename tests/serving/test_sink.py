"""A response is ended exactly once, whatever `send` does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.errors import CapacityError, InvalidRequestError
from recap.requests import Chunk, FinishReason, GenerationStats
from recap.serving.sink import ResponseSink

from .fakes import Backend, Logger, Sender, TritonError

STATS = GenerationStats(7, 3, 2, 16, 4)


def chunk(text: str, reason: FinishReason = "") -> Chunk:
    return Chunk(text, np.zeros(len(text), np.int32), reason, STATS if reason else None)


def sink_over(sender: Sender, stream: bool = True) -> ResponseSink:
    return ResponseSink(Backend, sender, stream, "id-1")


def test_streams_deltas_and_ends_on_the_last_one() -> None:
    sender = Sender()
    sink = sink_over(sender)
    for piece in (chunk("one "), chunk(""), chunk("two"), chunk("!", "stop")):
        sink.emit(piece)
    assert [r.outputs["text_output"][0] for r in sender.responses] == [b"one ", b"two", b"!"]
    assert [r.outputs["finish_reason"][0] for r in sender.responses] == [b"", b"", b"stop"]
    assert ["acceptance_rate" in r.outputs for r in sender.responses] == [False, False, True]
    last = sender.responses[-1].outputs
    assert last["num_input_tokens"] == [7] and last["num_input_tokens"].dtype == np.uint32
    assert last["total_draft_tokens"].dtype == np.int32
    assert last["acceptance_rate"] == [0.25] and last["acceptance_rate"].dtype == np.float32
    assert sender.finals == 1 and sender.calls == 3 and sink.done


def test_without_streaming_one_response_has_all_text() -> None:
    sender = Sender()
    sink = sink_over(sender, stream=False)
    for piece in (chunk("héllo "), chunk("wörld"), chunk("", "length")):
        sink.emit(piece)
    assert sender.text == "héllo wörld"
    assert len(sender.responses) == sender.finals == 1


def test_nothing_follows_the_end() -> None:
    sender = Sender()
    sink = sink_over(sender)
    sink.emit(chunk("a", "stop"))
    sink.emit(chunk("b"))
    sink.fail(ValueError("late"))
    assert sender.calls == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequestError("max_tokens", "must be at least 1"), TritonError.INVALID_ARG),
        (CapacityError("too many requests wait"), TritonError.UNAVAILABLE),
    ],
)
def test_what_the_client_can_mend_is_told(error: Exception, code: int) -> None:
    sender = Sender()
    sink_over(sender).fail(error)
    answer = sender.responses[0].error
    assert answer is not None
    assert (answer.message(), answer.code()) == (str(error), code)
    assert sender.finals == 1


def test_defects_are_logged_and_not_told() -> None:
    Logger.lines.clear()
    sender = Sender()
    sink_over(sender).fail(RuntimeError("/secret/path: broken"))
    answer = sender.responses[0].error
    assert answer is not None and answer.code() == TritonError.INTERNAL
    assert "secret" not in answer.message() and "id-1" in answer.message()
    assert "/secret/path" in Logger.lines[0] and "id-1" in Logger.lines[0]


@given(
    pieces=st.lists(st.sampled_from(["", "a", "bc"]), max_size=6),
    ends_with_error=st.booleans(),
    stream=st.booleans(),
    failures=st.frozensets(st.integers(0, 7), max_size=4),
)
def test_ends_once_under_random_send_failures(
    pieces: list[str], ends_with_error: bool, stream: bool, failures: frozenset[int]
) -> None:
    sender = Sender(failures)
    sink = sink_over(sender, stream)
    try:
        for text in pieces:
            sink.emit(chunk(text))
        if ends_with_error:
            sink.fail(RuntimeError("/secret/path"))
        else:
            sink.emit(chunk("z", "stop"))
    except Exception:
        # A scheduler may or may not call again after a sink raised.
        sink.fail(RuntimeError("/secret/path"))
    assert sink.done
    assert sender.finals <= 1
    # The client hangs only if Triton itself refused both the last response and the bare flag.
    assert sender.finals == 1 or {sender.calls - 1, sender.calls - 2} <= failures
    if sender.finals and not failures and not ends_with_error:
        assert sender.text == "".join(pieces) + "z"
    for response in sender.responses:
        assert response.error is None or "secret" not in response.error.message()


def test_cancellation_is_not_asked_after_the_end() -> None:
    sender = Sender(cancelled=True)
    sink = sink_over(sender)
    assert sink.is_cancelled()
    sink.emit(chunk("", "cancelled"))
    assert not sink.is_cancelled()
