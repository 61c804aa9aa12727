"""Fixed tree shapes for token recycling: which rank below which node."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

RANKS = 8
"""Predictions per token that the shapes refer to."""

_PUBLISHED = (
    (8,),
    (8, 4, 3, 2, 1, 1, 1, 1),
    (8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0),
    (5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1),
    (3, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1),
    (2, 0, 0, 1),
)
"""The tree of Token Recycling (tree_template_.py, github.com/Luowaterbi/TokenRecycling):
number of children of each node, level by level. Children have ranks 0, 1, and so on; zeros at the
end of a level are left out."""

_STEP_COST = 1.0
_RANK_COST = 1.5


@dataclass(frozen=True)
class Template:
    """A tree shape in rows: parents first, row 0 the root.

    Attributes:
        parents: int32 [n + 1]; -1 for the root.
        ranks: int32 [n + 1], which prediction of the parent; 0 for the root.
        depth: int32 [n + 1].
        levels: Row ranges by depth, root level first; rows are ordered by depth.
    """

    parents: NDArray[np.int32]
    ranks: NDArray[np.int32]
    depth: NDArray[np.int32]
    levels: tuple[slice, ...]


@lru_cache(maxsize=1)
def published() -> Template:
    """The published 80-node tree."""
    parents, ranks, level = [-1], [0], [0]
    for counts in _PUBLISHED:
        below = []
        for row, count in zip(level, counts, strict=False):
            for rank in range(count):
                below.append(len(parents))
                parents.append(row)
                ranks.append(rank)
        level = below
    return _template(parents, ranks)


@lru_cache(maxsize=256)
def rank_cost(nodes: int) -> Template:
    """The `nodes` cheapest nodes, where a path costs the sum of its ranks' costs.

    A rank r costs ``1 + 1.5 log2(r + 1)``: a guess at -log2 of how often the prediction of that
    rank is right, so that the cheapest paths are the likeliest.
    """
    costs = [_STEP_COST + _RANK_COST * math.log2(rank + 1) for rank in range(RANKS)]
    parents, ranks = [-1], [0]
    heap = [(cost, 0, rank) for rank, cost in enumerate(costs)]
    while len(parents) <= nodes:
        cost, parent, rank = heappop(heap)
        row = len(parents)
        parents.append(parent)
        ranks.append(rank)
        for child_rank, child_cost in enumerate(costs):
            heappush(heap, (cost + child_cost, row, child_rank))
    return _template(parents, ranks)


def _template(parents: list[int], ranks: list[int]) -> Template:
    """Rows reordered by depth (stable)."""
    depth = [0]
    for parent in parents[1:]:
        depth.append(depth[parent] + 1)
    order = np.argsort(depth, kind="stable")
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    sorted_depth = np.array(depth, np.int32)[order]
    edges = np.searchsorted(sorted_depth, np.arange(int(sorted_depth[-1]) + 2))
    sorted_parents = np.array(parents, np.int32)[order]
    sorted_parents[1:] = place[sorted_parents[1:]]
    return Template(
        parents=sorted_parents,
        ranks=np.array(ranks, np.int32)[order],
        depth=sorted_depth,
        levels=tuple(slice(int(a), int(b)) for a, b in zip(edges, edges[1:], strict=False)),
    )
