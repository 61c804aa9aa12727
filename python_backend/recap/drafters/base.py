"""The interface every drafter has, and what all of them must obey about token ids."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from recap.memory import NO_TOKEN
from recap.predictions import Predictions, PromptPredictions
from recap.sequence import Sequence
from recap.tree import CandidateTree


class Source(IntEnum):
    """What proposed a node (`CandidateTree.source`)."""

    ROOT = 0
    PERSISTENT = 1
    """The one-token memory that requests share (token recycling's matrix too)."""
    KEY_1 = 2
    """The request's own memory; the longest key that hit had one token."""
    KEY_2 = 3
    KEY_3 = 4
    SUFFIX = 5
    """A repeat in the request's own text (prompt lookup too)."""


class Drafter(Protocol):
    """Proposes trees and hears what was accepted.

    Order of calls per request: `begin` once after the prefill, then any number of `propose` and
    `observe` pairs, then `end` once, whatever happened. When `begin` is called the first token
    (given by the prefill) is already the last one of the history.
    """

    def begin(self, request: Sequence, seed: PromptPredictions | None) -> None:
        """Opens the request's own memories; `seed` may fill them from the prompt."""

    def propose(self, requests: Seq[Sequence], total_nodes: int) -> list[CandidateTree]:
        """One tree per request, at most `total_nodes` drafts in all of them together.

        The root of each tree is the last token of the request's history. No tree is deeper than
        ``request.remaining - 1``, so that the bonus token always fits.
        """

    def observe(
        self,
        requests: Seq[Sequence],
        trees: Seq[CandidateTree],
        predictions: Seq[Predictions],
        accepted: Seq[NDArray[np.int32]],
    ) -> None:
        """Learns from a verified pass.

        Called before the emitted tokens join the histories, so that each history still ends with
        the root of its tree.

        Args:
            requests: In the order of the pass.
            trees: As proposed.
            predictions: Per tree one row per tree row; a row whose first id is negative is
                unknown and teaches nothing (a replay knows the accepted rows only).
            accepted: Per tree the rows on the accepted path, int32, root (row 0) first.
        """

    def end(self, request: Sequence) -> None:
        """Destroys everything kept for the request; harmless when it was never begun."""

    def reset_persistent(self) -> None:
        """Forgets what outlives requests, calibration included: the state of a new process."""


class Vocabulary:
    """Which ids may be drafted or stand in a key.

    Args:
        size: Ids from here on are never used.
        forbidden: Ids never used: image placeholders, pads.
        eos: Ids below which a draft does not go on.
    """

    def __init__(self, size: int, forbidden: NDArray[np.int32], eos: Iterable[int] = ()) -> None:
        self.size = size
        self.eos = frozenset(int(token) for token in eos)
        # By id + 1, with an entry on either side that all ids out of range are clipped to.
        self._usable = np.arange(-1, size + 1, dtype=np.int32)
        self._usable[size + 1] = NO_TOKEN
        self._usable[forbidden[(forbidden >= 0) & (forbidden < size)] + 1] = NO_TOKEN

    def mask(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """The ids with `NO_TOKEN` in place of those that may not be used; any shape."""
        return self._usable.take(ids + 1, mode="clip")


def share_of(requests: Seq[Sequence], total_nodes: int) -> int:
    """Nodes per request when all get the same."""
    return total_nodes // len(requests) if requests else 0
