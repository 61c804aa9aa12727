"""Plain decoding as a drafter: never proposes, never learns."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from recap.predictions import Predictions, PromptPredictions
from recap.sequence import Sequence
from recap.tree import CandidateTree


class AutoregressiveDrafter:
    """The baseline every speed-up is measured against."""

    def begin(self, request: Sequence, seed: PromptPredictions | None) -> None:
        """Keeps nothing."""

    def propose(self, requests: Seq[Sequence], total_nodes: int) -> list[CandidateTree]:
        """Root-only trees."""
        return [CandidateTree.root_only(int(request.history[-1])) for request in requests]

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
