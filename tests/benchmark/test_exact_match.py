"""Every drafting method gives the ids of transformers' own `generate`, alone and interleaved."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from engine_build.tiny_vlm.suite import load_suite
from recap.benchmark import exact
from recap.benchmark.arms import make_arms
from recap.benchmark.protocol import Bench
from recap.config import load_settings
from recap.errors import EngineError
from recap.models.reference import ReferenceModel

ROOT = Path(__file__).resolve().parents[2]
PER_FAMILY = 2


@pytest.fixture(scope="module")
def bench() -> Bench:
    settings = load_settings(ROOT, engine={"device": "cpu", "threads": 1, "slots": 4})
    arms = make_arms(["recap", "token_recycling", "prompt_lookup"], [15])
    return Bench(settings, arms, max_tokens=64)


@pytest.fixture(scope="module")
def reference(bench) -> ReferenceModel:
    return ReferenceModel(bench.checkpoint)


def test_ids_equal_generate_alone_and_interleaved(bench, reference) -> None:
    samples = load_suite("mini", per_family=PER_FAMILY)
    assert {"two_image", "second_turn", "text_only"} < {sample.family for sample in samples}
    verdicts = exact.check(bench, reference, samples, at_once=4)
    assert len(verdicts) == 2 * len(bench.arms)
    for verdict in verdicts:
        assert verdict.samples == len(samples)
        assert not verdict.wrong, verdict
        # Near-ties are possible in float32, but rare: at most one in 100,000 tokens is published.
        assert verdict.ties <= 1, verdict


def test_the_reference_is_plain_greedy_whatever_the_checkpoint_ships(
    bench, reference, tmp_path
) -> None:
    """`generate(do_sample=False)` applies the penalties of generation_config.json."""
    checkpoint = shutil.copytree(bench.checkpoint, tmp_path / "checkpoint")
    path = checkpoint / "generation_config.json"
    shipped = json.loads(path.read_text()) | {"repetition_penalty": 3.0}
    path.write_text(json.dumps(shipped))
    prompt = bench.prepare(load_suite("mini", per_family=1)[0])
    inputs = (prompt.input_ids, prompt.pixel_values, prompt.image_layout, 32)
    plain = reference.generate(*inputs)
    np.testing.assert_array_equal(ReferenceModel(checkpoint).generate(*inputs), plain)


def test_a_failed_request_is_told_by_its_own_error(bench, monkeypatch) -> None:
    def broken(work) -> None:
        raise EngineError("the device is gone")

    sample, arm = load_suite("mini", per_family=1)[0], bench.arms[1]
    prompt = bench.prepare(sample)
    monkeypatch.setattr(bench.engine, "submit", broken)
    with pytest.raises(EngineError, match="the device is gone"):
        bench.run_one(sample, prompt, arm)
    with pytest.raises(EngineError, match="the device is gone"):
        bench.run_together([prompt, prompt], arm, 2)


def test_the_check_notices_a_wrong_id(bench, reference) -> None:
    sample = load_suite("mini", per_family=1)[0]
    prompt = bench.prepare(sample)
    truth = reference.generate(prompt.input_ids, prompt.pixel_values, prompt.image_layout, 8)
    wrong = truth.copy()
    wrong[3] = (wrong[3] + 1) % 500
    for ids in (wrong, truth[:-1]):
        verdict = exact.Verdict("x")
        exact._compare(verdict, sample, prompt, truth, ids, reference)
        assert len(verdict.wrong) == 1 and verdict.ties == 0
    verdict = exact.Verdict("x")
    exact._compare(verdict, sample, prompt, truth, np.array(truth), reference)
    assert not verdict.wrong and not verdict.ties
