"""What differs from one model family to the next, behind one interface.

An adapter reads the checkpoint's configuration, says which ids are special, lays a prompt out on
the rotary axes, and knows where in a transformers model the decoder and the vision tower live.
It holds no weights itself. Engines and the preprocessing step call it; torch and the model
classes are imported only when weights are loaded.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from recap.engines.base import PromptLayout
from recap.errors import InvalidRequestError, SettingsError

if TYPE_CHECKING:
    import torch

    from recap.models.loading import DecoderParts


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a checkpoint directory.

    Raises:
        SettingsError: The file is missing or is not a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: must hold a JSON object")
    return content


class ModelAdapter(ABC):
    """One checkpoint of one model family.

    Attributes:
        architectures: Entries of ``config.json``'s `architectures` that the family serves.
        placeholders: Names in ``config.json`` of ids that stand for something other than text.
        axes: Rotary position axes the decoder takes: 3 for M-RoPE, else 1.
        checkpoint: Directory of the checkpoint.
        config: ``config.json`` as it is.
        text: The decoder's part of `config`; `config` itself where the family has no sub-config.
        image_token_id: Id of an expanded image placeholder; None for text-only families.
        eos_ids: Ids that end a generation.
        forbidden_ids: int32, ascending: ids that must be in no memory key and in no draft.
        vocab_size: Ids are below this.
        hidden_size: Width of an image feature and of the decoder.
        max_positions: Longest sequence the checkpoint was made for.
    """

    architectures: ClassVar[tuple[str, ...]]
    placeholders: ClassVar[tuple[str, ...]] = ()
    axes: ClassVar[int] = 1

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.config = read_json(checkpoint / "config.json")
        self.text: dict[str, Any] = self.config.get("text_config") or self.config
        generation = checkpoint / "generation_config.json"
        self._generation = read_json(generation) if generation.is_file() else {}
        self.image_token_id: int | None = self.config.get("image_token_id")
        self.vocab_size = int(self._text_value("vocab_size"))
        self.hidden_size = int(self._text_value("hidden_size"))
        self.max_positions = int(self._text_value("max_position_embeddings"))
        self.eos_ids = self._find_eos()
        pad = self._generation.get("pad_token_id", self.text.get("pad_token_id"))
        # A pad id that also ends generations (common) is a token the model really emits.
        pads = [pad] if pad is not None and pad not in self.eos_ids else []
        placeholders = [self.config.get(name) for name in self.placeholders]
        forbidden = [i for i in (*placeholders, *pads) if i is not None]
        self.forbidden_ids = np.unique(np.array(forbidden, np.int32))

    def _text_value(self, name: str) -> Any:
        # Checkpoints written before transformers 4.52 keep the decoder's values at the top level.
        value = self.text.get(name, self.config.get(name))
        if value is None:
            raise SettingsError(f"{self.checkpoint / 'config.json'}: `{name}` is missing")
        return value

    def _find_eos(self) -> tuple[int, ...]:
        for place in (self._generation, self.text, self.config):
            eos = place.get("eos_token_id")
            if eos is not None:
                return tuple(eos) if isinstance(eos, list) else (eos,)
        return ()

    def layout(
        self, ids: NDArray[np.int32], image_layout: NDArray[np.int64] | None
    ) -> PromptLayout:
        """Positions of a prompt; see `Engine.layout`."""
        if len(ids) == 0 or ids.min() < 0 or ids.max() >= self.vocab_size:
            raise InvalidRequestError(
                "text_input", f"must give at least one token, ids in [0, {self.vocab_size})"
            )
        if image_layout is None:
            image_layout = np.zeros((0, 3), np.int64)
        return self._layout(ids, image_layout)

    @abstractmethod
    def _layout(self, ids: NDArray[np.int32], image_layout: NDArray[np.int64]) -> PromptLayout:
        """`layout` once ids are known to be in range; `image_layout` may have no rows."""

    def features_per_image(self, image_layout: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [images]: placeholder ids, and feature rows, of each image."""
        return np.zeros(len(image_layout), np.int64)

    def check_pixels(self, pixels: NDArray[np.float32], image_layout: NDArray[np.int64]) -> None:
        """Holds the rows of one request's images against their layout.

        Raises:
            InvalidRequestError: They do not fit each other.
        """
        if len(pixels) or len(image_layout):
            raise InvalidRequestError("image", "this model takes no images")

    @abstractmethod
    def load_decoder(self, dtype: torch.dtype, device: torch.device) -> DecoderParts:
        """The decoder's modules alone; the vision tower is dropped."""

    def load_vision(self, dtype: torch.dtype, device: torch.device) -> torch.nn.Module:
        """The vision tower with its projection alone; the decoder is dropped.

        Raises:
            SettingsError: The family has none.
        """
        raise SettingsError(f"{self.checkpoint}: {type(self).__name__} takes no images")

    def encode(
        self, tower: torch.nn.Module, pixel_values: torch.Tensor, image_layout: torch.Tensor
    ) -> torch.Tensor:
        """Runs the tower: float [rows, width] and int64 [images, k] to float [n, hidden].

        Raises:
            SettingsError: The family has none.
        """
        raise SettingsError(f"{self.checkpoint}: {type(self).__name__} takes no images")
