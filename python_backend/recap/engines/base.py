"""The engine contract: where the target model runs, seen from the scheduler.

Plain dataclasses and one protocol; numpy only. An engine owns the model, the KV cache and the
slots in it. It knows nothing of requests, text or drafting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from recap.predictions import Predictions
from recap.tree import CandidateTree


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do; the scheduler adapts.

    Attributes:
        mixed_passes: One pass may hold prefill chunks and trees.
        chunked_prefill: A prompt may be split over several passes.
        prompt_predictions: A prefill chunk can return top-K at chosen positions.
        max_sequence_tokens: Most tokens (prompt + output) one sequence may hold.
        slots: Sequences that may be held at once.
        max_nodes: Most drafts one tree may hold.
        vocab_size: Ids are below this.
        feature_width: Width of an image feature row; None where any is taken.
    """

    mixed_passes: bool
    chunked_prefill: bool
    prompt_predictions: bool
    max_sequence_tokens: int
    slots: int
    max_nodes: int
    vocab_size: int
    feature_width: int | None = None


@dataclass(frozen=True)
class PromptLayout:
    """Where the tokens of one prompt lie on the rotary axes.

    Attributes:
        positions: int32 [3, n]; one-dimensional models repeat the row.
        position_delta: see `sequence.Sequence.position_delta`.
        is_image: bool [n], true at expanded image placeholders.
    """

    positions: NDArray[np.int32]
    position_delta: int
    is_image: NDArray[np.bool_]


@dataclass(frozen=True)
class PrefillChunk:
    """Consecutive prompt tokens of one slot.

    Attributes:
        slot: From `Engine.allocate`.
        ids: int32 [n].
        positions: int32 [3, n].
        is_image: bool [n], placeholders that `features` replaces, in order.
        features: float [number of true entries in is_image, hidden], or None when there are none.
        last: Whether the prompt ends with this chunk; then the prediction at its last position is
            always returned.
        wanted: int32 [w] ascending indices into the chunk whose predictions are wanted.
    """

    slot: int
    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    is_image: NDArray[np.bool_]
    features: NDArray[np.floating] | None
    last: bool
    wanted: NDArray[np.int32]


@dataclass(frozen=True)
class TreeVerification:
    """One slot's tree to verify.

    Attributes:
        slot: From `Engine.allocate`; its prompt is in the KV cache.
        tree: Root and drafts. The root-only tree takes the plain decode path.
        root_position: Rotary position of the root; a node adds its depth on all axes.
    """

    slot: int
    tree: CandidateTree
    root_position: int


@dataclass(frozen=True)
class Pass:
    """What the target runs once: any mix of chunks and trees, one entry per slot."""

    prefills: Sequence[PrefillChunk] = field(default_factory=tuple)
    trees: Sequence[TreeVerification] = field(default_factory=tuple)


@dataclass(frozen=True)
class PassResult:
    """Predictions of one pass.

    Attributes:
        prefills: Per chunk: rows for `wanted`, in order; when the chunk is the last one of its
            prompt, one more row at the end for its last position.
        trees: Per tree: one row per tree row, root first.
    """

    prefills: list[Predictions]
    trees: list[Predictions]


class Handle(Protocol):
    """A submitted pass."""

    def result(self) -> PassResult:
        """Waits for the pass and returns its predictions."""

    def tree_logits(self, tree: int, row: int) -> NDArray[np.float32]:
        """float32 [vocab]: the full row of one tree node; valid until the next submit."""

    def prefill_logits(self, prefill: int) -> NDArray[np.float32]:
        """float32 [vocab]: the row of a last chunk's last position; until the next submit."""


class Engine(Protocol):
    """Runs the target model over slots of a KV cache.

    Calls come from one thread. After `submit` of a tree the slot's cache is undefined until
    `commit` names the accepted rows.
    """

    capabilities: Capabilities

    def layout(
        self, ids: NDArray[np.int32], image_layout: NDArray[np.int64] | None
    ) -> PromptLayout:
        """Positions of a prompt.

        Args:
            ids: int32 [n], placeholders expanded.
            image_layout: int64 [images, k] as the family's processor made it; None without images.

        Raises:
            InvalidRequestError: The placeholders do not fit the images.
        """

    def allocate(self, n_tokens: int) -> int:
        """Reserves a slot for a sequence that may reach `n_tokens`.

        Raises:
            CapacityError: No slot is free.
            InvalidRequestError: The sequence could never fit.
        """

    def submit(self, work: Pass) -> Handle:
        """Runs the target once over `work`."""

    def commit(self, slot: int, rows: NDArray[np.int32]) -> None:
        """Keeps the KV entries of accepted tree rows (int32, root first) and drops the rest."""

    def release(self, slot: int) -> None:
        """Frees a slot; doing it twice is harmless."""

    def cost(self, rows: int, batch: int, context: int) -> float:
        """Measured seconds of a pass with `rows` tree rows per slot (root included)."""
