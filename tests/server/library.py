"""What the library itself answers, to compare a server's answers with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from recap.assembly import build_scheduler
from recap.config import load_settings
from recap.engines.vision import VisionEncoder
from recap.models.processor import Processor, Prompt, load_processor
from recap.requests import GenerationRequest
from recap.scheduler import Scheduler
from tests.fakes import RecordingSink


class Library:
    """Loads on first use: most of the server tests do without."""

    def __init__(self, root: Path) -> None:
        self.settings = load_settings(root)
        assert self.settings.model.checkpoint is not None
        self.checkpoint = self.settings.model.checkpoint

    @cached_property
    def processor(self) -> Processor:
        return load_processor(self.checkpoint, self.settings.limits)

    @cached_property
    def _encoder(self) -> VisionEncoder:
        return VisionEncoder(self.checkpoint, self.settings.engine)

    @cached_property
    def _scheduler(self) -> Scheduler:
        return build_scheduler(self.settings)

    def special_tokens(self) -> list[str]:
        """Every token of the vocabulary that stands for no text."""
        tokenizer = json.loads((self.checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
        return [entry["content"] for entry in tokenizer["added_tokens"]]

    def prompt(
        self, text: str | None = None, images: Sequence[bytes] = (), messages: str | None = None
    ) -> Prompt:
        return self.processor.prepare(text=text, messages=messages, images=list(images))

    def answer(self, prompt: Prompt, max_tokens: int) -> RecordingSink:
        """Runs one prompt to its end."""
        features = layout = None
        if len(prompt.pixel_values):
            layout = prompt.image_layout
            (features,) = self._encoder.encode([prompt.pixel_values], [layout])
        sink = RecordingSink()
        self._scheduler.submit(
            GenerationRequest(prompt.input_ids, max_tokens, layout, features), sink
        )
        while self._scheduler.step():
            pass
        assert sink.error is None, sink.error
        return sink
