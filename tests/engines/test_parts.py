"""Masks, top-K order and cost tables, without a model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.engines import masks, topk
from recap.engines.costs import CostTable, measure
from recap.tree import CandidateTree
from tests.engines.driving import path_to, trees


@settings(deadline=None)
@given(tree=trees(max_nodes=20))
def test_ancestors(tree: CandidateTree) -> None:
    seen = masks.ancestors(tree.parents)
    for row in range(tree.nodes + 1):
        assert np.flatnonzero(seen[row]).tolist() == path_to(tree, row)


def test_tree_mask_of_a_padded_batch() -> None:
    mask = masks.tree_mask(
        [np.array([-1, 0, 0], np.int32), np.array([-1], np.int32)], starts=[1, 3], rows=3, used=6
    )
    assert mask.shape == (2, 1, 3, 6)
    visible = (mask == 0).astype(int)
    assert visible[0, 0].tolist() == [[1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0]]
    # Rows 1 and 2 of the second slot are padding: they see something, and nobody sees them.
    assert visible[1, 0].tolist() == [[1, 1, 1, 1, 0, 0]] * 3


def test_chunk_mask() -> None:
    visible = (masks.chunk_mask(2, 3)[0, 0] == 0).astype(int)
    assert visible.tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


@settings(deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(-3, 3), min_size=12, max_size=12), min_size=1, max_size=4),
    k=st.integers(1, 12),
)
def test_ties_go_to_the_lowest_id(rows: list[list[int]], k: int) -> None:
    logits = np.array(rows, np.float32)
    got = topk.predictions(topk.score(torch.tensor(logits), k))
    expected = np.stack([np.lexsort((np.arange(12), -row))[:k] for row in logits])
    np.testing.assert_array_equal(got.ids, expected)
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(got.probs, np.take_along_axis(probs, expected, 1), rtol=1e-5)
    np.testing.assert_allclose(got.entropy, -(probs * np.log(probs)).sum(-1), atol=1e-5)
    assert (got.ids.dtype, got.probs.dtype, got.entropy.dtype) == (np.int32, *[np.float32] * 2)


def test_extreme_logits_stay_finite() -> None:
    got = topk.predictions(topk.score(torch.tensor([[200.0, -200.0, -1e30, 0.0]]), 3))
    assert got.ids.tolist() == [[0, 3, 1]]
    assert got.probs[0].tolist() == [1, 0, 0]
    assert got.entropy[0] == pytest.approx(0, abs=1e-6)


def test_cost_table() -> None:
    table = CostTable((1, 2, 4), (1, 3), (64,), np.array([[[1.0], [3]], [[2], [4]], [[3], [9]]]))
    assert table(1, 1, 64) == 1
    assert table(1, 2, 999) == 2
    assert table(3, 1, 0) == 2.5
    assert table(8, 1, 64) == 5  # beyond the grid: on with the last slope
    assert table(0, 1, 64) == 1  # and never less than the cheapest pass


def test_measure_keeps_order() -> None:
    calls = []
    table = measure(lambda *point: calls.append(point), [1, 2], [1, 2], [8])
    assert set(calls) == {(r, b, 8) for r in (1, 2) for b in (1, 2)}
    assert (np.diff(table.seconds, axis=0) >= 0).all()
    assert (np.diff(table.seconds, axis=1) >= 0).all()
    assert (table.seconds > 0).all()
