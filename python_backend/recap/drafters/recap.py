"""RECAP (arXiv 2611.05894): recycled predictions under keys of one, two and three tokens.

Per step: predictions found under the last tokens are fused, scored by how often such proposals
were accepted, joined by repeats of the request's own text, and composed into a tree by a
best-first search. After the pass, every verified node's prediction is stored under the keys that
end at it. Each ingredient has its switch in `RecapSettings`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recap.calibration import SUFFIX_ORDERS, Calibration, Estimate
from recap.config import RecapSettings
from recap.drafters.base import Source, Vocabulary, share_of
from recap.fusion import fuse, weights
from recap.memory import (
    CONTEXT_MASK,
    ID_BITS,
    MAX_VOCABULARY,
    NO_TOKEN,
    ContextualMemory,
    Entry,
    PersistentMemory,
    Rows,
    concentration,
    contexts,
    keys_of,
)
from recap.predictions import Predictions, PromptPredictions
from recap.sequence import Sequence
from recap.suffix import NO_MATCH, Match, SuffixIndex
from recap.tree import CandidateTree, Proposals, best_first


class _RequestState:
    """What is kept for one request; dies with it."""

    def __init__(self, settings: RecapSettings) -> None:
        self.memory = ContextualMemory(settings.contextual_entries, settings.top_k)
        self.suffix = SuffixIndex()


class RecapDrafter:
    """The product's drafter.

    Args:
        settings: Which ingredients are in use.
        vocabulary: Which ids may be used.
    """

    def __init__(self, settings: RecapSettings, vocabulary: Vocabulary) -> None:
        assert vocabulary.size <= MAX_VOCABULARY, "ids must fit 21 bits"
        self._settings = settings
        self._vocabulary = vocabulary
        self._persistent = (
            PersistentMemory(vocabulary.size, settings.top_k, settings.persistent_window)
            if settings.persistent
            else None
        )
        self._calibration = Calibration(settings.calibrated)
        self._open: dict[int, _RequestState] = {}

    @property
    def open_requests(self) -> int:
        """Requests whose memories exist now."""
        return len(self._open)

    def begin(self, request: Sequence, seed: PromptPredictions | None) -> None:
        """Opens the request's memories and seeds them from the prompt where that is switched on."""
        state = self._open[request.key] = _RequestState(self._settings)
        if seed is None or not self._settings.seed_from_prompt:
            return
        # Two ids that are in no key stand before the text.
        text = np.concatenate(
            [np.full(2, NO_TOKEN, np.int32), self._vocabulary.mask(request.history)]
        )
        at = seed.positions
        self._write(
            state,
            contexts(text[at + 2], text[at + 1], text[at]),
            self._rows(seed.predictions, np.arange(len(at))),
            seeding=True,
        )

    def propose(self, requests: Seq[Sequence], total_nodes: int) -> list[CandidateTree]:
        """Best-first trees, the same number of nodes for each request."""
        share = share_of(requests, total_nodes)
        return [self._tree(request, share) for request in requests]

    def observe(
        self,
        requests: Seq[Sequence],
        trees: Seq[CandidateTree],
        predictions: Seq[Predictions],
        accepted: Seq[NDArray[np.int32]],
    ) -> None:
        """Counts what was accepted, then stores predictions: rejected first, accepted last."""
        for request, tree, rows, path in zip(requests, trees, predictions, accepted, strict=True):
            on_path = np.zeros(len(tree.tokens), bool)
            on_path[path] = True
            self._count(tree, on_path)
            packed = self._contexts(request, tree)
            order = path.astype(np.intp)
            if self._settings.recycle_rejected:
                order = np.concatenate([np.flatnonzero(~on_path), order])
            order = order[rows.ids[order, 0] >= 0]
            self._write(self._open[request.key], packed[order], self._rows(rows, order))

    def end(self, request: Sequence) -> None:
        """Destroys the request's memories."""
        self._open.pop(request.key, None)

    def reset_persistent(self) -> None:
        """Forgets the shared memory and the calibration."""
        if self._persistent is not None:
            self._persistent.clear()
        self._calibration = Calibration(self._settings.calibrated)

    def _tree(self, request: Sequence, nodes: int) -> CandidateTree:
        state = self._open[request.key]
        root = int(request.history[-1])
        depth = min(self._settings.max_depth, request.remaining - 1)
        if nodes < 1 or depth < 1:
            return CandidateTree.root_only(root)
        if self._settings.suffix:
            new = request.history[state.suffix.length :]
            state.suffix.extend(self._vocabulary.mask(new).tolist())
        expansion = _Expansion(self, state, self._tail(request), nodes)
        return best_first(root, expansion, nodes, depth)

    def _tail(self, request: Sequence) -> int:
        """Context of the history's last token; nothing before a token that may be in no key."""
        packed = 0
        for token in self._vocabulary.mask(request.history[-3:]).tolist():
            packed = (packed << ID_BITS) | (token + 1) if token >= 0 else 0
        return packed

    def _contexts(self, request: Sequence, tree: CandidateTree) -> NDArray[np.int64]:
        """Contexts that end at each row of a tree: int64 [n + 1]."""
        tail = self._vocabulary.mask(request.history[-3:])
        tail = np.concatenate([np.full(3 - len(tail), NO_TOKEN, np.int32), tail])
        # The two tokens before the root stand in front, as if they were its ancestors.
        tokens = np.concatenate([tail, tree.tokens[1:]])
        above = np.concatenate([(0, 0, 1), tree.parents[1:] + 2])
        previous = above[2:]
        return contexts(tokens[2:], tokens[previous], tokens[above[previous]])

    def _rows(self, predictions: Predictions, order: NDArray[np.intp]) -> Rows:
        """Predictions as they are stored: cut or padded to K, unusable ids taken out."""
        top_k = self._settings.top_k
        ids = self._vocabulary.mask(predictions.ids[order, :top_k])
        probs = np.where(ids >= 0, predictions.probs[order, :top_k], np.float32(0))
        if (missing := top_k - ids.shape[1]) > 0:
            ids = np.pad(ids, ((0, 0), (0, missing)), constant_values=NO_TOKEN)
            probs = np.pad(probs, ((0, 0), (0, missing)))
        return Rows(ids, probs, concentration(probs))

    def _write(
        self,
        state: _RequestState,
        packed: NDArray[np.int64],
        rows: Rows,
        seeding: bool = False,
    ) -> None:
        state.memory.write(keys_of(packed, self._settings.key_lengths), rows, seeding=seeding)
        if self._persistent is not None and 1 in self._settings.key_lengths:
            self._persistent.write(keys_of(packed, (1,)).ravel(), rows)

    def _count(self, tree: CandidateTree, on_path: NDArray[np.bool_]) -> None:
        """Tells the calibration about proposals whose parent was accepted."""
        judged = np.flatnonzero(on_path[tree.parents[1:]]) + 1
        for code, good in zip(tree.bin[judged].tolist(), on_path[judged].tolist(), strict=True):
            self._calibration.observe(code, good)


class _Hits(NamedTuple):
    """What one lookup found, most specific first.

    Attributes:
        kinds: Key length of each hit; 0 for the shared memory.
        entries: The stored predictions.
    """

    kinds: list[int]
    entries: list[Entry]


class _Expansion:
    """One search: what may follow each node of the tree being grown (`tree.Expand`).

    Keeps per row the context and the suffix match at which it stands.
    """

    def __init__(self, drafter: RecapDrafter, state: _RequestState, tail: int, nodes: int) -> None:
        self._settings = drafter._settings
        self._calibration = drafter._calibration
        self._persistent = drafter._persistent
        self._eos = drafter._vocabulary.eos
        self._state = state
        self._lengths = sorted(self._settings.key_lengths, reverse=True)
        self._contexts = [tail] * (nodes + 1)
        self._matches: list[Match] = [NO_MATCH] * (nodes + 1)

    def __call__(self, row: int, parent: int, token: int, depth: int) -> Proposals | None:
        """Fused and calibrated proposals below a node; None below an end of text."""
        if parent < 0:
            if self._settings.suffix:
                self._matches[0] = self._state.suffix.match()
        else:
            if token in self._eos:
                return None
            context = (self._contexts[parent] << ID_BITS | (token + 1)) & CONTEXT_MASK
            self._contexts[row] = context
            if self._settings.suffix:
                self._matches[row] = self._state.suffix.advance(self._matches[parent], token)
        proposals = self._recalled(self._contexts[row], depth)
        match = self._matches[row]
        if match.length:
            self._join_repeats(proposals, match, depth)
        return proposals

    def _recalled(self, context: int, depth: int) -> Proposals:
        """Fused predictions of the memories with their estimates."""
        hits = self._hits(context)
        if not hits.entries:
            return Proposals([], [], [], [])
        shares = weights(self._settings.fusion, hits.kinds, hits.entries)
        tokens, q = fuse(shares, hits.entries, self._settings.branch)
        kind = hits.kinds[0]
        rates, bins = self._calibration.memory(kind, depth, q)
        return Proposals(tokens, rates, [kind + Source.PERSISTENT] * len(tokens), bins)

    def _hits(self, context: int) -> _Hits:
        """What is stored under the context's keys."""
        kinds: list[int] = []
        entries: list[Entry] = []
        for length in self._lengths:
            if not context >> (length - 1) * ID_BITS:
                continue
            key = context & ((1 << length * ID_BITS) - 1)
            if (entry := self._state.memory.find(key)) is not None:
                kinds.append(length)
                entries.append(entry)
            if length == 1 and self._persistent is not None:
                if (entry := self._persistent.find(key)) is not None:
                    kinds.append(0)
                    entries.append(entry)
        return _Hits(kinds, entries)

    def _join_repeats(self, proposals: Proposals, match: Match, depth: int) -> None:
        """Adds continuations of repeats; a token from both sides keeps one joint estimate."""
        calibration = self._calibration
        for order, found in enumerate(self._state.suffix.continuations(match, SUFFIX_ORDERS)):
            estimate = calibration.suffix(found.length, order, found.choices, depth)
            if found.token not in proposals.tokens:
                proposals.tokens.append(found.token)
                proposals.probabilities.append(estimate.rate)
                proposals.sources.append(Source.SUFFIX)
                proposals.bins.append(estimate.bin)
                continue
            index = proposals.tokens.index(found.token)
            known = Estimate(proposals.probabilities[index], proposals.bins[index])
            joint = calibration.both(known, estimate)
            proposals.probabilities[index], proposals.bins[index] = joint
            if estimate.rate > known.rate:
                proposals.sources[index] = Source.SUFFIX
