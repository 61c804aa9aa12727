"""Continuous batching: admission, prefill, draft, verify, commit, emit.

One `step` is one pass of the target over everything active; requests join and leave between
steps. `submit`, `stop` and `cancel` may come from any thread; all else happens on the thread
that calls `step` (the scheduler's own after `start`). Knows no tensors of a server, no torch and
no text beyond the detokenizer.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recap.acceptance import accept_greedy
from recap.budget import FixedBudget
from recap.config import LimitSettings
from recap.drafters import Drafter
from recap.engines.base import Engine, Handle, Pass, PrefillChunk, TreeVerification
from recap.errors import CapacityError, EngineError, NotFoundError, RecapError
from recap.job import Job, open_job
from recap.predictions import Predictions
from recap.prefill import plan_chunks, record_chunk, take_seed
from recap.requests import Chunk, FinishReason, GenerationRequest, Sink, Vocabulary
from recap.tree import CandidateTree

_log = logging.getLogger(__name__)

IDLE_WAKE_S = 1.0
"""How long an idle loop sleeps at most; work wakes it at once."""


@dataclass
class StepTimes:
    """Seconds spent so far, by what they were spent on, and steps taken.

    `verify_s` is the engine's passes, prefill chunks and commits included; `draft_s` is what the
    drafter took; what is left of `total_s` is the scheduler's own work and the sinks.
    """

    draft_s: float = 0.0
    verify_s: float = 0.0
    total_s: float = 0.0
    steps: int = 0


class Scheduler:
    """Runs requests through one engine with one drafter.

    Args:
        engine: The target model. From here on only this scheduler calls it.
        drafter: Proposes drafts; any drafter gives the same text.
        budget: How many drafts a pass verifies.
        vocabulary: Decoding and end tokens.
        limits: What a request may ask for.
        prefill_chunk_tokens: Most prompt tokens in one pass, all newcomers together.
        seed_from_prompt: Whether the drafter wants the prefill's own predictions.
    """

    def __init__(
        self,
        engine: Engine,
        drafter: Drafter,
        budget: FixedBudget,
        vocabulary: Vocabulary,
        limits: LimitSettings,
        prefill_chunk_tokens: int = 512,
        seed_from_prompt: bool = True,
    ) -> None:
        self.engine = engine
        self.drafter = drafter
        self.budget = budget
        self.vocabulary = vocabulary
        self.limits = limits
        self.times = StepTimes()
        self._chunk_tokens = prefill_chunk_tokens
        self._seed = seed_from_prompt and engine.capabilities.prompt_predictions
        self._keys = itertools.count(1)
        self._waiting: deque[Job] = deque()
        self._active: list[Job] = []
        # Guards the two collections, `cancelled` and `_closing`. Taken again by its holder in
        # places, so the lock inside has to be reentrant.
        self._wake = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None
        self._closing = False

    # Called from any thread.

    def submit(self, request: GenerationRequest, sink: Sink) -> int:
        """Accepts a request and returns its key; from now on `sink` hears exactly one end.

        Raises:
            InvalidRequestError: A field breaks a rule.
            CapacityError: The waiting queue is full, or the scheduler is closing.
        """
        job = open_job(next(self._keys), request, sink, self.engine, self.limits, self.vocabulary)
        with self._wake:
            if self._closing:
                raise CapacityError("the server is shutting down")
            free = self.engine.capabilities.slots - len(self._active)
            if len(self._waiting) >= free + self.limits.max_waiting:
                raise CapacityError(
                    f"{len(self._active)} requests are running and {len(self._waiting)} waiting; "
                    f"at most {self.limits.max_waiting} may wait (limits.max_waiting)"
                )
            self._waiting.append(job)
            self._wake.notify_all()
        return job.key

    def stop(self, request_id: str) -> None:
        """Ends every open request of that client id before its next step.

        Raises:
            NotFoundError: No open request has the id.
        """
        with self._wake:
            jobs = [job for job in self._open() if job.request.request_id == request_id]
            if not request_id or not jobs:
                raise NotFoundError(f"no running request has the id {request_id[:128]!r}")
            for job in jobs:
                job.cancelled = True
            self._wake.notify_all()

    def cancel(self, key: int) -> None:
        """Ends one request before its next step; harmless when it has ended already."""
        with self._wake:
            for job in self._open():
                if job.key == key:
                    job.cancelled = True
            self._wake.notify_all()

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return len(self._active)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._waiting)

    def start(self) -> None:
        """Runs steps on a thread of the scheduler's own until `close`."""
        assert self._thread is None, "started twice"
        self._thread = threading.Thread(target=self._loop, name="recap-scheduler", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Stops taking requests, fails the open ones, and ends the thread.

        Args:
            timeout_s: How long to wait for the step under way.
        """
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        stuck = False
        if self._thread is not None:
            self._thread.join(timeout_s)
            stuck = self._thread.is_alive()
            if stuck:
                _log.error("the scheduler's step did not end within %.1f s", timeout_s)
        with self._wake:
            jobs = self._open()
        for job in jobs:
            # Engine and drafter belong to the thread that is still in them.
            self._end(job, CapacityError("the server is shutting down"), free=not stuck)

    # Called on the stepping thread only.

    def step(self) -> bool:
        """Runs one pass over all active requests.

        Returns:
            False when there was nothing to do.
        """
        begun = time.perf_counter()
        try:
            self._drop_cancelled()
            self._admit()
            if not self._active:
                return False
            self._run_pass()
        except Exception as error:
            # What the engine holds is unknown for every slot of the pass: none may go on.
            _log.exception("a step failed; its %d requests end", len(self._active))
            # The door has checked what clients send: no other error is one request's own.
            known = isinstance(error, (EngineError, CapacityError))
            reason = error if known else EngineError("a decode step failed")
            for job in [each for each in self._open() if each.cancelled or each in self._active]:
                self._end(job, reason)
        self.times.total_s += time.perf_counter() - begun
        self.times.steps += 1
        return True

    def _loop(self) -> None:
        while True:
            with self._wake:
                if self._closing:
                    return
                if not self._waiting and not self._active:
                    self._wake.wait(IDLE_WAKE_S)
            self.step()

    def _open(self) -> list[Job]:
        return [*self._active, *self._waiting]

    def _drop_cancelled(self) -> None:
        with self._wake:
            doomed = [job for job in self._open() if job.cancelled]
        for job in doomed:
            self._finish(job, np.empty(0, np.int32), "cancelled")

    def _admit(self) -> None:
        """Moves waiting requests, first come first served, into slots while there are any."""
        while True:
            with self._wake:
                if not self._waiting:
                    return
                job = self._waiting[0]
                try:
                    job.sequence.slot = self.engine.allocate(len(job.sequence.buffer))
                except CapacityError as error:
                    if self._active:
                        return
                    # Nothing runs whose end could make room: waiting on would be for good.
                    self._end(job, error)
                except Exception as error:
                    _log.exception("request %r: no slot", job.request.request_id)
                    known = isinstance(error, RecapError)
                    self._end(job, error if known else EngineError("no slot could be reserved"))
                else:
                    self._waiting.popleft()
                    self._active.append(job)

    def _run_pass(self) -> None:
        """Prefill chunks and trees in one pass, or in two where the engine cannot mix them."""
        can = self.engine.capabilities
        chunks = plan_chunks(self._active, self._chunk_tokens, can.chunked_prefill, self._seed)
        prefills = [chunk for _, chunk in chunks]
        decoding = [job for job in self._active if job.decoding]
        trees = self._propose(decoding) if decoding else []
        if chunks and trees and not can.mixed_passes:
            self._take_chunks(chunks, self._verify(Pass(prefills=prefills)))
            chunks, prefills = [], []
        handle = self._verify(Pass(prefills, trees))
        if decoding:
            self._take_trees(decoding, [entry.tree for entry in trees], handle.result().trees)
        self._take_chunks(chunks, handle)

    def _verify(self, work: Pass) -> Handle:
        begun = time.perf_counter()
        handle = self.engine.submit(work)
        handle.result()
        self.times.verify_s += time.perf_counter() - begun
        return handle

    def _take_chunks(self, chunks: Seq[tuple[Job, PrefillChunk]], handle: Handle) -> None:
        for (job, chunk), rows in zip(chunks, handle.result().prefills, strict=True):
            record_chunk(job, chunk, rows, self._seed)
            if chunk.last:
                self._take_first(job, int(rows.ids[-1, 0]))

    def _take_first(self, job: Job, token: int) -> None:
        """The prefill's own prediction is the first token; then drafting may begin."""
        tokens = np.array([token], np.int32)
        ended = token in self.vocabulary.eos_ids
        if ended or job.sequence.remaining == 1:
            self._finish(job, tokens, "stop" if ended else "length")
            return
        self._emit(job, tokens)
        begun = time.perf_counter()
        self.drafter.begin(job.sequence, take_seed(job))
        self.times.draft_s += time.perf_counter() - begun

    def _propose(self, decoding: Seq[Job]) -> list[TreeVerification]:
        sequences = [job.sequence for job in decoding]
        total = self.budget.total(len(decoding))
        if total:
            begun = time.perf_counter()
            trees = self.drafter.propose(sequences, total)
            self.times.draft_s += time.perf_counter() - begun
        else:
            trees = [CandidateTree.root_only(int(each.history[-1])) for each in sequences]
        return [
            TreeVerification(each.slot, tree, each.root_position)
            for each, tree in zip(sequences, trees, strict=True)
        ]

    def _take_trees(
        self, decoding: Seq[Job], trees: Seq[CandidateTree], predictions: Seq[Predictions]
    ) -> None:
        outcomes = [
            accept_greedy(tree, rows, job.sequence.remaining, self.vocabulary.eos_ids)
            for job, tree, rows in zip(decoding, trees, predictions, strict=True)
        ]
        begun = time.perf_counter()
        for job, outcome in zip(decoding, outcomes, strict=True):
            self.engine.commit(job.sequence.slot, outcome.rows)
        self.times.verify_s += time.perf_counter() - begun
        begun = time.perf_counter()
        self.drafter.observe(
            [job.sequence for job in decoding], trees, predictions, [each.rows for each in outcomes]
        )
        self.times.draft_s += time.perf_counter() - begun
        for job, tree, outcome in zip(decoding, trees, outcomes, strict=True):
            sequence = job.sequence
            sequence.steps += 1
            sequence.drafted += tree.nodes
            sequence.accepted += outcome.accepted
            if outcome.ended or len(outcome.tokens) == sequence.remaining:
                self._finish(job, outcome.tokens, "stop" if outcome.ended else "length")
            else:
                self._emit(job, outcome.tokens)

    def _emit(self, job: Job, tokens: NDArray[np.int32]) -> None:
        job.sequence.append(tokens)
        text = job.detokenizer.push(tokens.tolist())
        if not text:
            # Half a character so far: the ids ride with the text that completes it.
            job.unsent.append(tokens)
            return
        if job.ended:  # `close` lost patience with this step
            return
        try:
            job.sink.emit(Chunk(text, job.take_unsent(tokens)))
        except Exception:
            _log.exception("request %r: its receiver broke", job.request.request_id)
            job.cancelled = True

    def _finish(self, job: Job, tokens: NDArray[np.int32], reason: FinishReason) -> None:
        """Emits the last tokens with the statistics and lets the request go."""
        job.sequence.append(tokens)
        text = job.detokenizer.push(tokens.tolist()) + job.detokenizer.flush()
        last = Chunk(text, job.take_unsent(tokens), reason, job.stats)
        self._let_go(job, lambda: job.sink.emit(last))

    def _end(self, job: Job, error: Exception, *, free: bool = True) -> None:
        """Lets a request go that cannot go on."""
        self._let_go(job, lambda: job.sink.fail(error), free=free)

    def _let_go(self, job: Job, tell: Callable[[], None], *, free: bool = True) -> None:
        """Ends a request: off the lists, its slot and memories freed, then its receiver told.

        Freed first: a receiver that hears of the end may count on the slot being free. Whatever
        breaks on the way, the request is gone and the others go on.

        Args:
            job: One that has ended already is only freed: its receiver hears one end.
            tell: Tells the receiver.
            free: False leaves slot and memories alone.
        """
        with self._wake:
            first, job.ended = not job.ended, True
            if job in self._active:
                self._active.remove(job)
            elif job in self._waiting:
                self._waiting.remove(job)
        if free:
            self._free(job)
        if first:
            try:
                tell()
            except Exception:
                _log.exception("request %r: its receiver broke", job.request.request_id)

    def _free(self, job: Job) -> None:
        """Frees memories and slot; one that breaks keeps neither the other nor the caller."""
        slot, job.sequence.slot = job.sequence.slot, -1
        try:
            self.drafter.end(job.sequence)
        except Exception:
            _log.exception("request %r: its memories were not freed", job.request.request_id)
        try:
            if slot >= 0:
                self.engine.release(slot)
        except Exception:
            _log.exception("request %r: its slot was not freed", job.request.request_id)
