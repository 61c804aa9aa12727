"""Prompts in pieces: which prompt tokens join the next pass, and what they predict.

Called by the scheduler; works on jobs and plain arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

import numpy as np

from recap.engines.base import PrefillChunk
from recap.job import Job
from recap.predictions import Predictions, PromptPredictions


def plan_chunks(
    jobs: Iterable[Job], limit: int, chunked: bool, seed: bool
) -> list[tuple[Job, PrefillChunk]]:
    """The next piece of every prompt under way, in the order of `jobs`.

    Args:
        jobs: Active jobs; those that decode already are passed over.
        limit: Most prompt tokens in one pass, all newcomers together, so that requests that
            decode wait for no more than this.
        chunked: Whether the engine can split a prompt. Otherwise whole prompts are taken while
            they fit, and always at least one, or a long one would never be served.
        seed: Whether predictions at all text positions are wanted.
    """
    left = limit
    chunks: list[tuple[Job, PrefillChunk]] = []
    for job in jobs:
        if job.decoding:
            continue
        whole = job.sequence.prompt_length - job.prefilled
        take = min(whole, left) if chunked else whole
        if take == 0 or (take > left and chunks):
            break
        left -= take
        chunks.append((job, _cut(job, take, seed)))
    return chunks


def _cut(job: Job, take: int, seed: bool) -> PrefillChunk:
    part = slice(job.prefilled, job.prefilled + take)
    is_image = job.layout.is_image[part]
    last = part.stop == job.sequence.prompt_length
    features = None
    if count := int(is_image.sum()):
        assert job.request.features is not None
        features = job.request.features[job.features_used : job.features_used + count]
        job.features_used += count
    wanted = np.empty(0, np.int32)
    if seed:
        # The last position's prediction is returned in any case.
        wanted = np.flatnonzero(~is_image[:-1] if last else ~is_image).astype(np.int32)
    return PrefillChunk(
        slot=job.sequence.slot,
        ids=job.sequence.buffer[part],
        positions=job.layout.positions[:, part],
        is_image=is_image,
        features=features,
        last=last,
        wanted=wanted,
    )


def record_chunk(job: Job, chunk: PrefillChunk, rows: Predictions, seed: bool) -> None:
    """Notes that a chunk is in the KV cache, and keeps its predictions when they are wanted."""
    if seed:
        positions = chunk.wanted
        if chunk.last:
            positions = np.append(positions, np.int32(len(chunk.ids) - 1))
        job.seed_positions.append((positions + job.prefilled).astype(np.int32))
        job.seed_rows.append(rows)
    job.prefilled += len(chunk.ids)


def take_seed(job: Job) -> PromptPredictions | None:
    """Predictions at the prompt's text positions; None when none were wanted."""
    if not job.seed_rows:
        return None
    seed = PromptPredictions(np.concatenate(job.seed_positions), _concatenate(job.seed_rows))
    job.seed_positions, job.seed_rows = [], []
    return seed


def _concatenate(rows: Seq[Predictions]) -> Predictions:
    return Predictions(
        np.concatenate([each.ids for each in rows]),
        np.concatenate([each.probs for each in rows]),
        np.concatenate([each.entropy for each in rows]),
    )
