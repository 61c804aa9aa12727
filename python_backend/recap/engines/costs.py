"""Measured seconds of a pass, by rows per slot, batch and context.

A small grid is measured and interpolated linearly in between and beyond. Curves of real passes have
steps (one row to two) and plateaus, which is why the grid is denser at few rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROWS = (1, 2, 4, 8, 16, 32, 64)
BATCH = 4
CONTEXTS = (64, 1024)
ROUNDS = 3
"""Readings of each grid point."""


@dataclass(frozen=True)
class CostTable:
    """Costs on a grid.

    Attributes:
        rows: Ascending rows per slot, root included.
        batches: Ascending numbers of slots.
        contexts: Ascending tokens in the cache.
        seconds: float64 [rows, batches, contexts].
    """

    rows: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: NDArray[np.float64]

    def __call__(self, rows: int, batch: int, context: int) -> float:
        """Seconds of a pass; linear between grid points and beyond the last ones."""
        values = self.seconds
        for axis, at in ((self.contexts, context), (self.batches, batch), (self.rows, rows)):
            values = _interpolate(axis, values, at)
        # Noise in the last two points must not extrapolate to less than the cheapest pass seen.
        return max(float(values), float(self.seconds.min()))


def _interpolate(axis: Sequence[int], values: NDArray[np.float64], at: int) -> NDArray[np.float64]:
    """Removes the last dimension of `values`, which runs over `axis`."""
    if len(axis) == 1:
        return values[..., 0]
    high = int(np.clip(np.searchsorted(axis, at), 1, len(axis) - 1))
    low = high - 1
    share = (at - axis[low]) / (axis[high] - axis[low])
    return values[..., low] * (1 - share) + values[..., high] * share


def measure(
    run: Callable[[int, int, int], None],
    rows: Sequence[int],
    batches: Sequence[int],
    contexts: Sequence[int],
) -> CostTable:
    """Times ``run(rows, batch, context)`` on the grid.

    The least of all readings is kept, since whatever else the machine does can only add. The grid
    is walked in rounds, so that one busy moment does not hit all readings of a point.
    """
    seconds = np.full((len(rows), len(batches), len(contexts)), np.inf)
    for turn in range(ROUNDS):
        for index in np.ndindex(seconds.shape):
            point = (rows[index[0]], batches[index[1]], contexts[index[2]])
            if turn == 0:
                run(*point)  # first use of a shape allocates
            begin = time.perf_counter()
            run(*point)
            seconds[index] = min(seconds[index], time.perf_counter() - begin)
    # A smaller pass never costs more than a larger one; where readings say so they are noise.
    for axis in range(3):
        seconds = np.flip(np.minimum.accumulate(np.flip(seconds, axis), axis=axis), axis)
    return CostTable(tuple(rows), tuple(batches), tuple(contexts), seconds)
