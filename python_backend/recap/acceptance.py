"""The walk down a verified tree: which drafts the target confirms, and what it says next.

Called by the scheduler once per tree and pass. Knows trees and predictions, nothing else.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recap.predictions import Predictions
from recap.tree import CandidateTree


@dataclass(frozen=True)
class Acceptance:
    """Outcome of one verified tree.

    Attributes:
        rows: int32 [a + 1], accepted tree rows, root (row 0) first; their KV entries are kept.
        tokens: int32 [a + 1], tokens to emit, in order: the accepted drafts, then the bonus token.
            An end token, or the last token of the request's limit, is always the bonus token.
        ended: Whether the bonus token is an end token.
    """

    rows: NDArray[np.int32]
    tokens: NDArray[np.int32]
    ended: bool

    @property
    def accepted(self) -> int:
        """Accepted drafts a; the bonus token is not one."""
        return len(self.rows) - 1


def accept_greedy(
    tree: CandidateTree, predictions: Predictions, remaining: int, eos_ids: Collection[int]
) -> Acceptance:
    """Walks from the root along children that carry the target's argmax.

    The argmax at the last node reached is the bonus token, so the emitted tokens are those that
    plain greedy decoding gives one by one. Ties go to the lowest id, as `Predictions` orders them.

    Args:
        tree: As verified, n + 1 rows.
        predictions: n + 1 rows.
        remaining: Tokens the request may still emit, at least 1.
        eos_ids: End tokens; nothing after the first of them is emitted.
    """
    choice = predictions.ids[:, 0].tolist()
    child_of = {
        (parent, token): row
        for row, (parent, token) in enumerate(
            zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)
        )
    }
    rows, tokens = [0], []
    ended = False
    while True:
        token = choice[rows[-1]]
        tokens.append(token)
        ended = token in eos_ids
        child = child_of.get((rows[-1], token))
        if ended or child is None or len(tokens) == remaining:
            break
        rows.append(child)
    return Acceptance(
        rows=np.array(rows, np.int32),
        tokens=np.array(tokens, np.int32),
        ended=ended,
    )
