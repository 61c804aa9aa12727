"""From our errors to Triton's: which status code a client gets, and how much it may know."""

from __future__ import annotations

import json
import traceback
import uuid
from typing import Any

from recap.errors import CapacityError, InvalidRequestError, NotFoundError, SettingsError

_CODES: tuple[tuple[type[Exception], str], ...] = (
    (InvalidRequestError, "INVALID_ARG"),
    (NotFoundError, "NOT_FOUND"),
    (CapacityError, "UNAVAILABLE"),
)


def triton_error(backend: Any, model: str, request_id: str, error: Exception) -> Any:
    """The `pb_utils.TritonError` that a client gets for `error`.

    What the client did wrong, or may try again, is told in full. Anything else is a defect of
    ours: its traceback goes to the log, and the client gets a reference into it, since messages
    of libraries carry paths.

    Args:
        backend: The module `triton_python_backend_utils`, or a stand-in.
        model: Name of the model, for the log.
        request_id: The client's; when empty, a reference is made up.
        error: What was raised.
    """
    for kind, code in _CODES:
        if isinstance(error, kind):
            return backend.TritonError(str(error), getattr(backend.TritonError, code))
    reference = request_id or uuid.uuid4().hex[:12]
    trace = "".join(traceback.format_exception(error))
    backend.Logger.log_error(f"{model}: request {reference} failed: {trace}")
    return backend.TritonError(
        f"internal error; the server's log has it under request {reference}",
        backend.TritonError.INTERNAL,
    )


def load_error(backend: Any, model: str, error: SettingsError) -> Exception:
    """What `initialize` raises, after one clear line in the log: Triton's own has a traceback."""
    backend.Logger.log_error(f"{model}: {error}")
    return backend.TritonModelException(str(error))


def require_one_instance(model_config: str) -> None:
    """Refuses a configuration that would start a second process of a model.

    Args:
        model_config: JSON of the model's configuration, as Triton hands it to `initialize`.

    Raises:
        SettingsError: More than one instance.
    """
    groups = json.loads(model_config).get("instance_group", [])
    count = sum(int(group["count"]) * max(1, len(group.get("gpus", []))) for group in groups)
    if count > 1:
        raise SettingsError(
            f"instance_group: count must be 1, got {count}: every instance is a process with its "
            "own KV cache and memories, and an ensemble would mix up the order of their responses"
        )
