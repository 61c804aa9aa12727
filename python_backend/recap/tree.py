"""CandidateTree: the flat arrays of a draft tree.

Drafters make trees, engines verify them, `acceptance` walks them. Best-first search, which grows
one from scores, lives here too. Nothing here knows where scores come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_FAN_OUT = 256  # most proposals below one node that are considered


@dataclass(frozen=True)
class CandidateTree:
    """A draft tree of n nodes below its root, as flat arrays of n + 1 rows.

    Row 0 is the root: the last emitted token, which is not in the KV cache yet. Rows 1..n are the
    drafts. A parent always precedes its children, and siblings carry different tokens. "Nodes"
    always means drafts, root excluded: 63 nodes are 64 rows.

    Attributes:
        tokens: int32 [n + 1].
        parents: int32 [n + 1], row of the parent; -1 for the root.
        depth: int32 [n + 1]; 0 for the root.
        score: float32 [n + 1], estimated probability that the whole path to the node is accepted;
            1 for the root.
        source: uint8 [n + 1], which kind of memory proposed the node (see `drafters.Source`).
        bin: uint16 [n + 1], calibration bin the node's proposal fell in.
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    depth: NDArray[np.int32]
    score: NDArray[np.float32]
    source: NDArray[np.uint8]
    bin: NDArray[np.uint16]

    @property
    def nodes(self) -> int:
        """Number of drafts n, root excluded."""
        return len(self.tokens) - 1

    @staticmethod
    def root_only(token: int) -> CandidateTree:
        """The tree of plain decoding: a root and no drafts."""
        return CandidateTree(
            tokens=np.array([token], np.int32),
            parents=np.array([-1], np.int32),
            depth=np.zeros(1, np.int32),
            score=np.ones(1, np.float32),
            source=np.zeros(1, np.uint8),
            bin=np.zeros(1, np.uint16),
        )


@dataclass(slots=True)
class Proposals:
    """What may follow one node: parallel lists, tokens all different.

    Attributes:
        tokens: Ids.
        probabilities: P(child accepted | node accepted), 0..1.
        sources: `drafters.Source` of each.
        bins: Calibration bin of each.
    """

    tokens: list[int]
    probabilities: list[float]
    sources: list[int]
    bins: list[int]


class Expand(Protocol):
    """Says what may follow a node that has just joined the tree."""

    def __call__(self, row: int, parent: int, token: int, depth: int) -> Proposals | None:
        """Proposals below `row`, or None. Called at most once per row, parents before children.

        Args:
            row: The node's row; 0 is the root.
            parent: Its parent's row; -1 for the root.
            token: Its token.
            depth: Depth of the children.
        """


def best_first(root: int, expand: Expand, nodes: int, max_depth: int) -> CandidateTree:
    """Grows the tree whose nodes have the highest path probabilities.

    Probabilities are at most 1, so scores fall along a path, and taking the best open candidate
    each time gives the best tree of any size that the proposals allow.

    Args:
        root: Token of row 0.
        expand: Gives the proposals below a node.
        nodes: Most drafts; fewer only when proposals run out.
        max_depth: Deepest draft.
    """
    tokens, parents, depths, scores, sources, bins = [root], [-1], [0], [1.0], [0], [0]
    open_rows: list[tuple[int, Proposals]] = []  # by batch: the parent's row, its proposals
    heap: list[tuple[float, int]] = []  # (-score, batch * _FAN_OUT + index)

    def push(row: int, parent: int) -> None:
        proposals = expand(row, parent, tokens[row], depths[row] + 1)
        if proposals is None:
            return
        serial, score = len(open_rows) * _FAN_OUT, -scores[row]
        open_rows.append((row, proposals))
        for index, probability in enumerate(proposals.probabilities[:_FAN_OUT]):
            heappush(heap, (score * probability, serial + index))

    if nodes > 0 and max_depth > 0:
        push(0, -1)
    while heap and len(tokens) <= nodes:
        score, serial = heappop(heap)
        batch, index = divmod(serial, _FAN_OUT)
        parent, proposals = open_rows[batch]
        row = len(tokens)
        tokens.append(proposals.tokens[index])
        parents.append(parent)
        depths.append(depths[parent] + 1)
        scores.append(-score)
        sources.append(proposals.sources[index])
        bins.append(proposals.bins[index])
        if row < nodes and depths[row] < max_depth:
            push(row, parent)
    return CandidateTree(
        tokens=np.array(tokens, np.int32),
        parents=np.array(parents, np.int32),
        depth=np.array(depths, np.int32),
        score=np.array(scores, np.float32),
        source=np.array(sources, np.uint8),
        bin=np.array(bins, np.uint16),
    )
