"""Loads transformers models and runs a decoder's own layers, on the lean path.

`decode_layers` calls the layers of a transformers decoder directly: positions, mask and cache are
prepared by the engine, so that the model's own preparation (mask creation, output recording) does
not run on every step. This is the only module that knows how transformers' versions differ.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor, nn

from recap.errors import SettingsError


class LayerCache(Protocol):
    """What a transformers attention layer asks of its cache."""

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores [B, kv_heads, T, head_dim] and returns all keys and values to attend to."""


@dataclass(frozen=True)
class DecoderParts:
    """The modules of a decoder, as transformers made them.

    Attributes:
        embed: Ids to [.., hidden].
        layers: Decoder layers in order.
        norm: Final norm.
        rotary: Positions to (cos, sin).
        lm_head: [.., hidden] to [.., vocab].
        axes: 3 when `rotary` takes [3, B, T], 1 when it takes [B, T].
        kv_heads: Key/value heads of a layer.
        head_dim: Width of a head.
        cache_argument: Name under which a layer takes its cache.
    """

    embed: nn.Module
    layers: tuple[nn.Module, ...]
    norm: nn.Module
    rotary: nn.Module
    lm_head: nn.Module
    axes: int
    kv_heads: int
    head_dim: int
    cache_argument: str


def load(model_class: Any, checkpoint: Path, dtype: torch.dtype) -> Any:
    """A transformers model in evaluation mode, on the CPU.

    Only safetensors files of the directory are read; no remote code, no download.

    Raises:
        SettingsError: The checkpoint cannot be loaded, or lacks weights that the model has;
            transformers would fill those with random numbers and say so in the log only.
    """
    # A progress bar per process is noise in a server's log.
    transformers.utils.logging.disable_progress_bar()
    try:
        model, found = model_class.from_pretrained(
            checkpoint,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            attn_implementation="sdpa",
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise SettingsError(f"{checkpoint}: cannot be loaded: {error}") from error
    if missing := sorted(found["missing_keys"]):
        raise SettingsError(
            f"{checkpoint}: {len(missing)} weights are missing, the first is {missing[0]}"
        )
    return model.eval().requires_grad_(False)


def decoder_parts(text: Any, lm_head: nn.Module, axes: int, device: torch.device) -> DecoderParts:
    """Takes a transformers text model apart and moves it to the device.

    Raises:
        SettingsError: The decoder has a trait that verification of trees would get wrong.
    """
    config = text.config
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise SettingsError("the checkpoint uses sliding window attention, which is not supported")
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in ("dynamic", "longrope"):
        # Their frequencies depend on the longest sequence of a pass, so slots would see each other.
        raise SettingsError(f"the checkpoint's rotary embedding `{kind}` is not supported")
    if device.type == "cpu":
        for layer in text.layers:
            _store_inputs_first(layer)
    arguments = inspect.signature(text.layers[0].self_attn.forward).parameters
    heads = config.num_attention_heads
    return DecoderParts(
        embed=text.embed_tokens.to(device),
        layers=tuple(layer.to(device) for layer in text.layers),
        norm=text.norm.to(device),
        rotary=text.rotary_emb.to(device),
        lm_head=lm_head.to(device),
        axes=axes,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        cache_argument="cache" if "cache" in arguments else "past_key_values",
    )


def _store_inputs_first(module: nn.Module) -> None:
    """Lays the weights of linear layers out in memory as [in, out], shapes unchanged.

    The CPU library's product of few rows with weights laid out as [out, in] is slow: at 4 to 8 rows
    twice the time of this layout, which is what small trees pay; one row is as fast either way.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.weight.data = part.weight.data.t().contiguous().t()


def decode_layers(
    parts: DecoderParts, hidden: Tensor, positions: Tensor, mask: Tensor | None, cache: LayerCache
) -> Tensor:
    """Runs all layers and the final norm.

    Args:
        parts: The decoder.
        hidden: float [B, T, hidden] embeddings.
        positions: int64 [axes, B, T].
        mask: float [B, 1, T, used], added to the attention scores, where `used` is the length
            that `cache` returns. None: one query that sees everything, or T queries over exactly
            T keys, causally.
        cache: Takes and gives keys and values.

    Returns:
        float [B, T, hidden].
    """
    rotary = parts.rotary(hidden, positions if parts.axes > 1 else positions[0])
    arguments = {
        "attention_mask": mask,
        "position_embeddings": rotary,
        "use_cache": True,
        parts.cache_argument: cache,
    }
    for layer in parts.layers:
        out = layer(hidden, **arguments)
        # Some families' layers in transformers 4 wrap their output.
        hidden = out[0] if isinstance(out, tuple) else out
    normed: Tensor = parts.norm(hidden)
    return normed
