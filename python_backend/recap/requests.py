"""What goes into the scheduler and what comes out of it, for one request.

Plain dataclasses and the `Sink` protocol. The server and the benchmark both speak this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["", "stop", "length", "cancelled", "timeout"]


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt to continue.

    Attributes:
        input_ids: int32 [n], image placeholders expanded.
        max_tokens: Most tokens to emit; None takes the default limit, or what the context leaves.
        image_layout: int64 [images, k] as the family's processor made it; None without images.
        features: float [placeholders, hidden], the vision tower's rows in order of appearance.
        request_id: The client's name for the request; may be empty and need not be unique.
    """

    input_ids: NDArray[np.int32]
    max_tokens: int | None = None
    image_layout: NDArray[np.int64] | None = None
    features: NDArray[np.floating] | None = None
    request_id: str = ""


@dataclass(frozen=True)
class GenerationStats:
    """What one finished request took.

    Attributes:
        num_input_tokens: Prompt ids, expanded placeholders included.
        num_output_tokens: Emitted ids, an end token included.
        num_decode_steps: Verify passes; the prefill, which gives the first token, is not one.
        total_draft_tokens: Nodes that were verified.
        total_accepted_draft_tokens: Nodes that were accepted; the first token and the one bonus
            token per step make up the rest of the output.
    """

    num_input_tokens: int
    num_output_tokens: int
    num_decode_steps: int
    total_draft_tokens: int
    total_accepted_draft_tokens: int

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the verified drafts; 0 when there were none."""
        return self.total_accepted_draft_tokens / max(self.total_draft_tokens, 1)

    @property
    def mean_accepted_tokens(self) -> float:
        """MAT: tokens emitted per verify pass, bonus tokens included; 0 without passes."""
        if not self.num_decode_steps:
            return 0.0
        return (self.num_output_tokens - 1) / self.num_decode_steps


@dataclass(frozen=True)
class Chunk:
    """New output of one request; at most one per step.

    Attributes:
        text: New text; all of them concatenated are the full decode.
        tokens: int32 [m], new ids, those whose text is still held back included.
        finish_reason: "" while running.
        stats: On the last chunk only.
    """

    text: str
    tokens: NDArray[np.int32]
    finish_reason: FinishReason = ""
    stats: GenerationStats | None = None


class Sink(Protocol):
    """Where a request's output goes: chunks, then exactly one last chunk or one failure.

    Called on the scheduler's thread, and by its `close` for what is open then. An exception raised
    here ends this request and no other.
    """

    def emit(self, chunk: Chunk) -> None:
        """Takes new output."""

    def fail(self, error: Exception) -> None:
        """Takes the reason why there will be no more output."""


@dataclass(frozen=True)
class Vocabulary:
    """What the scheduler needs to know of a tokenizer.

    Attributes:
        decode: Ids to text, special tokens left out.
        eos_ids: Ids that end an answer.
    """

    decode: Callable[[list[int]], str]
    eos_ids: frozenset[int]
