"""Stand-ins for Triton's `pb_utils` and for what the services call, all in plain Python."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recap.errors import InvalidRequestError, NotFoundError
from recap.requests import Chunk, GenerationRequest, GenerationStats, Sink


class TritonModelException(Exception):  # noqa: N818 - Triton's name
    pass


class TritonError:
    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE = range(5)

    def __init__(self, message: str, code: int = UNKNOWN) -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class InferenceResponse:
    def __init__(self, output_tensors: list[Tensor], error: TritonError | None = None) -> None:
        self.outputs = {tensor.name(): tensor.as_numpy() for tensor in output_tensors}
        self.error = error


class Logger:
    """Keeps what is logged; `clear` before use."""

    lines: list[str] = []

    @classmethod
    def log_error(cls, message: str) -> None:
        cls.lines.append(message)

    log_warn = log_info = log_error


class Backend:
    """The module `triton_python_backend_utils`, as far as we use it."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
    TritonModelException = TritonModelException
    TritonError = TritonError
    Tensor = Tensor
    InferenceResponse = InferenceResponse
    Logger = Logger

    @staticmethod
    def get_input_tensor_by_name(request: Request, name: str) -> Tensor | None:
        return request.inputs.get(name)


@dataclass
class Sender:
    """Records what is sent; `failures` says which calls (0-based) raise."""

    failures: frozenset[int] = frozenset()
    cancelled: bool = False
    responses: list[InferenceResponse] = field(default_factory=list)
    finals: int = 0
    calls: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        if self.ended.is_set():
            raise TritonModelException("Response sender has been closed.")
        call, self.calls = self.calls, self.calls + 1
        if call in self.failures:
            raise TritonModelException("/secret/path: no more shared memory")
        if response is not None:
            self.responses.append(response)
        if flags:
            self.finals += 1
            self.ended.set()

    def is_cancelled(self) -> bool:
        return self.cancelled

    @property
    def text(self) -> str:
        return b"".join(r.outputs["text_output"][0] for r in self.responses).decode()


class Request:
    """A `pb_utils.InferenceRequest` over numpy arrays."""

    def __init__(self, inputs: dict[str, Any], request_id: str = "") -> None:
        self.inputs = {name: Tensor(name, array) for name, array in inputs.items()}
        self.sender = Sender()
        self._id = request_id

    def request_id(self) -> str:
        return self._id

    def get_response_sender(self) -> Sender:
        return self.sender


def strings(*values: str | bytes) -> np.ndarray:
    """A STRING tensor."""
    return np.array([v if isinstance(v, bytes) else v.encode() for v in values], np.object_)


@dataclass(frozen=True)
class Prompt:
    input_ids: np.ndarray
    pixel_values: np.ndarray
    image_layout: np.ndarray
    image_digests: list[str]


class Processor:
    """One id per character, one row of pixels per byte of an image."""

    def prepare(
        self, *, text: str | None, messages: str | None, images: list[bytes], raw: bool
    ) -> Prompt:
        text = messages if text is None else text
        if text is None:
            raise InvalidRequestError("text_input", "must be given, unless messages is")
        if text == "defect":
            raise RuntimeError("/secret/path is broken")
        if any(not image for image in images):
            raise InvalidRequestError("image", "must not be empty")
        return Prompt(
            np.array([ord(character) for character in text], np.int32),
            np.ones((sum(map(len, images)), 3), np.float32),
            np.array([[1, 1, len(image)] for image in images], np.int64).reshape(-1, 3),
            [f"digest{index}" for index in range(len(images))],
        )


class Encoder:
    """Features are the sums of the rows; negative pixels break it."""

    hidden_size = 4

    def __init__(self) -> None:
        self.batches: list[int] = []

    def encode(self, pixels: list[np.ndarray], layouts: list[np.ndarray]) -> list[np.ndarray]:
        self.batches.append(len(pixels))
        if any((rows < 0).any() for rows in pixels):
            raise RuntimeError("/secret/path: negative pixels")
        return [np.repeat(rows.sum(1, keepdims=True), 4, 1).astype(np.float32) for rows in pixels]


class Scheduler:
    """Answers with the characters of the prompt, one chunk each, on a thread of its own."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.requests: dict[int, GenerationRequest] = {}
        self.closed = False
        self._pause_s = pause_s
        self._ending: dict[int, threading.Event] = {}

    def start(self) -> None:
        pass

    def close(self, timeout_s: float) -> None:
        self.closed = True

    def submit(self, request: GenerationRequest, sink: Sink) -> int:
        if request.max_tokens is not None and request.max_tokens < 1:
            raise InvalidRequestError("max_tokens", f"must be at least 1, got {request.max_tokens}")
        key = len(self._ending)
        self.requests[key] = request
        self._ending[key] = threading.Event()
        threading.Thread(target=self._run, args=(key, request, sink), daemon=True).start()
        return key

    def stop(self, request_id: str) -> None:
        keys = [key for key, request in self.requests.items() if request.request_id == request_id]
        if not keys:
            raise NotFoundError(f"no running request has the id {request_id!r}")
        for key in keys:
            self.cancel(key)

    def cancel(self, key: int) -> None:
        self._ending[key].set()

    def _run(self, key: int, request: GenerationRequest, sink: Sink) -> None:
        ids = request.input_ids[: request.max_tokens]
        reason = "length"
        for token in ids:
            if self._ending[key].is_set():
                reason = "cancelled"
                break
            sink.emit(Chunk(chr(token), np.array([token], np.int32)))
            time.sleep(self._pause_s)
        stats = GenerationStats(len(request.input_ids), len(ids), len(ids), 8, 4)
        self.requests.pop(key)
        sink.emit(Chunk("", np.empty(0, np.int32), reason, stats))  # type: ignore[arg-type]
