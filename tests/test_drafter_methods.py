"""RECAP, token recycling and prompt lookup, each against its own definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recap.config import DrafterSettings
from recap.drafters import Drafter, Source, make_drafter, templates
from recap.predictions import Predictions, PromptPredictions
from recap.sequence import Sequence
from recap.tree import CandidateTree
from tests.test_drafters import (
    EOS,
    FORBIDDEN,
    VOCABULARY,
)

# --- RECAP -------------------------------------------------------------------------------------


def recap_with(**changes) -> Drafter:
    chosen = DrafterSettings.model_validate({"method": "recap", "recap": changes})
    return make_drafter(chosen, 100, np.array([0], np.int32), [EOS])


def one_row(ids: list[int], probs: list[float]) -> Predictions:
    return Predictions(
        np.array([ids], np.int32), np.array([probs], np.float32), np.zeros(1, np.float32)
    )


def begun(drafter: Drafter, history: list[int], max_tokens: int = 50) -> Sequence:
    request = Sequence.start(1, np.array(history[:-1], np.int32), max_tokens)
    request.append(np.array(history[-1:], np.int32))
    drafter.begin(request, None)
    return request


def test_a_longer_key_outweighs_a_shorter_one():
    drafter = recap_with(suffix=False, persistent=False, calibrated=False)
    request = begun(drafter, [10, 11, 12])
    write(drafter, request, [20], [0.9])  # after 10 11 12
    request.append(np.array([5, 6, 12], np.int32))
    write(drafter, request, [30], [0.9])  # after 5 6 12: the newest for 12 alone
    request.append(np.array([10, 11, 12], np.int32))
    tree = drafter.propose([request], 2)[0]
    assert tree.tokens[1:].tolist() == [20, 30]
    assert tree.source[1] == Source.KEY_3


def write(drafter: Drafter, request: Sequence, ids: list[int], probs: list[float]) -> None:
    """Lets the target predict `ids` after the request's history."""
    root = CandidateTree.root_only(int(request.history[-1]))
    drafter.observe([request], [root], [one_row(ids, probs)], [np.zeros(1, np.int32)])


def test_accepted_rows_win_over_rejected_ones_with_the_same_key():
    drafter = recap_with(suffix=False, persistent=False)
    request = begun(drafter, [10, 11, 12])
    # Two branches that end in the same three tokens: 12 | 40 41 42 (accepted) and 12 | 50 40 41 42.
    tree = CandidateTree(
        tokens=np.array([12, 40, 41, 42, 50, 40, 41, 42], np.int32),
        parents=np.array([-1, 0, 1, 2, 0, 4, 5, 6], np.int32),
        depth=np.array([0, 1, 2, 3, 1, 2, 3, 4], np.int32),
        score=np.ones(8, np.float32),
        source=np.zeros(8, np.uint8),
        bin=np.zeros(8, np.uint16),
    )
    ids = np.array([[60 + row] for row in range(8)], np.int32)
    rows = Predictions(ids, np.full((8, 1), 0.9, np.float32), np.zeros(8, np.float32))
    drafter.observe([request], [tree], [rows], [np.array([0, 1, 2, 3], np.int32)])
    request.append(np.array([40, 41, 42], np.int32))
    assert drafter.propose([request], 1)[0].tokens[1] == 63


def test_unknown_rows_teach_nothing():
    drafter = recap_with(suffix=False)
    request = begun(drafter, [10, 11, 12])
    write(drafter, request, [-1], [0.0])
    assert drafter.propose([request], 5)[0].nodes == 0


def test_repeats_of_the_text_join_the_tree():
    text = [10, 11, 12, 13, 14, 15, 9, 10, 11, 12]
    request_with = begun(with_suffix := recap_with(), text)
    assert with_suffix.propose([request_with], 3)[0].tokens[1:].tolist() == [13, 14, 15]
    request_without = begun(without := recap_with(suffix=False), text)
    assert without.propose([request_without], 3)[0].nodes == 0


def test_a_placeholder_breaks_keys_and_repeats():
    drafter = recap_with(persistent=False)
    request = begun(drafter, [0, 0, 12])
    write(drafter, request, [20], [0.9])
    memory = drafter._open[1].memory
    assert len(memory) == 1  # the one-token key only
    repeated = begun(recap_with(), [10, 0, 11, 10, 0])
    assert recap_with().propose([], 1) == []
    drafter = recap_with()
    drafter.begin(repeated, None)
    assert drafter.propose([repeated], 5)[0].nodes == 0


def test_seeds_fill_the_memories_from_text_positions():
    drafter = recap_with(suffix=False)
    request = Sequence.start(1, np.array([10, 11, 12], np.int32), 50)
    request.append(np.array([12], np.int32))
    seed = PromptPredictions(np.array([2], np.int32), one_row([44, 45], [0.6, 0.3]))
    drafter.begin(request, seed)
    assert set(drafter.propose([request], 2)[0].tokens[1:].tolist()) == {44, 45}
    off = recap_with(suffix=False, seed_from_prompt=False)
    off.begin(request, seed)
    assert off.propose([request], 2)[0].nodes == 0


def test_calibration_learns_which_proposals_come_true():
    """The same wrong prediction, again and again, loses its score."""
    drafter = recap_with(suffix=False, persistent=False)
    request = begun(drafter, [10, 11, 12], max_tokens=2000)
    scores = []
    for _ in range(200):
        write(drafter, request, [20], [0.9])
        tree = drafter.propose([request], 1)[0]
        scores.append(float(tree.score[1]))
        rows = one_row([20, 21], [0.9, 0.1])
        both = Predictions(np.repeat(rows.ids, 2, 0), np.repeat(rows.probs, 2, 0), np.zeros(2))
        drafter.observe([request], [tree], [both], [np.zeros(1, np.int32)])
    assert scores[0] > 0.5 and scores[-1] < 0.1


# --- Token recycling ---------------------------------------------------------------------------


def test_the_published_template_has_its_published_shape():
    template = templates.published()
    assert len(template.parents) == 81
    assert np.bincount(template.depth).tolist() == [1, 8, 21, 25, 15, 8, 3]
    ranks = np.bincount(template.ranks[1:], minlength=8)
    assert ranks.tolist() == [41, 13, 8, 5, 4, 3, 3, 3]
    deepest = [path(template, row) for row in range(78, 81)]
    assert deepest == [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1], [0, 0, 0, 1, 0, 0]]
    assert 80 - len(set(template.parents[1:].tolist()) - {0}) == 40  # leaves


def path(template: templates.Template, row: int) -> list[int]:
    """Ranks from the root to a row."""
    ranks = []
    while row > 0:
        ranks.append(int(template.ranks[row]))
        row = int(template.parents[row])
    return ranks[::-1]


@given(st.integers(1, 255))
def test_rank_cost_trees_have_the_budget_s_size_and_grow(nodes):
    template = templates.rank_cost(nodes)
    assert len(template.parents) == nodes + 1
    assert (np.diff(template.depth) >= 0).all()
    rows = range(1, nodes + 1)
    edges = {(int(template.parents[row]), int(template.ranks[row])) for row in rows}
    assert len(edges) == nodes
    # A rank is used only where all better ranks of the same parent are.
    assert all(rank == 0 or (parent, rank - 1) in edges for parent, rank in edges)
    assert [level.start for level in template.levels[1:]] == [
        level.stop for level in template.levels[:-1]
    ]


def recycling(**changes) -> Drafter:
    chosen = DrafterSettings.model_validate(
        {"method": "token_recycling", "token_recycling": changes}
    )
    return make_drafter(chosen, 100, np.empty(0, np.int32))


def test_an_unseen_token_drafts_id_zero_as_published():
    request = begun(drafter := recycling(), [10, 11])
    tree = drafter.propose([request], 80)[0]
    assert tree.tokens.tolist() == [11, 0, 0, 0, 0, 0, 0]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3, 4, 5]


def test_the_matrix_overwrites_row_by_row_and_accepted_nodes_win():
    drafter = recycling(tree="rank_cost")
    request = begun(drafter, [10, 11])
    tree = CandidateTree(
        tokens=np.array([11, 20, 20, 30], np.int32),  # 20 twice: accepted in row 1, not in row 2
        parents=np.array([-1, 0, 3, 0], np.int32)[[0, 1, 2, 3]],
        depth=np.array([0, 1, 2, 1], np.int32),
        score=np.ones(4, np.float32),
        source=np.zeros(4, np.uint8),
        bin=np.zeros(4, np.uint16),
    )
    ids = np.arange(40, 72, dtype=np.int32).reshape(4, 8)
    rows = Predictions(ids, np.full((4, 8), 0.1, np.float32), np.zeros(4, np.float32))
    drafter.observe([request], [tree], [rows], [np.array([0, 1], np.int32)])
    matrix = drafter._shared
    assert matrix[11].tolist() == ids[0].tolist()
    assert matrix[20].tolist() == ids[1].tolist()
    assert matrix[30].tolist() == ids[3].tolist()
    only_accepted = recycling(update_all_nodes=False)
    begun(only_accepted, [10, 11])
    only_accepted.observe([request], [tree], [rows], [np.array([0, 1], np.int32)])
    assert not only_accepted._shared[30].any()


@given(st.integers(0, 10**6), st.booleans())
def test_drafts_follow_the_matrix_by_rank(seed, published):
    rng = np.random.default_rng(seed)
    drafter = recycling(tree="published" if published else "rank_cost")
    drafter._shared[:] = np.array([rng.permutation(100)[:8] for _ in range(100)])
    request = begun(drafter, [10, 11])
    tree = drafter.propose([request], 23)[0]
    template = templates.published() if published else templates.rank_cost(23)
    assert tree.parents.tolist() == template.parents.tolist()
    for row in range(1, len(tree.tokens)):
        above = tree.tokens[tree.parents[row]]
        assert tree.tokens[row] == drafter._shared[above, template.ranks[row]]


# --- Prompt lookup -----------------------------------------------------------------------------


def brute_force_lookup(history: list[int], longest: int, limit: int) -> list[int]:
    for size in range(min(longest, len(history) - 1), 0, -1):
        suffix = history[-size:]
        if any(token in FORBIDDEN for token in suffix):
            continue
        for at in range(len(history) - size):
            if history[at : at + size] != suffix:
                continue
            found = []
            for token in history[at + size : at + size + limit]:
                if token in FORBIDDEN:
                    break
                found.append(token)
                if token == EOS:
                    break
            if found:
                return found
    return []


@given(
    st.lists(st.integers(0, 8), min_size=2, max_size=40),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(1, 20),
)
def test_prompt_lookup_equals_brute_force(history, longest, tokens, max_tokens):
    chosen = DrafterSettings.model_validate(
        {
            "method": "prompt_lookup",
            "prompt_lookup": {"max_ngram": longest, "draft_tokens": tokens},
        }
    )
    drafter = make_drafter(chosen, VOCABULARY, np.array(FORBIDDEN, np.int32), [EOS])
    request = begun(drafter, history, max_tokens)
    tree = drafter.propose([request], 9)[0]
    limit = min(tokens, 9, max_tokens - 2)
    expected = brute_force_lookup(history, longest, limit) if limit > 0 else []
    assert tree.tokens[1:].tolist() == expected
    assert tree.parents.tolist() == list(range(-1, len(expected)))
