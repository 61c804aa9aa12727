"""Tensors in and out: one request's inputs, checked against the contract, and its outputs.

Triton itself refuses most wrong dtypes and shapes before a model sees them; what reaches us by
other ways (a batch dimension, bytes that are no UTF-8) becomes an `InvalidRequestError` here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recap.errors import InvalidRequestError
from recap.requests import Chunk
from recap.serving import contract


class Inputs:
    """Reads the inputs of one request.

    Args:
        backend: The module `triton_python_backend_utils`, or a stand-in.
        request: A `pb_utils.InferenceRequest`.
        model: Whose inputs they are.
    """

    def __init__(self, backend: Any, request: Any, model: contract.Model) -> None:
        self._backend = backend
        self._request = request
        self._model = model

    def array(self, name: str) -> NDArray[Any] | None:
        """A copy of an input, or None when it was left out.

        A copy, because Triton takes the memory back when `execute` returns.

        Raises:
            InvalidRequestError: Missing though required, or of another dtype or shape.
        """
        spec = self._model.tensor(name)
        tensor = self._backend.get_input_tensor_by_name(self._request, name)
        if tensor is None:
            if spec.optional:
                return None
            raise InvalidRequestError(name, "is required")
        value = np.array(tensor.as_numpy())
        # A batching model sees its batch dimension, and we never put two requests in one.
        dims = (1, *spec.dims) if self._model.max_batch_size else spec.dims
        dtype = contract.DTYPES[spec.dtype]
        if value.dtype != dtype or not _fits(value.shape, dims):
            wanted = f"{spec.dtype} of shape {list(dims)}"
            raise InvalidRequestError(
                name, f"must be {wanted}, got {value.dtype} of shape {list(value.shape)}"
            )
        return value

    def blobs(self, name: str) -> list[bytes]:
        """A STRING input as bytes; empty when it was left out."""
        value = self.array(name)
        if value is None:
            return []
        return [item if isinstance(item, bytes) else str(item).encode() for item in value]

    def text(self, name: str) -> str | None:
        """A STRING [1] input as text.

        Raises:
            InvalidRequestError: It is not UTF-8.
        """
        blobs = self.blobs(name)
        if not blobs:
            return None
        try:
            return blobs[0].decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidRequestError(name, "must be UTF-8 text") from None

    def flag(self, name: str) -> bool:
        """A BOOL [1] input; False when it was left out."""
        value = self.array(name)
        return value is not None and bool(value[0])

    def integer(self, name: str) -> int | None:
        """An integer [1] input."""
        value = self.array(name)
        return None if value is None else int(value[0])


def _fits(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    return len(shape) == len(dims) and all(
        size in (-1, actual) for size, actual in zip(dims, shape, strict=True)
    )


def response(backend: Any, model: contract.Model, values: Mapping[str, Any]) -> Any:
    """A `pb_utils.InferenceResponse` whose tensors have the contract's dtypes.

    Args:
        backend: The module `triton_python_backend_utils`, or a stand-in.
        model: Whose outputs they are.
        values: Output name to what `numpy.asarray` takes.
    """
    tensors = []
    for name, value in values.items():
        dtype = contract.DTYPES[model.tensor(name).dtype]
        tensors.append(backend.Tensor(name, np.ascontiguousarray(value, dtype=dtype)))
    return backend.InferenceResponse(output_tensors=tensors)


def generated(backend: Any, chunk: Chunk, text: str) -> Any:
    """The decoder's response for a chunk: text and finish reason, statistics when it has them.

    Triton lets a response leave outputs out, directly and through an ensemble.

    Args:
        backend: The module `triton_python_backend_utils`, or a stand-in.
        chunk: Gives the finish reason and the statistics.
        text: What `text_output` carries: the chunk's text, or all text when not streaming.
    """
    values: dict[str, Any] = {
        contract.TEXT_OUTPUT: [text.encode("utf-8")],
        contract.FINISH_REASON: [chunk.finish_reason.encode("utf-8")],
    }
    if chunk.stats is not None:
        values |= {t.name: [getattr(chunk.stats, t.name)] for t in contract.STATISTICS}
    return response(backend, contract.MODELS[contract.RECAP_DECODER], values)
