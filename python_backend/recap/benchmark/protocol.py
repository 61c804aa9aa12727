"""Runs arms over samples: same process, same engine, order rotated, ids compared.

Per sample every arm decodes once; the order rotates from sample to sample, so that drift of the
machine meets all arms alike. Warm-up runs use samples outside the measured set, and memories that
outlive a request are cleared after them (cold). Image decoding and patching are outside the
timing of all arms; the vision tower and the prefill are inside the end-to-end time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from recap.assembly import build_engine, join, stored_top_k
from recap.benchmark.arms import Arm
from recap.config import Settings
from recap.engines.vision import VisionEncoder
from recap.models.processor import Prompt, load_processor
from recap.requests import Chunk, GenerationRequest, GenerationStats
from recap.scheduler import Scheduler


class Sample(Protocol):
    """A prompt of a suite."""

    id: str
    family: str
    messages: list[dict]
    images: list[bytes]


@dataclass(frozen=True)
class Run:
    """One arm on one sample.

    Attributes:
        sample: Id of the sample.
        family: Its family.
        arm: Label of the arm.
        ids: int32 [m], emitted ids.
        stats: The scheduler's figures.
        total_s: Vision tower, prefill and decoding.
        decode_s: From the first token on.
        draft_s: Part of `decode_s` in the drafter; seeding belongs to the prefill.
        verify_s: Part of `total_s` in the text model's passes.
    """

    sample: str
    family: str
    arm: str
    ids: NDArray[np.int32]
    stats: GenerationStats
    total_s: float
    decode_s: float
    draft_s: float
    verify_s: float


class Collector:
    """A sink that keeps what arrives."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.error: Exception | None = None

    def emit(self, chunk: Chunk) -> None:
        """Keeps a chunk."""
        self.chunks.append(chunk)

    def fail(self, error: Exception) -> None:
        """Keeps the reason; the scheduler would swallow what is raised here."""
        self.error = error

    @property
    def ids(self) -> NDArray[np.int32]:
        """int32 [m], ids so far.

        Raises:
            Exception: Why the request failed, if it did.
        """
        if self.error is not None:
            raise self.error
        return np.concatenate([chunk.tokens for chunk in self.chunks])

    @property
    def text(self) -> str:
        """Text so far."""
        return "".join(chunk.text for chunk in self.chunks)


class Bench:
    """A model loaded once, and one scheduler per arm over it.

    Args:
        settings: Checkpoint and engine; the drafter section is replaced by each arm's.
        arms: What is compared.
        max_tokens: Most tokens per answer.
    """

    def __init__(self, settings: Settings, arms: Sequence[Arm], max_tokens: int) -> None:
        assert settings.model.checkpoint is not None, "load_settings sets the checkpoint"
        self.checkpoint = settings.model.checkpoint
        self.arms = list(arms)
        self.max_tokens = max_tokens
        self.processor = load_processor(self.checkpoint, settings.limits)
        self.vision = VisionEncoder(self.checkpoint, settings.engine)
        self.engine = build_engine(settings, max(stored_top_k(arm.drafter) for arm in self.arms))
        self.schedulers = {
            arm.label: join(settings.model_copy(update={"drafter": arm.drafter}), self.engine)
            for arm in arms
        }
        self.chunk_tokens = settings.engine.prefill_chunk_tokens

    def prepare(self, sample: Sample) -> Prompt:
        """Template, tokens and pixels of a sample."""
        return self.processor.from_messages(sample.messages, sample.images)

    def warm_up(self, samples: Iterable[Sample]) -> None:
        """Runs every arm on samples that are not measured, then clears persistent memories."""
        for sample in samples:
            prompt = self.prepare(sample)
            for arm in self.arms:
                self.run_one(sample, prompt, arm)
        for scheduler in self.schedulers.values():
            scheduler.drafter.reset_persistent()

    def measure(
        self, samples: Sequence[Sample], progress: Callable[[], object] = lambda: None
    ) -> list[Run]:
        """Every arm on every sample, the order of arms rotated by one per sample."""
        runs = []
        for number, sample in enumerate(samples):
            prompt = self.prepare(sample)
            shift = number % len(self.arms)
            for arm in self.arms[shift:] + self.arms[:shift]:
                runs.append(self.run_one(sample, prompt, arm))
            progress()
        return runs

    def request(self, prompt: Prompt) -> GenerationRequest:
        """Runs the vision tower and gives the request to submit."""
        features = self.vision.encode([prompt.pixel_values], [prompt.image_layout])[0]
        images = len(prompt.image_layout)
        return GenerationRequest(
            input_ids=prompt.input_ids,
            max_tokens=self.max_tokens,
            image_layout=prompt.image_layout if images else None,
            features=features if images else None,
        )

    def run_one(self, sample: Sample, prompt: Prompt, arm: Arm) -> Run:
        """One arm on one sample, alone."""
        scheduler = self.schedulers[arm.label]
        sink, times = Collector(), scheduler.times
        verify = times.verify_s
        begun = time.perf_counter()
        scheduler.submit(self.request(prompt), sink)
        for _ in range(-(-len(prompt.input_ids) // self.chunk_tokens)):
            scheduler.step()
        first, draft = time.perf_counter(), times.draft_s
        while scheduler.step():
            pass
        end = time.perf_counter()
        ids, stats = sink.ids, sink.chunks[-1].stats
        assert stats is not None, "the last chunk carries the figures"
        return Run(
            sample=sample.id,
            family=sample.family,
            arm=arm.label,
            ids=ids,
            stats=stats,
            total_s=end - begun,
            decode_s=end - first,
            draft_s=times.draft_s - draft,
            verify_s=times.verify_s - verify,
        )

    def run_together(
        self, prompts: Sequence[Prompt], arm: Arm, at_once: int
    ) -> list[NDArray[np.int32]]:
        """Ids of all prompts with `at_once` requests interleaved; a new one joins as one ends."""
        scheduler = self.schedulers[arm.label]
        sinks: list[Collector] = []
        waiting = list(prompts)
        while waiting or scheduler.running:
            while waiting and scheduler.running + scheduler.waiting < at_once:
                sinks.append(Collector())
                scheduler.submit(self.request(waiting.pop(0)), sinks[-1])
            _step(scheduler)
        return [sink.ids for sink in sinks]


def _step(scheduler: Scheduler) -> None:
    if not scheduler.step():
        raise RuntimeError("the scheduler is idle with requests open")
