"""A target model that repeats its prompt, whose tokens are single bytes: parts of characters.

With the real scheduler and drafter around it, whatever text a client sends has to come back, in
pieces that never hold half a character. Prompts that start with ``slow`` take 0.1 s per pass, so
that a test can do something while they run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recap.budget import FixedBudget
from recap.config import Settings
from recap.drafters import make_drafter
from recap.engines.base import Capabilities, Pass, PassResult, PromptLayout
from recap.errors import CapacityError
from recap.predictions import Predictions
from recap.requests import Vocabulary
from recap.scheduler import Scheduler
from recap.tree import CandidateTree
from tests.serving.fakes import Prompt

END = 256
VOCAB = 257
SLOW = b"slow"


class EchoHandle:
    def __init__(self, result: PassResult) -> None:
        self._result = result

    def result(self) -> PassResult:
        return self._result

    def tree_logits(self, tree: int, row: int) -> NDArray[np.float32]:
        raise AssertionError("greedy decoding needs no full rows")

    def prefill_logits(self, prefill: int) -> NDArray[np.float32]:
        raise AssertionError("greedy decoding needs no full rows")


class EchoEngine:
    """Keeps each slot's history and says which byte of the prompt comes next."""

    def __init__(self, slots: int = 4) -> None:
        self.capabilities = Capabilities(True, True, True, 8192, slots, 255, VOCAB)
        self._history: dict[int, list[int]] = {}
        self._prompt: dict[int, int] = {}
        self._trees: dict[int, CandidateTree] = {}

    def layout(
        self, ids: NDArray[np.int32], image_layout: NDArray[np.int64] | None
    ) -> PromptLayout:
        positions = np.tile(np.arange(len(ids), dtype=np.int32), (3, 1))
        return PromptLayout(positions, 0, np.zeros(len(ids), np.bool_))

    def allocate(self, n_tokens: int) -> int:
        free = set(range(self.capabilities.slots)) - set(self._history)
        if not free:
            raise CapacityError("no slot is free")
        slot = min(free)
        self._history[slot] = []
        return slot

    def submit(self, work: Pass) -> EchoHandle:
        prefills = []
        for chunk in work.prefills:
            history = self._history[chunk.slot]
            history.extend(chunk.ids.tolist())
            self._prompt[chunk.slot] = len(history)
            rows = len(chunk.wanted) + chunk.last
            # Only the row after the whole prompt matters; those inside it seed memories.
            prefills.append(_predictions([self._next(chunk.slot, history)] * rows))
        trees = []
        for entry in work.trees:
            self._trees[entry.slot] = entry.tree
            history = self._history[entry.slot]
            rows = range(len(entry.tree.tokens))
            paths = [history + _path(entry.tree, row) for row in rows]
            trees.append(_predictions([self._next(entry.slot, path) for path in paths]))
        if any(bytes(history[:4]) == SLOW for history in self._history.values()):
            time.sleep(0.1)
        return EchoHandle(PassResult(prefills, trees))

    def commit(self, slot: int, rows: NDArray[np.int32]) -> None:
        self._history[slot].extend(self._trees.pop(slot).tokens[rows].tolist())

    def release(self, slot: int) -> None:
        self._history.pop(slot, None)

    def cost(self, rows: int, batch: int, context: int) -> float:
        return 1e-3

    def _next(self, slot: int, history: Sequence[int]) -> int:
        prompt = self._prompt[slot]
        said = len(history) - prompt
        return history[said] if said < prompt else END


def _path(tree: CandidateTree, row: int) -> list[int]:
    path = []
    while row >= 0:
        path.append(int(tree.tokens[row]))
        row = int(tree.parents[row])
    return path[::-1]


def _predictions(tokens: Sequence[int]) -> Predictions:
    """Rows that are sure of their token; the runners-up are its neighbours."""
    first = np.array(tokens, np.int32).reshape(-1, 1)
    ids = ((first + np.arange(8, dtype=np.int32)) % VOCAB).astype(np.int32)
    probs = np.tile(np.array([0.93] + [0.01] * 7, np.float32), (len(ids), 1))
    return Predictions(ids, probs, np.full(len(ids), 0.5, np.float32))


def build_echo_scheduler(settings: Settings) -> Scheduler:
    """The real scheduler and drafter over the echo engine."""
    drafter = make_drafter(settings.drafter, VOCAB, np.empty(0, np.int32), [END])

    def decode(ids: list[int]) -> str:
        return bytes(token for token in ids if token < END).decode("utf-8", errors="replace")

    return Scheduler(
        EchoEngine(),
        drafter,
        FixedBudget(settings.drafter.nodes),
        Vocabulary(decode, frozenset({END})),
        settings.limits,
    )


class ByteProcessor:
    """One id per UTF-8 byte; images are ignored."""

    def prepare(
        self, *, text: str | None, messages: str | None, images: list[bytes], raw: bool
    ) -> Prompt:
        ids = np.frombuffer((text or "").encode("utf-8"), np.uint8).astype(np.int32)
        return Prompt(ids, np.empty((0, 1), np.float32), np.empty((0, 3), np.int64), [])
