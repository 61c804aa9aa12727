"""The service behind the model `vision_encoder`: patches to image features, in ragged batches."""

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

_MODEL = contract.MODELS[contract.VISION_ENCODER]

Pixels = NDArray[np.float32]
Layout = NDArray[np.int64]
Features = NDArray[np.float32]


class Encoder(Protocol):
    """The part of `recap.engines.vision` that is used here."""

    @property
    def hidden_size(self) -> int:
        """Width of a feature row."""

    def encode(
        self, pixel_values: list[Pixels], image_layouts: list[Layout]
    ) -> list[NDArray[np.float32]]:
        """Features of each request: float32 [n, hidden]."""


class VisionService:
    """Runs the tower once for all requests of an `execute`.

    Args:
        backend: The module `triton_python_backend_utils`, or a stand-in.
        encoder: Of the served checkpoint.
    """

    def __init__(self, backend: Any, encoder: Encoder) -> None:
        self._backend = backend
        self._encoder = encoder

    @classmethod
    def load(cls, backend: Any, args: dict[str, str]) -> VisionService:
        """The service for the arguments of Triton's `initialize`."""
        try:
            settings = load_settings(Path(args["model_repository"]).parent.parent)
            assert settings.model.checkpoint is not None, "load_settings resolves it"
            # Imported late, so that a bad setting is told at once and tests need no torch.
            from recap.engines.vision import VisionEncoder

            return cls(backend, VisionEncoder(settings.model.checkpoint, settings.engine))
        except SettingsError as error:
            raise load_error(backend, contract.VISION_ENCODER, error) from None

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response per request, in order; never raises."""
        answers: list[Any] = [None] * len(requests)
        work: dict[int, tuple[Pixels, Layout]] = {}
        for index, request in enumerate(requests):
            try:
                pixels, layout = self._inputs(request)
            except Exception as error:
                answers[index] = self._failure(request, error)
                continue
            # A layout without pixels is not the absence of images: the encoder refuses it.
            if len(pixels) or len(layout):
                work[index] = (pixels, layout)
            else:
                answers[index] = self._success(np.empty((0, self._encoder.hidden_size)))
        for index, outcome in self._encode(work).items():
            if isinstance(outcome, Exception):
                answers[index] = self._failure(requests[index], outcome)
            else:
                answers[index] = self._success(outcome)
        return answers

    def close(self) -> None:
        """Nothing is held."""

    def _inputs(self, request: Any) -> tuple[Pixels, Layout]:
        inputs = Inputs(self._backend, request, _MODEL)
        pixels = inputs.array(contract.PIXEL_VALUES)
        layout = inputs.array(contract.IMAGE_LAYOUT)
        assert pixels is not None and layout is not None, "both are required by the contract"
        return pixels[0], layout[0]

    def _encode(self, work: dict[int, tuple[Pixels, Layout]]) -> dict[int, Features | Exception]:
        """Features or error of each entry; one that breaks the batch does not take others along."""
        if not work:
            return {}
        try:
            features = self._encoder.encode(
                [pixels for pixels, _ in work.values()], [layout for _, layout in work.values()]
            )
        except Exception as error:
            if len(work) == 1:
                return {next(iter(work)): error}
            outcome: dict[int, Features | Exception] = {}
            for index, entry in work.items():
                outcome.update(self._encode({index: entry}))
            return outcome
        return dict(zip(work, features, strict=True))

    def _success(self, features: NDArray[Any]) -> Any:
        return response(self._backend, _MODEL, {contract.IMAGE_FEATURES: features[np.newaxis]})

    def _failure(self, request: Any, error: Exception) -> Any:
        failure = triton_error(self._backend, _MODEL.name, request.request_id(), error)
        return self._backend.InferenceResponse(output_tensors=[], error=failure)
