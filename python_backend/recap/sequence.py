"""One request's state while it runs: its token history and how far it may go.

The scheduler owns it and is the only writer. Drafters and engines read it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass
class Sequence:
    """Token history and limits of one request.

    Attributes:
        key: Number of the request, unique in this process. Drafters key their per-request
            memories by it.
        max_tokens: Most tokens that may be emitted.
        buffer: int32 [prompt + max_tokens]; only the first `length` entries mean anything.
        prompt_length: Prompt ids, expanded image placeholders included.
        length: Ids now in the history: prompt, then emitted.
        position_delta: What to add to a history index beyond the prompt to get its position on
            all rotary axes (0 without images; M-RoPE makes it negative).
        slot: KV-cache slot while admitted, else -1.
        steps: Verify passes so far (the prefill counts in none of these figures).
        drafted: Nodes proposed so far.
        accepted: Nodes accepted and emitted so far, bonus tokens excluded.
    """

    key: int
    max_tokens: int
    buffer: NDArray[np.int32]
    prompt_length: int
    length: int
    position_delta: int = 0
    slot: int = -1
    steps: int = 0
    drafted: int = 0
    accepted: int = 0

    @staticmethod
    def start(key: int, prompt: NDArray[np.int32], max_tokens: int) -> Sequence:
        """A sequence that holds its prompt and nothing else yet."""
        buffer = np.empty(len(prompt) + max_tokens, np.int32)
        buffer[: len(prompt)] = prompt
        return Sequence(key, max_tokens, buffer, len(prompt), len(prompt))

    @property
    def history(self) -> NDArray[np.int32]:
        """int32 [length] view: prompt ids, then emitted ids."""
        return self.buffer[: self.length]

    @property
    def output(self) -> NDArray[np.int32]:
        """int32 [emitted] view of the emitted ids."""
        return self.buffer[self.prompt_length : self.length]

    @property
    def emitted(self) -> int:
        """Tokens emitted so far, the one that the prefill gave included."""
        return self.length - self.prompt_length

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.max_tokens - self.emitted

    @property
    def root_position(self) -> int:
        """Rotary position of the last token of the history, the root of the next tree."""
        return self.length - 1 + self.position_delta

    def append(self, tokens: NDArray[np.int32]) -> None:
        """Emits tokens: int32 [m], m <= `remaining`."""
        end = self.length + len(tokens)
        assert end <= len(self.buffer), "more tokens than the request may emit"
        self.buffer[self.length : end] = tokens
        self.length = end
