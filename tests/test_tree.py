"""Best-first search: invariants, and the optimum by brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.tree import CandidateTree, Proposals, best_first


def check_tree(tree: CandidateTree, nodes: int, max_depth: int) -> None:
    """The invariants every tree must hold."""
    assert tree.nodes <= max(nodes, 0)
    rows = range(1, tree.nodes + 1)
    assert tree.parents[0] == -1 and tree.depth[0] == 0
    assert all(0 <= tree.parents[row] < row for row in rows)
    assert all(tree.depth[row] == tree.depth[tree.parents[row]] + 1 for row in rows)
    assert tree.depth.max() <= max(max_depth, 0)
    edges = [(int(tree.parents[row]), int(tree.tokens[row])) for row in rows]
    assert len(set(edges)) == len(edges)
    for array, dtype in (
        (tree.tokens, np.int32),
        (tree.parents, np.int32),
        (tree.depth, np.int32),
        (tree.score, np.float32),
        (tree.source, np.uint8),
        (tree.bin, np.uint16),
    ):
        assert array.dtype == dtype and len(array) == tree.nodes + 1


class Table:
    """An `Expand` that gives the same probabilities below every node of a depth."""

    def __init__(self, levels: list[list[float]]) -> None:
        self.levels = levels
        self.calls: list[int] = []

    def __call__(self, row: int, parent: int, token: int, depth: int) -> Proposals | None:
        assert parent < row
        self.calls.append(row)
        if depth > len(self.levels):
            return None
        chances = self.levels[depth - 1]
        tokens = list(range(10 * depth, 10 * depth + len(chances)))
        return Proposals(tokens, chances, [7] * len(chances), [depth] * len(chances))


LEVELS = st.lists(st.lists(st.floats(0.01, 1), max_size=4), max_size=4)


@given(LEVELS, st.integers(0, 30), st.integers(0, 5))
def test_invariants(levels, nodes, max_depth):
    expand = Table(levels)
    tree = best_first(99, expand, nodes, max_depth)
    check_tree(tree, nodes, max_depth)
    assert len(expand.calls) == len(set(expand.calls))
    assert (np.diff(tree.score) <= 1e-6).all()


@given(LEVELS, st.integers(1, 30), st.integers(1, 5))
def test_no_other_tree_of_the_size_scores_higher(levels, nodes, max_depth):
    paths = []
    for depth in range(1, min(len(levels), max_depth) + 1):
        for combination in itertools.product(*levels[:depth]):
            paths.append(float(np.prod(combination)))
    tree = best_first(99, Table(levels), nodes, max_depth)
    best = sorted(paths, reverse=True)[:nodes]
    assert tree.nodes == len(best)
    assert sorted(tree.score[1:].tolist(), reverse=True) == pytest.approx(best, rel=1e-5)


def test_score_source_and_bin_come_from_the_proposals():
    tree = best_first(99, Table([[0.5, 0.4], [0.9]]), 3, 5)
    assert tree.tokens.tolist() == [99, 10, 20, 11]
    assert tree.score.tolist() == pytest.approx([1, 0.5, 0.45, 0.4])
    assert tree.source.tolist() == [0, 7, 7, 7]
    assert tree.bin.tolist() == [0, 1, 2, 1]


def test_zero_nodes_or_depth_is_the_root_alone_and_asks_for_nothing():
    for nodes, depth in ((0, 5), (5, 0), (5, -1)):
        expand = Table([[0.5]])
        assert best_first(99, expand, nodes, depth).nodes == 0
        assert expand.calls == []
