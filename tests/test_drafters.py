"""All drafters under one contract; test_drafter_methods.py holds each to its own definition."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.config import DrafterSettings
from recap.drafters import Drafter, Source, make_drafter
from recap.predictions import Predictions, PromptPredictions
from recap.sequence import Sequence
from recap.tree import CandidateTree
from tests.test_tree import check_tree

VOCABULARY = 30
FORBIDDEN = [0, 7]
EOS = 3
TOP_K = 8

VARIANTS: dict[str, dict] = {
    "recap": {"method": "recap"},
    "recap, raw": {"method": "recap", "recap": {"calibrated": False}},
    "recap, pairs": {"method": "recap", "recap": {"key_lengths": (2,), "fusion": "backoff"}},
    "recap, own": {"method": "recap", "recap": {"persistent": False, "recycle_rejected": False}},
    "recap, wide": {"method": "recap", "recap": {"top_k": 12, "contextual_entries": 64}},
    "recap, no suffix": {"method": "recap", "recap": {"suffix": False, "fusion": "uniform"}},
    "token recycling": {"method": "token_recycling"},
    "rank cost": {
        "method": "token_recycling",
        "token_recycling": {"tree": "rank_cost", "persistent": False, "seed_from_prompt": True},
    },
    "prompt lookup": {"method": "prompt_lookup"},
    "autoregressive": {"method": "autoregressive"},
}


def make(name: str) -> Drafter:
    return make_drafter(
        DrafterSettings.model_validate(VARIANTS[name]),
        VOCABULARY,
        np.array([*FORBIDDEN, -1, 10**6], np.int32),
        [EOS],
    )


def predictions(rng: np.random.Generator, rows: int) -> Predictions:
    """Random predictions, ids beyond the vocabulary and forbidden ones included."""
    ids = np.array([rng.permutation(VOCABULARY + 4)[:TOP_K] for _ in range(rows)], np.int32)
    probs = -np.sort(-rng.dirichlet(np.full(TOP_K, 0.3), rows).astype(np.float32))
    return Predictions(
        ids.reshape(rows, TOP_K), probs.reshape(rows, TOP_K), np.zeros(rows, np.float32)
    )


def random_walk(rng: np.random.Generator, tree: CandidateTree) -> np.ndarray:
    """A path that a target might accept: to a random node."""
    row = int(rng.integers(0, tree.nodes + 1))
    path = [row]
    while path[-1] != 0:
        path.append(int(tree.parents[path[-1]]))
    return np.array(path[::-1], np.int32)


def start(rng: np.random.Generator, key: int, max_tokens: int) -> Sequence:
    request = Sequence.start(
        key, rng.integers(0, 12, rng.integers(1, 30)).astype(np.int32), max_tokens
    )
    request.append(np.array([rng.integers(0, VOCABULARY)], np.int32))
    return request


def seed_for(rng: np.random.Generator, request: Sequence) -> PromptPredictions:
    positions = np.flatnonzero(rng.random(request.prompt_length) < 0.8).astype(np.int32)
    return PromptPredictions(positions, predictions(rng, len(positions)))


def step(
    drafter: Drafter,
    rng: np.random.Generator,
    requests: list[Sequence],
    nodes: int,
    check: Callable[[Sequence, CandidateTree], None],
) -> None:
    """One propose-verify-observe-commit round with a random target."""
    trees = drafter.propose(requests, nodes)
    for request, tree in zip(requests, trees, strict=True):
        check(request, tree)
    passes = [predictions(rng, tree.nodes + 1) for tree in trees]
    paths = [random_walk(rng, tree) for tree in trees]
    drafter.observe(requests, trees, passes, paths)
    for request, tree, path in zip(requests, trees, paths, strict=True):
        bonus = np.array([rng.integers(0, VOCABULARY)], np.int32)
        request.append(np.concatenate([tree.tokens[path[1:]], bonus]))


@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), total=st.integers(0, 120))
def test_trees_keep_the_contract(name, seed, total):
    rng = np.random.default_rng(seed)
    drafter = make(name)
    requests = [start(rng, key, int(rng.integers(1, 40))) for key in range(int(rng.integers(1, 4)))]

    def check(request: Sequence, tree: CandidateTree) -> None:
        published = name == "token recycling" and total >= len(requests)
        budget = 80 if published else total // len(requests)
        check_tree(tree, budget, request.remaining - 1)
        assert tree.tokens[0] == request.history[-1]
        drafts = tree.tokens[1:]
        assert not np.isin(drafts, FORBIDDEN).any()
        assert ((drafts >= 0) & (drafts < VOCABULARY)).all()
        inner = tree.parents[1:][tree.parents[1:] > 0]
        assert not (tree.tokens[inner] == EOS).any()
        assert (tree.source[1:] != Source.ROOT).all() and tree.source[0] == Source.ROOT
        assert ((tree.score >= 0) & (tree.score <= 1)).all() and tree.score[0] == 1

    for request in requests:
        drafter.begin(request, seed_for(rng, request) if rng.random() < 0.7 else None)
    for _ in range(8):
        requests = [request for request in requests if request.remaining > 0]
        if not requests:
            break
        step(drafter, rng, requests, total, check)
    for request in requests:
        drafter.end(request)
        drafter.end(request)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "autoregressive"])
def test_something_is_drafted(name):
    """Guards the test above against passing on empty trees."""
    rng = np.random.default_rng(1)
    drafter, drafted = make(name), []
    request = start(rng, 1, 200)
    drafter.begin(request, seed_for(rng, request))
    for _ in range(20):
        step(drafter, rng, [request], 20, lambda _, tree: drafted.append(tree.nodes))
    assert sum(drafted) > 20


@pytest.mark.parametrize("name", VARIANTS)
def test_no_requests_no_trees(name):
    drafter = make(name)
    assert drafter.propose([], 10) == []
    drafter.observe([], [], [], [])


def run_alone(name: str, script_seed: int, noise: bool) -> list[list[int]]:
    """Trees of one request, optionally with others interleaved and aborted around it."""
    rng, other_rng = np.random.default_rng(script_seed), np.random.default_rng(99)
    drafter, trees = make(name), []
    request = start(rng, 1, 100)
    drafter.begin(request, seed_for(rng, request))
    for turn in range(10):
        if noise:
            other = start(other_rng, 100 + turn, 50)
            drafter.begin(other, seed_for(other_rng, other))
            step(drafter, other_rng, [other], 20, lambda *_: None)
            if turn % 2:
                drafter.end(other)  # aborted in the middle of its answer
        step(drafter, rng, [request], 20, lambda _, tree: trees.append(tree.tokens.tolist()))
    drafter.end(request)
    return trees


@pytest.mark.parametrize("name", ["recap, own", "rank cost", "prompt lookup"])
def test_nothing_of_one_request_reaches_another(name):
    """Without the persistent memory, company changes nothing that is proposed.

    Calibration is about kinds of proposals and does persist, so it is switched off here.
    """
    VARIANTS["isolated"] = {**VARIANTS[name]}
    if name == "recap, own":
        recap = {**VARIANTS[name]["recap"], "calibrated": False}
        VARIANTS["isolated"] = {"method": "recap", "recap": recap}
    try:
        assert run_alone("isolated", 4, noise=False) == run_alone("isolated", 4, noise=True)
    finally:
        del VARIANTS["isolated"]


def test_the_persistent_memory_is_the_way_between_requests():
    """The other side of the test above: it can tell a leak from none."""
    assert run_alone("recap", 4, noise=False) != run_alone("recap", 4, noise=True)


def test_every_outcome_destroys_the_request_s_memories():
    rng = np.random.default_rng(2)
    drafter = make("recap")
    requests = [start(rng, key, 20) for key in range(6)]
    for request in requests:
        drafter.begin(request, None)
    assert drafter.open_requests == 6
    step(drafter, rng, requests[:3], 30, lambda *_: None)
    for request in requests:
        drafter.end(request)
        drafter.end(request)
    drafter.end(start(rng, 77, 5))  # never begun
    assert drafter.open_requests == 0


@pytest.mark.parametrize("name", VARIANTS)
def test_reset_is_a_new_process(name):
    rng = np.random.default_rng(8)
    used, fresh = make(name), make(name)
    warm = start(rng, 1, 60)
    used.begin(warm, seed_for(rng, warm))
    for _ in range(5):
        step(used, rng, [warm], 20, lambda *_: None)
    used.end(warm)
    used.reset_persistent()
    assert later_trees(used) == later_trees(fresh)


def later_trees(drafter: Drafter) -> list[list[int]]:
    rng, trees = np.random.default_rng(9), []
    request = start(rng, 2, 60)
    drafter.begin(request, seed_for(rng, request))
    for _ in range(5):
        step(drafter, rng, [request], 20, lambda _, tree: trees.append(tree.tokens.tolist()))
    return trees
