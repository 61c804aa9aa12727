"""The greedy walk equals decoding one token at a time, whatever the tree."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recap.acceptance import accept_greedy
from recap.predictions import Predictions
from recap.sequence import Sequence
from recap.tree import CandidateTree
from tests.fakes import VOCAB, GuessingDrafter, predictions_of, toy_row


def _case(seed: int, nodes: int, prompt: list[int], remaining: int):
    request = Sequence.start(1, np.array(prompt, np.int32), remaining)
    drafter = GuessingDrafter(seed)
    drafter.begin(request, None)
    tree = drafter.propose([request], nodes)[0]
    rows = []
    for row in range(len(tree.tokens)):
        path = []
        while row > 0:
            path.append(int(tree.tokens[row]))
            row = int(tree.parents[row])
        rows.append(toy_row(prompt + path[::-1]))
    return tree, predictions_of(rows)


@given(
    seed=st.integers(0, 10_000),
    nodes=st.integers(0, 40),
    prompt=st.lists(st.integers(1, VOCAB - 2), min_size=1, max_size=5),
    remaining=st.integers(1, 12),
    eos=st.sets(st.integers(0, VOCAB - 2), max_size=20),
)
def test_walk_equals_one_token_at_a_time(seed, nodes, prompt, remaining, eos) -> None:
    tree, predictions = _case(seed, nodes, prompt, remaining)
    outcome = accept_greedy(tree, predictions, remaining, eos)
    history, expected = list(prompt), []
    for _ in outcome.tokens:
        expected.append(int(toy_row(history).argmax()))
        history.append(expected[-1])
    assert outcome.tokens.tolist() == expected
    assert len(outcome.tokens) <= remaining
    assert not any(token in eos for token in expected[:-1])
    assert outcome.ended == (expected[-1] in eos)
    assert outcome.rows[0] == 0
    assert (tree.parents[outcome.rows[1:]] == outcome.rows[:-1]).all()
    assert tree.tokens[outcome.rows[1:]].tolist() == expected[:-1]
    # It stops only for a reason: end, limit, or no child with the chosen token.
    if not outcome.ended and len(expected) < remaining:
        children = tree.tokens[tree.parents == outcome.rows[-1]]
        assert expected[-1] not in children.tolist()


def test_an_end_token_at_every_depth_ends_the_answer() -> None:
    depth = 6
    tokens = np.arange(10, 11 + depth, dtype=np.int32)
    chain = CandidateTree(
        tokens,
        np.arange(-1, depth, dtype=np.int32),
        np.arange(depth + 1, dtype=np.int32),
        np.ones(depth + 1, np.float32),
        np.zeros(depth + 1, np.uint8),
        np.zeros(depth + 1, np.uint16),
    )
    ids = np.append(tokens[1:], np.int32(40))[:, None]
    predictions = Predictions(ids, np.ones_like(ids, np.float32), np.zeros(depth + 1, np.float32))
    for end in range(depth + 1):
        outcome = accept_greedy(chain, predictions, 100, {int(ids[end, 0])})
        assert outcome.ended
        assert outcome.tokens.tolist() == ids[: end + 1, 0].tolist()
        assert outcome.accepted == end
