"""Attention masks of a pass, in numpy: who may see whom.

A tree row sees its slot's prefix, its ancestors and itself. Several trees share one padded batch;
columns are KV-cache positions, so the tree of slot i lies at ``starts[i]``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def ancestors(parents: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which rows are on the path from the root to a row.

    Args:
        parents: int32 [n], row of the parent, -1 for a root.

    Returns:
        bool [n, n]: entry (i, j) says that j is i or one of its ancestors.
    """
    seen = np.zeros((len(parents), len(parents)), np.bool_)
    rows = np.arange(len(parents))
    ancestor = rows
    while len(rows):  # one turn per level of the tree
        seen[rows, ancestor] = True
        up = parents[ancestor]
        inside = up >= 0
        rows, ancestor = rows[inside], up[inside]
    return seen


def additive(visible: NDArray[np.bool_]) -> NDArray[np.float32]:
    """A float32 mask of the same shape: 0 where visible, -inf elsewhere."""
    return np.where(visible, np.float32(0), np.float32(-np.inf))


def tree_mask(
    parents: Sequence[NDArray[np.int32]], starts: Sequence[int], rows: int, used: int
) -> NDArray[np.float32]:
    """Additive mask of a padded batch of trees.

    Args:
        parents: Per slot, int32 [n_i] with n_i <= rows.
        starts: Per slot, length of its prefix.
        rows: Rows of the batch, padding included.
        used: KV length of the batch.

    Returns:
        float32 [B, 1, rows, used]. Padding rows see their slot's prefix and the root, so that
        their softmax is defined; no row sees a padding row.
    """
    mask = np.full((len(parents), 1, rows, used), -np.inf, np.float32)
    for i, (tree, start) in enumerate(zip(parents, starts, strict=True)):
        mask[i, 0, :, : start + 1] = 0
        n = len(tree)
        if n > 1:
            mask[i, 0, :n, start : start + n] = additive(ancestors(tree))
    return mask


def chunk_mask(start: int, rows: int) -> NDArray[np.float32]:
    """Mask of a causal chunk behind a prefix: float32 [1, 1, rows, start + rows]."""
    return additive(np.tri(rows, start + rows, start, dtype=np.bool_))[None, None]
