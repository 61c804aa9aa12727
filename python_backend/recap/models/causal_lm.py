"""Text-only decoders of the Llama shape, for benchmarks on public language models."""

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


class CausalLMAdapter(ModelAdapter):
    """Adapter of Llama and Qwen2 language models: one rotary axis, no images."""

    architectures = ("LlamaForCausalLM", "Qwen2ForCausalLM")

    def _layout(self, ids: NDArray[np.int32], image_layout: NDArray[np.int64]) -> PromptLayout:
        if len(image_layout):
            raise InvalidRequestError("image", "this model takes no images")
        positions = np.tile(np.arange(len(ids), dtype=np.int32), (3, 1))
        return PromptLayout(positions, 0, np.zeros(len(ids), np.bool_))

    def load_decoder(self, dtype: torch.dtype, device: torch.device) -> DecoderParts:
        """The whole model, taken apart."""
        from transformers import AutoModelForCausalLM

        from recap.models.loading import decoder_parts, load

        model = load(AutoModelForCausalLM, self.checkpoint, dtype)
        return decoder_parts(model.model, model.lm_head, self.axes, device)
