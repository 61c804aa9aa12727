"""Qwen2.5-VL: M-RoPE over (time, height, width), images as merged patch grids.

`image_layout` rows are (t, h, w) in patches, as the family's image processor gives them; one image
is ``t * h * w / merge**2`` placeholders and feature rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from recap.engines.base import PromptLayout
from recap.errors import InvalidRequestError
from recap.models.base import ModelAdapter

if TYPE_CHECKING:
    import torch

    from recap.models.loading import DecoderParts


MOST_PATCHES = 1 << 20
"""Of one side of an image; products of three stay far from the end of 64 bits."""


class Qwen2_5_VLAdapter(ModelAdapter):  # noqa: N801 - the family's own spelling
    """Adapter of `Qwen2_5_VLForConditionalGeneration` checkpoints."""

    architectures = ("Qwen2_5_VLForConditionalGeneration",)
    placeholders = (
        "image_token_id",
        "video_token_id",
        "vision_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
    )
    axes = 3

    @property
    def merge(self) -> int:
        """Patches on each side of the square that becomes one feature row."""
        return int(self.config["vision_config"].get("spatial_merge_size", 2))

    def features_per_image(self, image_layout: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [images]: placeholder ids, and feature rows, of each image."""
        return np.prod(image_layout, axis=1, dtype=np.int64) // self.merge**2

    @property
    def patch_width(self) -> int:
        """Values of one flattened patch."""
        vision = self.config["vision_config"]
        channels = vision.get("in_channels", vision.get("in_chans", 3))
        patch_pixels = vision.get("patch_size", 14) ** 2
        return int(channels * vision.get("temporal_patch_size", 2) * patch_pixels)

    def check_pixels(self, pixels: NDArray[np.float32], image_layout: NDArray[np.int64]) -> None:
        """Holds the patch rows of one request's images against their grids."""
        self._check_grids(image_layout)
        patches = int(np.prod(image_layout, axis=1, dtype=np.int64).sum())
        if len(pixels) != patches:
            raise InvalidRequestError(
                "image", f"the image grids need {patches} patches, got {len(pixels)}"
            )
        if patches and pixels.shape[1:] != (self.patch_width,):
            raise InvalidRequestError(
                "image", f"a patch has {self.patch_width} values, got {pixels.shape[1:]}"
            )

    def _check_grids(self, image_layout: NDArray[np.int64]) -> None:
        """Whoever calls a step of the pipeline directly may send any numbers."""
        if not len(image_layout):
            return
        if image_layout.ndim != 2 or image_layout.shape[1] != 3:
            raise InvalidRequestError(
                "image", f"a grid is (t, h, w), got shape {list(image_layout.shape)}"
            )
        sides_fit = not (image_layout[:, 1:] % self.merge).any()
        if image_layout.min() < 1 or image_layout.max() > MOST_PATCHES or not sides_fit:
            raise InvalidRequestError(
                "image",
                f"a grid's sides must be in [1, {MOST_PATCHES}], height and width multiples of "
                f"{self.merge}, got {image_layout.tolist()[:8]}",
            )

    def _layout(self, ids: NDArray[np.int32], image_layout: NDArray[np.int64]) -> PromptLayout:
        self._check_grids(image_layout)
        is_image = ids == self.image_token_id
        counts = self.features_per_image(image_layout)
        if int(is_image.sum()) != int(counts.sum()):
            raise InvalidRequestError(
                "image",
                f"{len(counts)} images need {int(counts.sum())} placeholders, "
                f"the prompt holds {int(is_image.sum())}",
            )
        positions = np.empty((3, len(ids)), np.int32)
        placeholders = np.flatnonzero(is_image)
        done = 0  # ids laid out
        taken = 0  # placeholders laid out
        position = 0
        for grid, count in zip(image_layout, counts.tolist(), strict=True):
            begin = int(placeholders[taken])
            end = begin + count
            if not is_image[begin:end].all():
                raise InvalidRequestError("image", "the placeholders of an image must be adjacent")
            positions[:, done:begin] = np.arange(position, position + begin - done)
            position += begin - done
            merged = grid // (1, self.merge, self.merge)
            positions[:, begin:end] = np.indices(tuple(merged.tolist())).reshape(3, -1) + position
            position += int(merged[1:].max())
            done, taken = end, taken + count
        positions[:, done:] = np.arange(position, position + len(ids) - done)
        delta = int(positions.max()) + 1 - len(ids)
        return PromptLayout(positions, delta, is_image)

    def load_decoder(self, dtype: torch.dtype, device: torch.device) -> DecoderParts:
        """The decoder's modules alone; the vision tower is dropped."""
        from transformers import Qwen2_5_VLForConditionalGeneration

        from recap.models.loading import decoder_parts, load

        model = load(Qwen2_5_VLForConditionalGeneration, self.checkpoint, dtype)
        return decoder_parts(model.model.language_model, model.lm_head, self.axes, device)

    def load_vision(self, dtype: torch.dtype, device: torch.device) -> torch.nn.Module:
        """The vision tower with its projection alone; the decoder is dropped."""
        from transformers import Qwen2_5_VLForConditionalGeneration

        from recap.models.loading import load

        model = load(Qwen2_5_VLForConditionalGeneration, self.checkpoint, dtype)
        tower: torch.nn.Module = model.model.visual.to(device)
        return tower

    def encode(
        self, tower: torch.nn.Module, pixel_values: torch.Tensor, image_layout: torch.Tensor
    ) -> torch.Tensor:
        """Runs the tower: float [rows, width] and int64 [images, 3] to float [n, hidden]."""
        out = tower(pixel_values, grid_thw=image_layout)
        # transformers 4 returns the merged features, 5 an output object that carries them.
        features: torch.Tensor = getattr(out, "pooler_output", out)
        return features
