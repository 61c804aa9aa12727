"""Triton entry point of `vision_encoder`; all of it lives in `recap.serving.vision`."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from recap.serving.vision import VisionService


class TritonPythonModel:
    """Called by Triton's Python backend."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the service; a bad setting fails the load with one line."""
        self._service = VisionService.load(pb_utils, args)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request."""
        return self._service.execute(requests)

    def finalize(self) -> None:
        """Ends in bounded time. Triton skips this in many shutdowns: nothing may depend on it."""
        self._service.close()
