"""The service behind the model `recap_decoder`: connects Triton requests with the scheduler.

`execute` returns at once; the scheduler's own thread sends the responses. So Triton's queue of
this model is always empty, and admission, limits and deadlines are the scheduler's.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from recap.config import Settings, load_settings
from recap.errors import CapacityError, InvalidRequestError, SettingsError
from recap.requests import Chunk, GenerationRequest, GenerationStats, Sink
from recap.serving import contract
from recap.serving.failures import load_error, require_one_instance
from recap.serving.sink import ResponseSink
from recap.serving.tensors import Inputs

_MODEL = contract.MODELS[contract.RECAP_DECODER]
_STOPPED = Chunk("", np.empty(0, np.int32), "cancelled", GenerationStats(0, 0, 0, 0, 0))
"""The one response of a stop request."""

POLL_S = 0.05
"""How often clients are asked whether they went away; an ask costs about 0.1 ms."""

ORPHAN_POLL_S = 1.0
"""How often this process looks whether the server still lives."""

CLOSE_TIMEOUT_S = 5.0
"""Longest wait for the scheduler's thread when the model is unloaded."""


class Scheduler(Protocol):
    """The part of `recap.scheduler.Scheduler` that is used here."""

    def submit(self, request: GenerationRequest, sink: Sink) -> int:
        """Takes a request and returns its key."""

    def stop(self, request_id: str) -> None:
        """Ends the running requests with this id."""

    def cancel(self, key: int) -> None:
        """Ends one request."""

    def start(self) -> None:
        """Runs the scheduler's thread."""

    def close(self, timeout_s: float) -> None:
        """Stops it."""


def _default_scheduler(settings: Settings) -> Scheduler:
    from recap.assembly import build_scheduler

    return build_scheduler(settings)


class DecoderService:
    """Connects Triton requests with a scheduler.

    Args:
        backend: The module `triton_python_backend_utils`, or a stand-in.
        scheduler: Not started yet.
        poll_s: See `POLL_S`.
    """

    def __init__(self, backend: Any, scheduler: Scheduler, poll_s: float = POLL_S) -> None:
        self._backend = backend
        self._scheduler = scheduler
        self._poll_s = poll_s
        self._open: dict[int, ResponseSink] = {}
        self._open_lock = threading.Lock()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="cancellation", daemon=True)
        scheduler.start()
        self._watcher.start()

    @classmethod
    def load(
        cls,
        backend: Any,
        args: dict[str, str],
        build: Callable[[Settings], Scheduler] = _default_scheduler,
    ) -> DecoderService:
        """The service for the arguments of Triton's `initialize`.

        Args:
            backend: The module `triton_python_backend_utils`.
            args: What `initialize` got.
            build: Makes the scheduler; another one serves a scripted engine in tests.
        """
        try:
            require_one_instance(args["model_config"])
            settings = load_settings(Path(args["model_repository"]).parent.parent)
            threading.Thread(
                target=end_with, args=(os.getppid(),), name="orphan watch", daemon=True
            ).start()
            return cls(backend, build(settings))
        except SettingsError as error:
            raise load_error(backend, contract.RECAP_DECODER, error) from None

    def execute(self, requests: Sequence[Any]) -> None:
        """Takes requests over; never raises. A decoupled `execute` has to return None."""
        for request in requests:
            self._accept(request)

    def close(self) -> None:
        """Stops both threads in bounded time and ends what is still open with an error."""
        self._closing.set()
        self._watcher.join(CLOSE_TIMEOUT_S)
        try:
            self._scheduler.close(CLOSE_TIMEOUT_S)
        finally:
            with self._open_lock:
                left = list(self._open.values())
                self._open.clear()
            for sink in left:
                sink.fail(CapacityError("the server is shutting down"))

    def _accept(self, request: Any) -> None:
        sender = request.get_response_sender()
        request_id = request.request_id()
        inputs = Inputs(self._backend, request, _MODEL)
        sink = ResponseSink(self._backend, sender, stream=False, request_id=request_id)
        try:
            if inputs.flag(contract.STOP):
                self._stop(request_id)
                sink.emit(_STOPPED)
                return
            if inputs.flag(contract.STREAM):
                sink = ResponseSink(self._backend, sender, stream=True, request_id=request_id)
            key = self._scheduler.submit(_generation_request(inputs, request_id), sink)
        except Exception as error:
            sink.fail(error)
            return
        with self._open_lock:
            self._open[key] = sink

    def _stop(self, request_id: str) -> None:
        if not request_id:
            raise InvalidRequestError(contract.STOP, "needs the id of the request to end")
        self._scheduler.stop(request_id)

    def _watch(self) -> None:
        """Cancels requests whose client went away.

        Only direct calls are ever seen to be cancelled: Triton does not tell an ensemble's steps.
        """
        while not self._closing.wait(self._poll_s):
            with self._open_lock:
                self._open = {key: sink for key, sink in self._open.items() if not sink.done}
                current = list(self._open.items())
            for key, sink in current:
                try:
                    if sink.is_cancelled():
                        self._scheduler.cancel(key)
                except Exception as error:
                    self._backend.Logger.log_warn(f"{_MODEL.name}: cancellation: {error}")


def end_with(parent: int) -> None:
    """Ends this process once it is no longer a child of `parent`.

    A response that is being sent when the server dies is never taken: Triton's stub waits for that
    for good, and the model's memory stays in use beside the next server's.
    """
    while os.getppid() == parent:
        time.sleep(ORPHAN_POLL_S)
    os._exit(1)


def _generation_request(inputs: Inputs, request_id: str) -> GenerationRequest:
    ids = inputs.array(contract.INPUT_IDS)
    assert ids is not None, "required by the contract"
    features = inputs.array(contract.IMAGE_FEATURES)
    layout = inputs.array(contract.IMAGE_LAYOUT)
    if features is not None and not np.isfinite(features).all():
        # The target would answer with nonsense, as if all were well.
        raise InvalidRequestError(contract.IMAGE_FEATURES, "must hold finite numbers only")
    return GenerationRequest(
        input_ids=ids,
        max_tokens=inputs.integer(contract.MAX_TOKENS),
        # Text-only requests come through the ensemble with zero rows of both.
        image_layout=None if layout is None or layout.shape[1] == 0 else layout[0],
        features=None if features is None or features.shape[1] == 0 else features[0],
        request_id=request_id,
    )
