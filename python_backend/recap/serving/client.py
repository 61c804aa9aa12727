"""Talks to a running server: one call over gRPC streaming or HTTP, seen as pieces of text.

`scripts/client.py` and the server tests use it. gRPC needs the extra `client`; HTTP needs the
standard library only.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import queue
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recap.errors import RecapError
from recap.serving import contract

Number = int | float


class ClientError(RecapError):
    """The server cannot be reached, or does not answer in time."""


class ServerError(RecapError):
    """The server answered with an error; the message is the server's."""


@dataclass(frozen=True)
class Call:
    """One request as a client sees it; what is None is left out.

    Attributes:
        text: `text_input`.
        messages: A JSON string in the manner of OpenAI's chat.
        images: Encoded image files or data URIs, in order of appearance.
        max_tokens: Most tokens of the answer.
        stream: Whether the text comes in pieces.
        stop: Ends the running request that has `request_id`.
        raw_prompt: Takes `text` as the whole prompt, without the chat template.
        request_id: Made up when empty, so that the call can be stopped.
        model: Which model to ask.
    """

    text: str | None = None
    messages: str | None = None
    images: Sequence[bytes] = ()
    max_tokens: int | None = None
    stream: bool = True
    stop: bool = False
    raw_prompt: bool = False
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    model: str = contract.RECAP_VLM

    def values(self) -> dict[str, list[Any]]:
        """Input name to its elements, without those that are left out."""
        values: dict[str, list[Any]] = {}
        if self.text is not None:
            values[contract.TEXT_INPUT] = [self.text.encode("utf-8")]
        if self.messages is not None:
            values[contract.MESSAGES] = [self.messages.encode("utf-8")]
        if self.images:
            values[contract.IMAGE] = list(self.images)
        if self.max_tokens is not None:
            values[contract.MAX_TOKENS] = [self.max_tokens]
        for name in (contract.STREAM, contract.STOP, contract.RAW_PROMPT):
            if getattr(self, name):
                values[name] = [True]
        return values


@dataclass(frozen=True)
class Piece:
    """One response.

    Attributes:
        text: New text.
        finish_reason: "" unless it is the last one.
        statistics: Output name to number; empty unless it is the last one.
    """

    text: str
    finish_reason: str
    statistics: dict[str, Number]


def generate_grpc(url: str, call: Call, timeout_s: float = 300.0) -> Iterator[Piece]:
    """Sends a call over a gRPC stream and yields the responses as they come.

    Args:
        url: HOST:PORT.
        call: What to ask.
        timeout_s: Longest wait for the next response.

    Raises:
        ClientError: `tritonclient` is missing, or the server is unreachable or silent.
        ServerError: The server refused, or failed on the way.
    """
    tensors = {name: _to_array(name, items) for name, items in call.values().items()}
    for answer in stream_tensors(url, call.model, tensors, call.request_id, timeout_s):
        yield _piece({name: value.item() for name, value in answer.items()})


def stream_tensors(
    url: str,
    model: str,
    tensors: dict[str, NDArray[Any]],
    request_id: str = "",
    timeout_s: float = 300.0,
) -> Iterator[dict[str, NDArray[Any]]]:
    """Any model over a gRPC stream: arrays in, arrays out, one dictionary per response.

    Args:
        url: HOST:PORT.
        model: Its name.
        tensors: Input name to array; the dtype on the wire follows from the array's.
        request_id: For the server's log and for stop requests.
        timeout_s: Longest wait for the next response.

    Raises:
        ClientError: See `generate_grpc`.
        ServerError: See `generate_grpc`.
    """
    try:
        import tritonclient.grpc as grpc
        from tritonclient.utils import InferenceServerException, np_to_triton_dtype
    except ImportError:
        raise ClientError(
            "gRPC needs tritonclient: pip install 'recap-triton[client]', or use HTTP"
        ) from None
    inputs = []
    for name, array in tensors.items():
        tensor = grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client = grpc.InferenceServerClient(url)
    final = False
    try:
        client.start_stream(lambda result, error: answers.put((result, error)))
        try:
            # The flag makes the end visible even where a model ends with an empty response.
            client.async_stream_infer(
                model, inputs, request_id=request_id, enable_empty_final_response=True
            )
        except InferenceServerException:
            # The stream is broken already; why, stands in the queue.
            if answers.empty():
                raise
        while not final:
            result, error = answers.get(timeout=timeout_s)
            if error is not None:
                final = True
                raise error
            response = result.get_response()
            final = response.parameters["triton_final_response"].bool_param
            if response.outputs:
                yield {output.name: result.as_numpy(output.name) for output in response.outputs}
    except queue.Empty:
        raise ClientError(f"{url}: no answer for {timeout_s:g} s") from None
    except InferenceServerException as error:
        # A status means that the transport failed before the server had a say.
        if error.status() and "UNAVAILABLE" in str(error.status()):
            raise ClientError(f"{url}: cannot be reached: {error.message()}") from None
        raise ServerError(error.message()) from None
    finally:
        # A cancel that meets the end of a request makes this server leak an ensemble's request,
        # and then it cannot shut down in order: only what still runs is cancelled.
        client.stop_stream(cancel_requests=not final)
        client.close()


def generate_http(url: str, call: Call, timeout_s: float = 300.0) -> Iterator[Piece]:
    """Sends a call to `/generate_stream`, or to `/generate` when it does not stream.

    Args:
        url: HOST:PORT.
        call: What to ask.
        timeout_s: Longest wait for the next bytes.

    Raises:
        ClientError: The server is unreachable or silent.
        ServerError: The server refused, or failed on the way.
    """
    body: dict[str, Any] = {"id": call.request_id}
    for name, items in call.values().items():
        spec = contract.MODELS[contract.RECAP_VLM].tensor(name)
        texts = [_to_json(name, item) for item in items]
        body[name] = texts if spec.dims == (-1,) else texts[0]
    path = "generate_stream" if call.stream else "generate"
    try:
        with contextlib.closing(http.client.HTTPConnection(url, timeout=timeout_s)) as connection:
            # The content type matters: this server crashes on large bodies that come as a form.
            connection.request(
                "POST",
                f"/v2/models/{call.model}/{path}",
                json.dumps(body),
                {"Content-Type": "application/json"},
            )
            for line in connection.getresponse():
                text = line.decode("utf-8").strip().removeprefix("data: ")
                if text:
                    yield _piece(_checked(text))
    except TimeoutError:
        raise ClientError(f"{url}: no answer for {timeout_s:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise ClientError(f"{url}: cannot be reached: {error}") from None


def stop(url: str, request_id: str, timeout_s: float = 10.0) -> None:
    """Ends a running request from another connection, over gRPC.

    Raises:
        ServerError: No running request has that id.
    """
    for _ in generate_grpc(url, Call(stop=True, request_id=request_id), timeout_s):
        pass


def _checked(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        raise ServerError(text[:500]) from None
    if "error" in answer:
        raise ServerError(answer["error"])
    return answer


def _piece(outputs: dict[str, Any]) -> Piece:
    texts: dict[str, Any] = {
        name: value.decode("utf-8") if isinstance(value, bytes) else value
        for name, value in outputs.items()
    }
    return Piece(
        texts[contract.TEXT_OUTPUT],
        texts[contract.FINISH_REASON],
        {t.name: texts[t.name] for t in contract.STATISTICS if t.name in texts},
    )


def _to_array(name: str, items: list[Any]) -> NDArray[Any]:
    spec = contract.MODELS[contract.RECAP_VLM].tensor(name)
    return np.array(items, dtype=contract.DTYPES[spec.dtype])


def _to_json(name: str, item: Any) -> Any:
    if name == contract.IMAGE and not item.startswith(b"data:"):
        return base64.b64encode(item).decode("ascii")
    return item.decode("utf-8") if isinstance(item, bytes) else item
