"""Acceptance estimates: priors at zero counts, convergence, and bins that round-trip."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap import calibration
from recap.calibration import BetaCounts, Calibration


@given(st.floats(0, 1), st.floats(0.5, 50))
def test_the_prior_holds_without_counts(prior, strength):
    assert BetaCounts(1, strength).rate(0, prior) == pytest.approx(prior)


@given(st.integers(0, 40), st.integers(0, 40), st.floats(0, 1))
def test_the_rate_is_the_posterior_mean(good, bad, prior):
    counts = BetaCounts(2, 8.0)
    for accepted in [True] * good + [False] * bad:
        counts.add(1, accepted)
    assert counts.rate(1, prior) == pytest.approx((good + 8 * prior) / (good + bad + 8))
    assert counts.rate(0, prior) == pytest.approx(prior)


def test_counts_fade_so_that_a_change_is_followed():
    counts = BetaCounts(1, 8.0)
    for _ in range(100_000):
        counts.add(0, True)
    for _ in range(10_000):
        counts.add(0, False)
    assert counts.proposed[0] <= BetaCounts.MEMORY
    assert counts.rate(0, 0.5) < 0.1


@pytest.mark.parametrize("truth", [0.02, 0.5, 0.95])
def test_memory_estimates_converge_to_the_true_rate(truth):
    table, rng = Calibration(), np.random.default_rng(3)
    for _ in range(3000):
        estimate = table.memory(2, 1, [0.6, 0.2]).bins[1]
        table.observe(estimate, bool(rng.random() < truth))
    assert table.memory(2, 1, [0.6, 0.2]).rates[1] == pytest.approx(truth, abs=0.03)
    assert table.memory(2, 1, [0.6, 0.2]).rates[0] == Calibration().memory(2, 1, [0.6]).rates[0]


def test_suffix_and_joint_estimates_converge_and_stay_apart():
    table = Calibration()
    suffix = table.suffix(6, 0, 1, 3)
    fresh = Calibration().suffix(6, 0, 1, 3).rate
    memory = table.memory(3, 3, [0.9])
    joint = table.both(calibration.Estimate(memory.rates[0], memory.bins[0]), suffix)
    assert joint.rate == pytest.approx(max(memory.rates[0], suffix.rate))
    for _ in range(2000):
        table.observe(joint.bin, False)
    known = calibration.Estimate(table.memory(3, 3, [0.9]).rates[0], memory.bins[0])
    assert table.both(known, table.suffix(6, 0, 1, 3)).rate < 0.02
    assert table.suffix(6, 0, 1, 3).rate < 0.02 < fresh
    assert table.suffix(20, 0, 1, 3).rate > 0.5


@given(
    st.integers(0, 3),
    st.integers(1, 20),
    st.lists(st.floats(0, 1), min_size=1, max_size=16).map(lambda q: sorted(q, reverse=True)),
)
def test_memory_estimates_are_probabilities_and_bins_fit(kind, depth, ranked):
    for learning in (True, False):
        rates, bins = Calibration(learning).memory(kind, depth, ranked)
        assert len(rates) == len(bins) == len(ranked)
        assert all(0 <= rate <= 1 for rate in rates)
        assert all(0 <= code < 1 << 16 for code in bins)


def test_every_code_fits_sixteen_bits_and_names_its_bins():
    largest = calibration.MEMORY_BINS * (calibration.SUFFIX_BINS + 1) + calibration.SUFFIX_BINS
    assert largest < 1 << 16
    table = Calibration()
    table.observe(largest, True)
    assert table.memory_counts.proposed[-1] == 1
    assert table.suffix_counts.proposed[-1] == 1
    assert table.joint_counts.proposed[-1] == 1


def test_nothing_is_learnt_when_learning_is_off():
    table = Calibration(learning=False)
    before = table.suffix(3, 0, 1, 1), table.memory(1, 2, [0.5])
    table.observe(5, True)
    assert (table.suffix(3, 0, 1, 1), table.memory(1, 2, [0.5])) == before
    assert table.memory(1, 2, [0.5]).rates == pytest.approx([0.67 * 0.5])
    assert sum(table.suffix_counts.proposed) == 0


def test_buckets_cover_all_lengths_and_depths():
    lengths = [calibration.length_bucket(length) for length in range(1, 200)]
    depths = [calibration.depth_bucket(depth) for depth in range(1, 40)]
    assert lengths == sorted(lengths) and lengths[0] == 0
    assert lengths[-1] == calibration.SUFFIX_LENGTHS - 1
    assert depths == sorted(depths) and depths[0] == 0 and depths[-1] == calibration.DEPTHS - 1
