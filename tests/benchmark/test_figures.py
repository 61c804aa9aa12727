"""Figures follow their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from recap.benchmark.arms import PLAIN, PUBLISHED_TREE_NODES, make_arms
from recap.benchmark.figures import family_table, ratio, summarise, table
from recap.benchmark.plot import draw
from recap.benchmark.protocol import Run
from recap.requests import GenerationStats


def _run(arm: str, sample: str, family: str, steps: int, total: float, ids=(1, 2, 3, 4, 5)):
    stats = GenerationStats(10, len(ids), steps, 8 * steps, len(ids) - 1 - steps)
    return Run(sample, family, arm, np.array(ids), stats, total, total / 2, 0.1, 0.2)


@pytest.fixture
def figures():
    arms = [PLAIN, *make_arms(["recap"], [8])[1:]]
    label = arms[1].label
    runs = [
        _run(PLAIN.label, "a", "x", 4, 4.0),
        _run(PLAIN.label, "b", "y", 4, 4.0),
        _run(label, "a", "x", 1, 1.0),
        _run(label, "b", "y", 3, 2.0, ids=(1, 2, 3, 4, 6)),
    ]
    return summarise(arms, runs)


def test_mat_counts_emitted_tokens_by_verify_passes(figures) -> None:
    plain, drafted = figures
    assert plain.mat == 1.0
    assert drafted.mat == pytest.approx((4 + 4) / (1 + 3))
    assert drafted.mat_by_family == {"x": 4.0, "y": pytest.approx(4 / 3)}


def test_speedups_are_paired_per_sample(figures) -> None:
    assert figures[0].speedup.mean == 1.0
    assert figures[1].speedup.mean == pytest.approx((4.0 / 1.0 + 4.0 / 2.0) / 2)
    assert figures[1].speedup_by_family == {"x": 4.0, "y": 2.0}


def test_a_changed_id_shows(figures) -> None:
    assert (figures[0].identical, figures[1].identical) == (2, 1)


def test_interval_holds_the_mean_and_shrinks_with_samples() -> None:
    rng = np.random.default_rng(1)
    few, many = ratio(rng.normal(2, 0.5, 10)), ratio(rng.normal(2, 0.5, 1000))
    assert few.low < few.mean < few.high
    assert many.high - many.low < few.high - few.low
    assert many.low < 2 < many.high


def test_no_decode_step_anywhere_is_no_error() -> None:
    """One-token answers have nothing to compare but the whole time."""
    arms = make_arms(["recap"], [8])
    runs = [_run(arm.label, "a", "x", 0, 1.0, ids=(1,)) for arm in arms]
    for each in summarise(arms, runs):
        assert np.isnan([each.mat, each.decode_speedup.mean, each.decode_speedup.low]).all()
        assert each.speedup.mean == 1.0


def test_an_arm_asked_for_twice_is_one_arm() -> None:
    arms = make_arms(["recap", "prompt_lookup", "recap", "prompt_lookup"], [7, 7])
    assert [arm.method for arm in arms] == ["autoregressive", "recap", "prompt_lookup"]


def test_arms_cover_the_published_template_and_every_node_count() -> None:
    arms = make_arms(["ar", "prompt_lookup", "token_recycling", "recap"], [7, 63])
    assert arms[0] is PLAIN and sum(arm.method == "autoregressive" for arm in arms) == 1
    recycling = [
        (arm.drafter.token_recycling.tree, arm.nodes)
        for arm in arms
        if arm.method == "token_recycling"
    ]
    assert recycling == [("published", PUBLISHED_TREE_NODES), ("rank_cost", 7), ("rank_cost", 63)]
    assert [arm.nodes for arm in arms if arm.method == "recap"] == [7, 63]
    assert len({arm.label for arm in arms}) == len(arms)
    with pytest.raises(ValueError, match="magic"):
        make_arms(["magic"], [7])


def test_tables_and_picture_show_every_arm(figures, tmp_path) -> None:
    for text in (table(figures), family_table(figures)):
        assert all(each.label in text for each in figures)
    draw(figures, "title", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
