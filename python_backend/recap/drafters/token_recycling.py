"""Token Recycling (github.com/Luowaterbi/TokenRecycling): one row of eight successors per token.

The baseline. A matrix holds the target's newest top-8 after every token; a fixed tree of ranks is
filled from it, and every verified node overwrites its token's row. Where the published
code leaves the outcome to chance (one token twice in a tree), accepted nodes win.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from recap.config import TokenRecyclingSettings
from recap.drafters import templates
from recap.drafters.base import Source, Vocabulary, share_of
from recap.drafters.templates import RANKS, Template
from recap.predictions import Predictions, PromptPredictions
from recap.sequence import Sequence
from recap.tree import CandidateTree

Matrix = NDArray[np.int32]
"""int32 [V, 8]; a row of zeros is a token never seen, as published: it proposes id 0."""


class TokenRecyclingDrafter:
    """Fills a rank tree from the successor matrix."""

    def __init__(self, settings: TokenRecyclingSettings, vocabulary: Vocabulary) -> None:
        self._settings = settings
        self._vocabulary = vocabulary
        self._shared = self._new_matrix() if settings.persistent else None
        self._own: dict[int, Matrix] = {}

    def begin(self, request: Sequence, seed: PromptPredictions | None) -> None:
        """Opens a matrix of the request's own where nothing is shared."""
        matrix = self._shared
        if matrix is None:
            matrix = self._own[request.key] = self._new_matrix()
        if seed is not None and self._settings.seed_from_prompt:
            self._write(matrix, request.history[seed.positions], seed.predictions.ids)

    def propose(self, requests: Seq[Sequence], total_nodes: int) -> list[CandidateTree]:
        """Trees of the configured shape; the published one whatever the budget, unless it is 0."""
        share = share_of(requests, total_nodes)
        if share < 1:
            return [CandidateTree.root_only(int(request.history[-1])) for request in requests]
        if self._settings.tree == "published":
            template = templates.published()
        else:
            template = templates.rank_cost(share)
        return [self._tree(request, template) for request in requests]

    def observe(
        self,
        requests: Seq[Sequence],
        trees: Seq[CandidateTree],
        predictions: Seq[Predictions],
        accepted: Seq[NDArray[np.int32]],
    ) -> None:
        """Overwrites the rows of verified tokens: rejected nodes first, accepted ones last."""
        for request, tree, rows, path in zip(requests, trees, predictions, accepted, strict=True):
            order = path
            if self._settings.update_all_nodes:
                rejected = np.delete(np.arange(len(tree.tokens), dtype=np.int32), path)
                order = np.concatenate([rejected, path])
            self._write(self._matrix(request), tree.tokens[order], rows.ids[order])

    def end(self, request: Sequence) -> None:
        """Drops the request's own matrix."""
        self._own.pop(request.key, None)

    def reset_persistent(self) -> None:
        """Zeroes the shared matrix."""
        if self._shared is not None:
            self._shared[:] = 0

    def _new_matrix(self) -> Matrix:
        return np.zeros((self._vocabulary.size, RANKS), np.int32)

    def _matrix(self, request: Sequence) -> Matrix:
        return self._own[request.key] if self._shared is None else self._shared

    def _write(self, matrix: Matrix, tokens: NDArray[np.int32], ids: NDArray[np.int32]) -> None:
        """Row by row in the given order; unknown rows and unusable tokens are skipped."""
        known = (ids[:, 0] >= 0) & (self._vocabulary.mask(tokens) >= 0)
        width = min(RANKS, ids.shape[1])
        # numpy assigns in order, so that the last of several rows for one token stays.
        matrix[tokens[known], :width] = ids[known, :width]

    def _tree(self, request: Sequence, template: Template) -> CandidateTree:
        """Fills a template, without duplicates among siblings and what hangs below them."""
        matrix = self._matrix(request)
        root = int(request.history[-1])
        limit = max(0, min(request.remaining - 1, len(template.levels) - 1))
        if self._vocabulary.mask(request.history[-1:])[0] < 0:
            limit = 0
        rows = template.levels[limit].stop
        parents, ranks = template.parents[:rows], template.ranks[:rows]
        tokens = np.full(rows, root, np.int32)
        keep = np.ones(rows, bool)
        for level in template.levels[1 : limit + 1]:
            above = parents[level]
            raw = matrix[tokens[above], ranks[level]]
            masked = self._vocabulary.mask(raw)
            alive = keep[above] & (masked >= 0)
            for token in self._vocabulary.eos:
                alive &= (tokens[above] != token) | (above == 0)
            # Rows are ordered by rank below each parent: the first of equal siblings stays.
            _, first = np.unique(above.astype(np.int64) << 32 | raw, return_index=True)
            distinct = np.zeros(len(raw), bool)
            distinct[first] = True
            keep[level] = alive & distinct
            # A dropped row's children are dropped as well; its token only has to be an index.
            tokens[level] = np.where(masked >= 0, raw, 0)
        return _compact(tokens, parents, template.depth[:rows], keep)


def _compact(
    tokens: NDArray[np.int32],
    parents: NDArray[np.int32],
    depth: NDArray[np.int32],
    keep: NDArray[np.bool_],
) -> CandidateTree:
    """The kept rows as a tree; every kept row's parent is kept."""
    place = np.cumsum(keep, dtype=np.int32) - 1
    above = place[parents[keep]]
    above[0] = -1
    source = np.full(len(above), Source.PERSISTENT, np.uint8)
    source[0] = Source.ROOT
    return CandidateTree(
        tokens=tokens[keep],
        parents=above,
        depth=depth[keep],
        # No estimate is made; halves keep the order that a budget across requests needs.
        score=(0.5 ** depth[keep]).astype(np.float32),
        source=source,
        bin=np.zeros(len(above), np.uint16),
    )
