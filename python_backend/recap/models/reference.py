"""The yardstick: transformers' own `generate`, and gaps of the scores it decides by.

Exact-match checks compare what the product answers with this. Nothing that serves imports it.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForImageTextToText, GenerationConfig

from recap.models import adapter_for
from recap.models.loading import load


class ReferenceModel:
    """A whole transformers model in float32 on the CPU.

    Args:
        checkpoint: Directory of the checkpoint.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.adapter = adapter_for(checkpoint)
        self.model = load(AutoModelForImageTextToText, checkpoint, torch.float32)
        # Public checkpoints ship a repetition penalty there, which `do_sample=False` leaves on:
        # no longer plain greedy decoding. End tokens are given at each call.
        self.model.generation_config = GenerationConfig()
        takes = inspect.signature(self.model.forward).parameters
        # Newer transformers lay images out on the rotary axes only when told where they are.
        self._needs_types = "mm_token_type_ids" in takes

    def generate(
        self,
        input_ids: NDArray[np.int32],
        pixel_values: NDArray[np.float32],
        image_layout: NDArray[np.int64],
        max_tokens: int,
    ) -> NDArray[np.int32]:
        """Greedy ids of `generate(do_sample=False)`, without the checkpoint's own penalties.

        Args:
            input_ids: int32 [n], placeholders expanded.
            pixel_values: float32 [rows, width].
            image_layout: int64 [images, k].
            max_tokens: Most new tokens.

        Returns:
            int32 [m], up to and including an end token.
        """
        inputs = self._inputs(input_ids, pixel_values, image_layout)
        with torch.inference_mode():
            output = self.model.generate(
                **inputs,
                do_sample=False,
                num_beams=1,
                max_new_tokens=max_tokens,
                eos_token_id=list(self.adapter.eos_ids),
                pad_token_id=self.adapter.eos_ids[0],
                use_cache=True,
            )
        return output[0, len(input_ids) :].numpy().astype(np.int32)

    def gap(
        self,
        input_ids: NDArray[np.int32],
        pixel_values: NDArray[np.float32],
        image_layout: NDArray[np.int64],
        output: NDArray[np.int32],
        rival: int,
    ) -> float:
        """Score of the last token of `output` less that of `rival` at the same place.

        One teacher-forced pass; a gap below 1e-4 is a tie (see docs/benchmarks.md).
        """
        ids = np.concatenate([input_ids, output])
        with torch.inference_mode():
            logits = self.model(**self._inputs(ids, pixel_values, image_layout)).logits[0]
        row = logits[len(ids) - 2]
        return float(row[int(output[-1])] - row[rival])

    def _inputs(
        self,
        ids: NDArray[np.int32],
        pixel_values: NDArray[np.float32],
        image_layout: NDArray[np.int64],
    ) -> dict[str, torch.Tensor]:
        batch = torch.from_numpy(ids.astype(np.int64))[None]
        inputs = {"input_ids": batch, "attention_mask": torch.ones_like(batch)}
        if len(image_layout):
            inputs["pixel_values"] = torch.from_numpy(pixel_values)
            inputs["image_grid_thw"] = torch.from_numpy(image_layout)
            if self._needs_types:
                inputs["mm_token_type_ids"] = torch.eq(
                    batch, self.adapter.image_token_id or -1
                ).int()
        return inputs
