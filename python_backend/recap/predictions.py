"""What a target pass predicts: plain arrays that engines fill and drafters recycle.

This module holds two dataclasses and no rules. It knows only numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Predictions:
    """Top-K next-token predictions of the target at n positions.

    Attributes:
        ids: int32 [n, K], most probable first, ties by lowest id; ``ids[:, 0]``
            is the argmax of the full row.
        probs: float32 [n, K], probabilities under the full softmax (not renormalised).
        entropy: float32 [n], entropy of the full softmax in nats.
    """

    ids: NDArray[np.int32]
    probs: NDArray[np.float32]
    entropy: NDArray[np.float32]

    def __len__(self) -> int:
        """Number of positions n."""
        return len(self.ids)


@dataclass(frozen=True)
class PromptPredictions:
    """Predictions at text positions of a prompt, from the prefill's own logits.

    Attributes:
        positions: int32 [m], ascending indices into the prompt; row j of `predictions` predicts
            the token after prompt token ``positions[j]``.
        predictions: m rows.
    """

    positions: NDArray[np.int32]
    predictions: Predictions
