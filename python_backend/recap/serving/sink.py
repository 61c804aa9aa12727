"""Where the output of one request leaves for the client: sent in order, ended exactly once.

A response sender that never gets its FINAL flag hangs the client for good and keeps the server
from shutting down, so every way out of this class sends it.
"""

from __future__ import annotations

import threading
from typing import Any

from recap.requests import Chunk
from recap.serving import contract
from recap.serving.failures import triton_error
from recap.serving.tensors import generated


class ResponseSink:
    """A `recap.requests.Sink` over a Triton response sender.

    FINAL rides on the last data response: sent alone it would be one more response to clients
    that ask for empty final responses. Chunks without text are not sent before the last one.

    Args:
        backend: The module `triton_python_backend_utils`, or a stand-in.
        sender: `request.get_response_sender()`.
        stream: Whether text is sent as it comes; otherwise one response carries all of it.
        request_id: The client's, for the log.
    """

    def __init__(self, backend: Any, sender: Any, stream: bool, request_id: str) -> None:
        self._backend = backend
        self._sender = sender
        self._stream = stream
        self._request_id = request_id
        self._text: list[str] = []
        self._done = False
        # The scheduler's thread sends while the watcher's thread asks for cancellation.
        self._lock = threading.Lock()

    @property
    def done(self) -> bool:
        """Whether the last response was sent."""
        return self._done

    def emit(self, chunk: Chunk) -> None:
        """Sends new text; ends the response when the chunk has a finish reason.

        Raises:
            Exception: What `send` raised; the response is ended then.
        """
        with self._lock:
            if self._done:
                return
            if chunk.finish_reason:
                text = chunk.text if self._stream else "".join([*self._text, chunk.text])
                self._finish(generated(self._backend, chunk, text))
            elif not self._stream:
                self._text.append(chunk.text)
            elif chunk.text:
                try:
                    self._sender.send(generated(self._backend, chunk, chunk.text))
                except Exception as error:
                    self._finish(self._error_response(error))
                    raise

    def fail(self, error: Exception) -> None:
        """Ends the response with an error."""
        with self._lock:
            if not self._done:
                self._finish(self._error_response(error))

    def is_cancelled(self) -> bool:
        """Whether the client went away; about 0.1 ms, since the server is asked."""
        with self._lock:
            return not self._done and bool(self._sender.is_cancelled())

    def _error_response(self, error: Exception) -> Any:
        return self._backend.InferenceResponse(
            output_tensors=[],
            error=triton_error(self._backend, contract.RECAP_DECODER, self._request_id, error),
        )

    def _finish(self, response: Any) -> None:
        self._done = True
        final = self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        try:
            self._sender.send(response, flags=final)
        except Exception as error:
            self._log("the last response", error)
            try:
                self._sender.send(flags=final)
            except Exception as again:
                self._log("the final flag", again)

    def _log(self, what: str, error: Exception) -> None:
        self._backend.Logger.log_warn(
            f"{contract.RECAP_DECODER}: request {self._request_id!r}: "
            f"could not send {what}: {error}"
        )
