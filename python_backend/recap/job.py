"""A request from submission to its end, as the scheduler sees it, and the check at its door."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recap.config import LimitSettings
from recap.engines.base import Capabilities, Engine, PromptLayout
from recap.errors import InvalidRequestError
from recap.predictions import Predictions
from recap.requests import GenerationRequest, GenerationStats, Sink, Vocabulary
from recap.sequence import Sequence
from recap.text import IncrementalDetokenizer


@dataclass(eq=False)
class Job:
    """What the scheduler keeps per request.

    Attributes:
        request: As submitted.
        sink: Where output goes.
        layout: Rotary positions and image positions of the prompt.
        sequence: Token history and counters.
        detokenizer: Turns emitted ids into text.
        prefilled: Prompt tokens whose KV entries exist or are under way.
        features_used: Image feature rows handed to the engine so far.
        seed_positions: int32 arrays, prompt positions of `seed_rows`.
        seed_rows: Predictions of the prefill so far.
        unsent: Emitted ids whose text is still held back.
        cancelled: Set from any thread; acted on before the next step.
        ended: Whether its sink has been told the end, or is being told now.
    """

    request: GenerationRequest
    sink: Sink
    layout: PromptLayout
    sequence: Sequence
    detokenizer: IncrementalDetokenizer
    prefilled: int = 0
    features_used: int = 0
    seed_positions: list[NDArray[np.int32]] = field(default_factory=list)
    seed_rows: list[Predictions] = field(default_factory=list)
    unsent: list[NDArray[np.int32]] = field(default_factory=list)
    cancelled: bool = False
    ended: bool = False

    @property
    def key(self) -> int:
        """The request's number, unique in this process."""
        return self.sequence.key

    @property
    def decoding(self) -> bool:
        """Whether the whole prompt has been prefilled."""
        return self.prefilled == self.sequence.prompt_length

    @property
    def stats(self) -> GenerationStats:
        """Figures so far."""
        sequence = self.sequence
        return GenerationStats(
            num_input_tokens=sequence.prompt_length,
            num_output_tokens=sequence.emitted,
            num_decode_steps=sequence.steps,
            total_draft_tokens=sequence.drafted,
            total_accepted_draft_tokens=sequence.accepted,
        )

    def take_unsent(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """int32 [m]: all ids not sent yet, `tokens` last; afterwards there are none."""
        joined = np.concatenate([*self.unsent, tokens])
        self.unsent = []
        return joined


def open_job(
    key: int,
    request: GenerationRequest,
    sink: Sink,
    engine: Engine,
    limits: LimitSettings,
    vocabulary: Vocabulary,
) -> Job:
    """Checks a request and gives it its state.

    Raises:
        InvalidRequestError: A field breaks a rule; nothing has been reserved.
    """
    ids = np.ascontiguousarray(request.input_ids, np.int32)
    max_tokens = _check_lengths(len(ids), request.max_tokens, limits, engine.capabilities)
    vocab = engine.capabilities.vocab_size
    if ids.min() < 0 or ids.max() >= vocab:
        raise InvalidRequestError("input_ids", f"every id must be in [0, {vocab})")
    layout = engine.layout(ids, request.image_layout)
    _check_features(request, int(layout.is_image.sum()), engine.capabilities.feature_width)
    sequence = Sequence.start(key, ids, max_tokens)
    sequence.position_delta = layout.position_delta
    return Job(request, sink, layout, sequence, IncrementalDetokenizer(vocabulary.decode))


def _check_features(request: GenerationRequest, placeholders: int, width: int | None) -> None:
    """Here and not in the engine's pass, where an error would end all requests of the pass."""
    features = request.features
    rows = 0 if features is None else len(features)
    if placeholders != rows:
        raise InvalidRequestError(
            "image_features", f"the prompt has {placeholders} image positions, got {rows} rows"
        )
    if features is not None and width is not None and features.shape != (rows, width):
        raise InvalidRequestError(
            "image_features", f"must be of width {width}, got shape {list(features.shape)}"
        )


def _check_lengths(
    prompt: int, max_tokens: int | None, limits: LimitSettings, capabilities: Capabilities
) -> int:
    context = capabilities.max_sequence_tokens
    room = context - prompt
    if prompt == 0:
        raise InvalidRequestError("prompt", "must not be empty")
    if room < 1:
        raise InvalidRequestError(
            "prompt", f"is {prompt} tokens long, images included; at most {context - 1} fit"
        )
    if max_tokens is None:
        return min(limits.default_max_tokens, limits.max_output_tokens, room)
    if not 1 <= max_tokens <= limits.max_output_tokens:
        raise InvalidRequestError(
            "max_tokens", f"must be in [1, {limits.max_output_tokens}], got {max_tokens}"
        )
    if max_tokens > room:
        raise InvalidRequestError(
            "max_tokens",
            f"a prompt of {prompt} tokens leaves room for {room} more, got {max_tokens}",
        )
    return max_tokens
