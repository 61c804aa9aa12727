"""A request's text and images to what the engine takes.

Everything that preprocessing needs, without model weights: chat template, tokenizer, image
decoding and patching. What differs per model family is behind `ImageFamily`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from recap.config import LimitSettings
from recap.errors import InvalidRequestError, SettingsError
from recap.images import decode_image, digest, to_rgb
from recap.models.base import read_json
from recap.models.chat import ChatTokenizer, load_tokenizer
from recap.models.messages import (
    ImageSource,
    check_text,
    image_sources,
    parse_messages,
    single_turn,
)


@dataclass(frozen=True, eq=False)
class Prompt:
    """One request, ready for vision encoder and decoder.

    Attributes:
        input_ids: int32 [n], one placeholder id per feature row of each image.
        pixel_values: float32 [rows, width], flattened patches of all images in order; zero rows
            without images.
        image_layout: int64 [images, k], what the family's vision encoder must know of each image
            (Qwen: its grid of patches t, h, w).
        image_digests: SHA-256 of each decoded image, for caching by content.
    """

    input_ids: NDArray[np.int32]
    pixel_values: NDArray[np.float32]
    image_layout: NDArray[np.int64]
    image_digests: list[str]


@dataclass(frozen=True, eq=False)
class ImageTensors:
    """The images of one request as tensors.

    Attributes:
        pixel_values: float32 [rows, width].
        layout: int64 [images, k].
        placeholders: int64 [images], feature rows that each image becomes.
    """

    pixel_values: NDArray[np.float32]
    layout: NDArray[np.int64]
    placeholders: NDArray[np.int64]


class ImageFamily(Protocol):
    """How a model family takes images.

    Attributes:
        placeholder_id: The token that stands for one feature row. A chat template writes it once
            per image.
        raw_block: What stands for one image where no template is applied.
    """

    placeholder_id: int
    raw_block: str

    def check(self, image: Image.Image, field: str) -> None:
        """Refuses an image that the family cannot take (InvalidRequestError)."""

    def tensors(self, images: Sequence[Image.Image]) -> ImageTensors:
        """Resizes, normalises and flattens RGB images, possibly none."""


class QwenImages:
    """Qwen2-VL and Qwen2.5-VL: images at their own resolution, in 14 x 14 patches merged 2 x 2."""

    MAX_ASPECT_RATIO = 200
    """`smart_resize` refuses more (transformers, models/qwen2_vl)."""

    def __init__(self, checkpoint: Path, config: dict[str, Any], chat: ChatTokenizer) -> None:
        if "image_token_id" not in config:
            raise SettingsError("model.checkpoint: config.json has no image_token_id")
        self.placeholder_id = int(config["image_token_id"])
        # Older configs lack the ids of the marks around it; the strings are the family's.
        self.raw_block = f"<|vision_start|>{chat.token(self.placeholder_id)}<|vision_end|>"
        self._processor = _image_processor(checkpoint)
        self._merged_patches = self._processor.merge_size**2
        # 3: colour channels.
        patch_pixels = self._processor.patch_size**2
        self._width = 3 * self._processor.temporal_patch_size * patch_pixels

    def check(self, image: Image.Image, field: str) -> None:
        """Refuses extremely long images, for which there is no valid size."""
        long, short = max(image.size), min(image.size)
        if long > self.MAX_ASPECT_RATIO * short:
            raise InvalidRequestError(
                field,
                f"must be at most {self.MAX_ASPECT_RATIO} times as long as it is wide, or the "
                f"reverse, got {image.width} x {image.height} pixels",
            )

    def tensors(self, images: Sequence[Image.Image]) -> ImageTensors:
        """See `ImageFamily.tensors`; the layout is the grid of patches t, h, w [images, 3]."""
        if not images:
            nothing = np.zeros((0, self._width), np.float32)
            return ImageTensors(nothing, np.zeros((0, 3), np.int64), np.zeros(0, np.int64))
        # transformers 4 guesses the axis of the channels, wrongly where an image is 1 or 3 high.
        batch = self._processor(
            images=list(images), return_tensors="np", input_data_format="channels_last"
        )
        layout = np.asarray(batch["image_grid_thw"], np.int64)
        pixel_values = np.ascontiguousarray(batch["pixel_values"], np.float32)
        return ImageTensors(pixel_values, layout, layout.prod(axis=1) // self._merged_patches)


FAMILIES: dict[str, Callable[[Path, dict[str, Any], ChatTokenizer], ImageFamily]] = {
    "qwen2_vl": QwenImages,
    "qwen2_5_vl": QwenImages,
}
"""By `model_type` of config.json."""


class Processor:
    """Preprocessing of one checkpoint; made by `load_processor`. Thread-safe."""

    def __init__(self, chat: ChatTokenizer, family: ImageFamily, limits: LimitSettings) -> None:
        self._chat = chat
        self._family = family
        self._limits = limits

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids: special tokens skipped, nothing tidied up."""
        return self._chat.decode(ids)

    def prepare(
        self,
        *,
        text: str | None = None,
        messages: str | list[Any] | None = None,
        images: Sequence[bytes | Image.Image] = (),
        raw: bool = False,
    ) -> Prompt:
        """Builds a prompt from whichever of the two forms the client used.

        Raises:
            InvalidRequestError: Both or neither form is given, or see the form's own method.
        """
        if messages is None:
            if text is None:
                raise InvalidRequestError("text_input", "must be given, unless messages is")
            return self.from_text(text, images, raw)
        if text is not None:
            raise InvalidRequestError("messages", "cannot be combined with text_input")
        if raw:
            raise InvalidRequestError("raw_prompt", "needs text_input, not messages")
        return self.from_messages(messages, images)

    def from_text(
        self, text: str, images: Sequence[bytes | Image.Image] = (), raw: bool = False
    ) -> Prompt:
        """One user turn: images first, then the text.

        Args:
            text: Client text. May be empty when there are images.
            images: In order; see `recap.images.decode_image` for the accepted forms.
            raw: No chat template; the text stands as it is after the images. Special tokens are
                disabled in it all the same.

        Raises:
            InvalidRequestError: The text is empty or too long, or an image is unusable.
        """
        check_text(text, "text_input", self._limits)
        if not text and not images:
            raise InvalidRequestError("text_input", "must not be empty when there is no image")
        sources = image_sources(images)
        self._check_count(sources)
        if raw:
            ids = self._chat.encode_template_text(self._family.raw_block * len(sources))
            ids += self._chat.encode_text(text)
        else:
            ids = self._chat.encode_chat(single_turn(text, sources).turns)
        return self._assemble(ids, sources)

    def from_messages(
        self, messages: str | list[Any], images: Sequence[bytes | Image.Image] = ()
    ) -> Prompt:
        """An OpenAI-style chat; `recap.models.messages.parse_messages` states the form.

        Args:
            messages: JSON text, or the list that it parses to.
            images: What the parts ``{"type": "image"}`` refer to, in order; exactly as many.

        Raises:
            InvalidRequestError: The chat is not of the form, the template refuses it, or an image
                is unusable.
        """
        conversation = parse_messages(messages, images, self._limits)
        self._check_count(conversation.images)
        return self._assemble(self._chat.encode_chat(conversation.turns), conversation.images)

    def _check_count(self, sources: list[ImageSource]) -> None:
        if len(sources) > self._limits.max_images:
            raise InvalidRequestError(
                "image", f"must be at most {self._limits.max_images} images, got {len(sources)}"
            )

    def _assemble(self, ids: list[int], sources: list[ImageSource]) -> Prompt:
        """Decodes the images and repeats each one's placeholder as often as it has features."""
        decoded = [self._decode_image(source) for source in sources]
        tensors = self._family.tensors(decoded)
        input_ids = np.asarray(ids, np.int32)
        is_image = input_ids == self._family.placeholder_id
        if is_image.sum() != len(sources):
            raise InvalidRequestError(
                "image",
                f"the model's chat template shows {is_image.sum()} of {len(sources)} images",
            )
        repeats = np.ones(len(input_ids), np.int64)
        repeats[is_image] = tensors.placeholders
        return Prompt(
            np.repeat(input_ids, repeats),
            tensors.pixel_values,
            tensors.layout,
            [digest(image) for image in decoded],
        )

    def _decode_image(self, source: ImageSource) -> Image.Image:
        if isinstance(source.data, Image.Image):
            image = to_rgb(source.data)
        else:
            image = decode_image(source.data, self._limits, source.field)
        self._family.check(image, source.field)
        return image


def load_processor(checkpoint: Path, limits: LimitSettings | None = None) -> Processor:
    """Loads preprocessing for a checkpoint directory.

    Raises:
        SettingsError: A file is missing or unusable, or the model family is not supported.
    """
    config = read_json(checkpoint / "config.json")
    model_type = config.get("model_type")
    family = FAMILIES.get(str(model_type))
    if family is None:
        raise SettingsError(
            f"model.checkpoint: model_type {model_type!r} is not supported; supported are "
            + ", ".join(FAMILIES)
        )
    chat = load_tokenizer(checkpoint)
    return Processor(chat, family(checkpoint, config, chat), limits or LimitSettings())


def _image_processor(checkpoint: Path) -> Any:
    """The PIL version of Qwen's image processor, whatever the installed transformers calls it.

    Always PIL, so that the same image gives the same features with and without torchvision.
    """
    package = "transformers.models.qwen2_vl"
    overrides = {}
    try:  # transformers 5: the plain name is the torchvision version
        module = importlib.import_module(f"{package}.image_processing_pil_qwen2_vl")
        kind = module.Qwen2VLImageProcessorPil
    except ImportError:
        module = importlib.import_module(f"{package}.image_processing_qwen2_vl")
        kind = module.Qwen2VLImageProcessor
        # Version 4.57 drops the `size` of the file and would resize to its own default.
        size = read_json(checkpoint / "preprocessor_config.json").get("size", {})
        if {"shortest_edge", "longest_edge"} <= size.keys():
            overrides = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    try:
        return kind.from_pretrained(checkpoint, local_files_only=True, **overrides)
    except (OSError, ValueError) as error:
        raise SettingsError(f"model.checkpoint: no usable image processor: {error}") from None
