"""Prompt lookup: copy what followed the last time the newest tokens stood in the text.

After github.com/apoorvumang/prompt-lookup-decoding, with the rules of its transformers version:
longest n-gram first, leftmost match, the continuation may be shorter than asked for.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from recap.config import PromptLookupSettings
from recap.drafters.base import Source, Vocabulary, share_of
from recap.predictions import Predictions, PromptPredictions
from recap.sequence import Sequence
from recap.tree import CandidateTree


class PromptLookupDrafter:
    """Proposes one chain per request; keeps nothing, since the history is all it needs."""

    def __init__(self, settings: PromptLookupSettings, vocabulary: Vocabulary) -> None:
        self._settings = settings
        self._vocabulary = vocabulary

    def begin(self, request: Sequence, seed: PromptPredictions | None) -> None:
        """Keeps nothing."""

    def propose(self, requests: Seq[Sequence], total_nodes: int) -> list[CandidateTree]:
        """Chains of at most `PromptLookupSettings.draft_tokens` drafts."""
        share = min(share_of(requests, total_nodes), self._settings.draft_tokens)
        trees = []
        for request in requests:
            limit = max(0, min(share, request.remaining - 1))
            found = self._lookup(self._vocabulary.mask(request.history), limit)
            trees.append(_chain(int(request.history[-1]), found))
        return trees

    def observe(
        self,
        requests: Seq[Sequence],
        trees: Seq[CandidateTree],
        predictions: Seq[Predictions],
        accepted: Seq[NDArray[np.int32]],
    ) -> None:
        """Learns nothing."""

    def end(self, request: Sequence) -> None:
        """Kept nothing."""

    def reset_persistent(self) -> None:
        """Kept nothing."""

    def _lookup(self, history: NDArray[np.int32], limit: int) -> NDArray[np.int32]:
        """Continuation of the leftmost match of the longest suffix: int32 [0..limit]."""
        for length in range(min(self._settings.max_ngram, len(history) - 1), 0, -1):
            suffix = history[-length:]
            if limit < 1 or (suffix < 0).any():
                continue
            # ends: positions after a match; the suffix itself, which nothing follows, is left out.
            ends = np.arange(length, len(history))
            for back in range(1, length + 1):
                ends = ends[history[ends - back] == suffix[-back]]
            for end in ends:
                if len(found := self._usable(history[end : end + limit])):
                    return found
        return np.empty(0, np.int32)

    def _usable(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """Tokens up to the first that may not be drafted, and not beyond an end of text."""
        for index, token in enumerate(tokens.tolist()):
            if token < 0:
                return tokens[:index]
            if token in self._vocabulary.eos:
                return tokens[: index + 1]
        return tokens


def _chain(root: int, drafts: NDArray[np.int32]) -> CandidateTree:
    rows = len(drafts) + 1
    source = np.full(rows, Source.SUFFIX, np.uint8)
    source[0] = Source.ROOT
    return CandidateTree(
        tokens=np.concatenate([np.array([root], np.int32), drafts]),
        parents=np.arange(-1, rows - 1, dtype=np.int32),
        depth=np.arange(rows, dtype=np.int32),
        # No estimate is made; halves keep the order that a budget across requests needs.
        score=(0.5 ** np.arange(rows)).astype(np.float32),
        source=source,
        bin=np.zeros(rows, np.uint16),
    )
