"""The service behind the model `preprocessing`: text and images to token ids and pixels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from recap.config import load_settings
from recap.errors import SettingsError
from recap.serving import contract
from recap.serving.failures import load_error, triton_error
from recap.serving.tensors import Inputs, response

_MODEL = contract.MODELS[contract.PREPROCESSING]


class Prompt(Protocol):
    """What a processor makes of a request."""

    @property
    def input_ids(self) -> NDArray[np.int32]:
        """int32 [n], image placeholders expanded."""

    @property
    def pixel_values(self) -> NDArray[np.float32]:
        """float32 [rows, width]; zero rows without images."""

    @property
    def image_layout(self) -> NDArray[np.int64]:
        """int64 [images, k]."""

    @property
    def image_digests(self) -> list[str]:
        """One per image."""


class Processor(Protocol):
    """The part of `recap.models.processor` that is used here."""

    def prepare(
        self, *, text: str | None, messages: str | None, images: list[bytes], raw: bool
    ) -> Prompt:
        """Builds a prompt from whichever of text and messages is given."""


class PreprocessingService:
    """Answers each request on its own; an error of one never touches another.

    Args:
        backend: The module `triton_python_backend_utils`, or a stand-in.
        processor: Of the served checkpoint.
    """

    def __init__(self, backend: Any, processor: Processor) -> None:
        self._backend = backend
        self._processor = processor

    @classmethod
    def load(cls, backend: Any, args: dict[str, str]) -> PreprocessingService:
        """The service for the arguments of Triton's `initialize`."""
        try:
            settings = load_settings(Path(args["model_repository"]).parent.parent)
            assert settings.model.checkpoint is not None, "load_settings resolves it"
            # Imported late, so that a bad setting is told at once and tests need no transformers.
            from recap.models.processor import load_processor

            return cls(backend, load_processor(settings.model.checkpoint, settings.limits))
        except SettingsError as error:
            raise load_error(backend, contract.PREPROCESSING, error) from None

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response per request, in order; never raises."""
        return [self._answer(request) for request in requests]

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, request: Any) -> Any:
        try:
            return response(self._backend, _MODEL, self._outputs(request))
        except Exception as error:
            failure = triton_error(
                self._backend, contract.PREPROCESSING, request.request_id(), error
            )
            return self._backend.InferenceResponse(output_tensors=[], error=failure)

    def _outputs(self, request: Any) -> dict[str, Any]:
        inputs = Inputs(self._backend, request, _MODEL)
        if inputs.flag(contract.STOP):
            # A stop needs no prompt: the decoder looks at its request id only.
            return {
                contract.INPUT_IDS: np.empty(0, np.int32),
                contract.PIXEL_VALUES: np.empty((1, 0, 1), np.float32),
                contract.IMAGE_LAYOUT: np.empty((1, 0, 1), np.int64),
                contract.IMAGE_DIGEST: np.empty(0, np.object_),
            }
        prompt = self._processor.prepare(
            text=inputs.text(contract.TEXT_INPUT),
            messages=inputs.text(contract.MESSAGES),
            images=inputs.blobs(contract.IMAGE),
            raw=inputs.flag(contract.RAW_PROMPT),
        )
        return {
            contract.INPUT_IDS: prompt.input_ids,
            contract.PIXEL_VALUES: prompt.pixel_values[np.newaxis],
            contract.IMAGE_LAYOUT: prompt.image_layout[np.newaxis],
            contract.IMAGE_DIGEST: [digest.encode() for digest in prompt.image_digests],
        }
