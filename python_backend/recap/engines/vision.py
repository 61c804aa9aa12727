"""Images to features: the vision tower of a model family, in a process of its own.

Stateless and batched: one call of the tower serves the images of all requests in the batch. Called
by the vision encoder model; it knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from recap.config import EngineSettings
from recap.engines.torch_engine import pick_device
from recap.models import adapter_for


class VisionEncoder:
    """Runs the vision tower of a checkpoint; holds no decoder weights.

    Args:
        checkpoint: Directory of a transformers checkpoint.
        settings: Device, dtype and threads; nothing else is read.

    Attributes:
        hidden_size: Width of a feature row.

    Raises:
        SettingsError: The checkpoint cannot be served, or takes no images.
    """

    def __init__(self, checkpoint: Path, settings: EngineSettings) -> None:
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self.adapter = adapter_for(checkpoint)
        self.hidden_size = self.adapter.hidden_size
        self.device = pick_device(settings.device)
        self.dtype: torch.dtype = getattr(torch, settings.dtype)
        self.tower = self.adapter.load_vision(self.dtype, self.device)

    @torch.inference_mode()
    def encode(
        self,
        pixel_values: Sequence[NDArray[np.float32]],
        layouts: Sequence[NDArray[np.int64]],
    ) -> list[NDArray[np.float32]]:
        """Features of a ragged batch.

        Args:
            pixel_values: Per request, float32 [rows, width]; no rows without images.
            layouts: Per request, int64 [images, k], as the family's processor made it.

        Returns:
            Per request, float32 [n, hidden], its images' features in order.

        Raises:
            InvalidRequestError: Rows and layout of a request do not fit each other.
        """
        for rows, layout in zip(pixel_values, layouts, strict=True):
            self.adapter.check_pixels(rows, layout)
        counts = [int(self.adapter.features_per_image(layout).sum()) for layout in layouts]
        if not sum(counts):
            return [np.zeros((0, self.hidden_size), np.float32) for _ in counts]
        full = [i for i, count in enumerate(counts) if count]
        pixels = torch.from_numpy(np.concatenate([pixel_values[i] for i in full]))
        grid = torch.from_numpy(np.concatenate([layouts[i] for i in full]))
        out = self.adapter.encode(
            self.tower, pixels.to(self.device, self.dtype), grid.to(self.device)
        )
        features = out.float().cpu().numpy()
        assert len(features) == sum(counts), "the tower gave another number of features"
        return np.split(features, np.cumsum(counts)[:-1])
