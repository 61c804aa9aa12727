"""From runs to figures: MAT, paired speedups with bootstrap intervals, losslessness.

Definitions are those of docs/benchmarks.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from recap.benchmark.arms import Arm
from recap.benchmark.protocol import Run

BOOTSTRAP_ROUNDS = 2000


@dataclass(frozen=True)
class Ratio:
    """A paired per-sample ratio of wall times.

    Attributes:
        mean: Mean over samples.
        median: Median over samples.
        low: Lower end of the bootstrap 95 % interval of the mean.
        high: Upper end.
    """

    mean: float
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class ArmFigures:
    """Figures of one arm.

    Attributes:
        label: The arm's.
        method: The arm's.
        nodes: The arm's.
        mat: Tokens emitted per verify pass over all samples; the prefill's token is not counted.
        mat_by_family: The same by family.
        speedup: Plain decoding's end-to-end time by this arm's.
        decode_speedup: The same without vision tower and prefill.
        speedup_by_family: Mean end-to-end speedup by family.
        identical: Samples whose ids equal plain decoding's.
        samples: All samples.
        step_ms: Milliseconds per decode step.
        draft_ms: Part of it in the drafter.
        acceptance: Accepted share of the drafts.
    """

    label: str
    method: str
    nodes: int
    mat: float
    mat_by_family: dict[str, float]
    speedup: Ratio
    decode_speedup: Ratio
    speedup_by_family: dict[str, float]
    identical: int
    samples: int
    step_ms: float
    draft_ms: float
    acceptance: float

    def as_json(self) -> dict:
        """Plain dictionaries and numbers."""
        return asdict(self)


def mean_accepted_tokens(runs: Iterable[Run]) -> float:
    """MAT over runs: emitted tokens by verify passes, both summed; nan without passes."""
    stats = [run.stats for run in runs]
    steps = sum(each.num_decode_steps for each in stats)
    emitted = sum(each.num_output_tokens - 1 for each in stats)
    return emitted / steps if steps else float("nan")


def summarise(arms: Sequence[Arm], runs: Sequence[Run]) -> list[ArmFigures]:
    """Figures of every arm; the first arm is plain decoding and the denominator of all ratios."""
    plain = {run.sample: run for run in runs if run.arm == arms[0].label}
    return [_summarise(arm, [run for run in runs if run.arm == arm.label], plain) for arm in arms]


def _summarise(arm: Arm, runs: Sequence[Run], plain: dict[str, Run]) -> ArmFigures:
    families = sorted({run.family for run in runs})
    steps = sum(run.stats.num_decode_steps for run in runs)
    drafted = sum(run.stats.total_draft_tokens for run in runs)
    accepted = sum(run.stats.total_accepted_draft_tokens for run in runs)
    total = np.array([plain[run.sample].total_s / run.total_s for run in runs])
    # A one-token answer has no decode time to compare.
    decode = np.array(
        [plain[run.sample].decode_s / run.decode_s for run in runs if run.stats.num_decode_steps]
    )
    return ArmFigures(
        label=arm.label,
        method=arm.method,
        nodes=arm.nodes,
        mat=mean_accepted_tokens(runs),
        mat_by_family={
            family: mean_accepted_tokens(run for run in runs if run.family == family)
            for family in families
        },
        speedup=ratio(total),
        decode_speedup=ratio(decode),
        speedup_by_family={
            family: float(total[[run.family == family for run in runs]].mean())
            for family in families
        },
        identical=sum(np.array_equal(run.ids, plain[run.sample].ids) for run in runs),
        samples=len(runs),
        step_ms=1e3 * sum(run.decode_s for run in runs) / max(steps, 1),
        draft_ms=1e3 * sum(run.draft_s for run in runs) / max(steps, 1),
        acceptance=accepted / max(drafted, 1),
    )


def ratio(values: NDArray[np.floating], seed: int = 0) -> Ratio:
    """Mean, median and percentile-bootstrap interval of the mean of float [n] values.

    All are nan where there are none.
    """
    if not len(values):
        return Ratio(*[float("nan")] * 4)
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(values), (BOOTSTRAP_ROUNDS, len(values)))
    low, high = np.percentile(values[picks].mean(1), [2.5, 97.5])
    return Ratio(float(values.mean()), float(np.median(values)), float(low), float(high))


def table(figures: Sequence[ArmFigures]) -> str:
    """Markdown: one line per arm over all families."""
    lines = [
        "| arm | MAT | speedup, end to end (95 %) | median | decode only | ms a step "
        "| of it drafting | drafts accepted | same ids |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in figures:
        s, d = each.speedup, each.decode_speedup
        lines.append(
            f"| {each.label} | {each.mat:.2f} | {s.mean:.2f} ({s.low:.2f} to {s.high:.2f}) "
            f"| {s.median:.2f} | {d.mean:.2f} | {each.step_ms:.2f} | {each.draft_ms:.2f} "
            f"| {each.acceptance:.3f} | {each.identical}/{each.samples} |"
        )
    return "\n".join(lines)


def family_table(figures: Sequence[ArmFigures]) -> str:
    """Markdown: MAT and end-to-end speedup by family, one column per arm."""
    families = list(figures[0].mat_by_family)
    lines = [
        "| family | " + " | ".join(each.label for each in figures) + " |",
        "| --- |" + " --- |" * len(figures),
    ]
    for family in families:
        cells = (
            f"{each.mat_by_family[family]:.2f} ({each.speedup_by_family[family]:.2f}x)"
            for each in figures
        )
        lines.append(f"| {family} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
