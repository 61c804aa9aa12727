"""Fusion against its formula."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.fusion import fuse, weights

CONCENTRATIONS = st.floats(0, 1)


@st.composite
def entries(draw):
    """Up to four hits, most specific first: their kinds and stored predictions."""
    kinds = sorted(draw(st.sets(st.integers(0, 3), min_size=1)), reverse=True)
    found = []
    for _ in kinds:
        ids = draw(st.lists(st.integers(-1, 12), min_size=4, max_size=4, unique=True))
        probs = sorted(draw(st.lists(st.floats(0.001, 0.25), min_size=4, max_size=4)))[::-1]
        found.append((ids, probs, draw(CONCENTRATIONS)))
    return kinds, found


@given(entries())
def test_entropy_confidence_fusion_equals_its_formula(hits):
    kinds, found = hits
    raw = [
        {0: 0.2, 1: 1.0, 2: 3.0, 3: 9.0}[kind] * spread * probs[0] + 1e-4
        for kind, (_, probs, spread) in zip(kinds, found, strict=True)
    ]
    expected = {}
    for weight, (ids, probs, _) in zip(raw, found, strict=True):
        for token, prob in zip(ids, probs, strict=True):
            if token >= 0:
                expected[token] = expected.get(token, 0) + weight * prob / math.fsum(raw)
    tokens, q = fuse(weights("entropy", kinds, found), found, 99)
    assert dict(zip(tokens, q, strict=True)) == pytest.approx(expected)
    assert q == sorted(q, reverse=True)


@given(entries(), st.integers(1, 6))
def test_the_limit_keeps_the_best(hits, limit):
    kinds, found = hits
    shares = weights("uniform", kinds, found)
    everything = fuse(shares, found, 99)
    some = fuse(shares, found, limit)
    assert some.tokens == everything.tokens[:limit]
    assert some.q == everything.q[:limit]


@given(entries())
def test_backoff_takes_the_longest_key_alone(hits):
    kinds, found = hits
    ids, probs, _ = found[0]
    tokens, q = fuse(weights("backoff", kinds, found), found, 99)
    expected = {token: prob for token, prob in zip(ids, probs, strict=True) if token >= 0}
    assert dict(zip(tokens, q, strict=True)) == pytest.approx(expected)


@given(entries(), st.sampled_from(["entropy", "backoff", "uniform"]))
def test_weights_sum_to_one(hits, rule):
    kinds, found = hits
    shares = weights(rule, kinds, found)
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= 0
