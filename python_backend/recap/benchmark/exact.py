"""Does a drafting method change any token? Compared with transformers' own `generate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recap.benchmark.arms import Arm
from recap.benchmark.protocol import Bench, Sample
from recap.models.processor import Prompt
from recap.models.reference import ReferenceModel

TIE = 1e-4
"""Score gap below which two tokens count as tied: float32 sums differ in order between shapes."""


@dataclass
class Verdict:
    """One arm in one way of running, against the reference.

    Attributes:
        name: Arm and way.
        samples: Samples compared.
        tokens: Tokens of the reference.
        ties: Samples that part from the reference at a tie.
        wrong: One line per sample that parts from it at no tie.
    """

    name: str
    samples: int = 0
    tokens: int = 0
    ties: int = 0
    wrong: list[str] = field(default_factory=list)


def check(
    bench: Bench,
    reference: ReferenceModel,
    samples: Sequence[Sample],
    at_once: int,
    progress: Callable[[], object] = lambda: None,
) -> list[Verdict]:
    """Ids of every arm, alone and with `at_once` requests interleaved, against `generate`.

    Args:
        bench: Loaded model and arms.
        reference: The same checkpoint in transformers.
        samples: Prompts.
        at_once: Requests in flight in the second way.
        progress: Called once per sample, and once per arm for the interleaved way.
    """
    prompts = [bench.prepare(sample) for sample in samples]
    expected = []
    alone = {arm.label: Verdict(f"{arm.label}, alone") for arm in bench.arms}
    for sample, prompt in zip(samples, prompts, strict=True):
        truth = reference.generate(
            prompt.input_ids, prompt.pixel_values, prompt.image_layout, bench.max_tokens
        )
        expected.append(truth)
        for arm in bench.arms:
            ids = bench.run_one(sample, prompt, arm).ids
            _compare(alone[arm.label], sample, prompt, truth, ids, reference)
        progress()
    verdicts = list(alone.values())
    for arm in bench.arms:
        verdict = Verdict(f"{arm.label}, {at_once} at once")
        together = bench.run_together(prompts, arm, at_once)
        for sample, prompt, truth, ids in zip(samples, prompts, expected, together, strict=True):
            _compare(verdict, sample, prompt, truth, ids, reference)
        verdicts.append(verdict)
        progress()
    return verdicts


def arms_total(samples: int, arms: Sequence[Arm]) -> int:
    """How often `check` reports progress."""
    return samples + len(arms)


def _compare(
    verdict: Verdict,
    sample: Sample,
    prompt: Prompt,
    truth: NDArray[np.int32],
    ids: NDArray[np.int32],
    reference: ReferenceModel,
) -> None:
    verdict.samples += 1
    verdict.tokens += len(truth)
    if np.array_equal(truth, ids):
        return
    common = min(len(truth), len(ids))
    differs = np.flatnonzero(truth[:common] != ids[:common])
    if not len(differs):
        verdict.wrong.append(f"{sample.id}: {len(ids)} tokens, expected {len(truth)}")
        return
    place = int(differs[0])
    gap = reference.gap(
        prompt.input_ids,
        prompt.pixel_values,
        prompt.image_layout,
        truth[: place + 1],
        int(ids[place]),
    )
    if abs(gap) < TIE:
        verdict.ties += 1
    else:
        verdict.wrong.append(f"{sample.id}: token {place} is {ids[place]}, score gap {gap:.4f}")
