"""A toy target model behind the engine contract, drafters that guess, and a sink that records.

`ToyEngine` keeps real per-slot histories, so that a wrong commit, position or slot shows up as
different text, and it refuses calls that break the contract.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from recap.engines.base import Capabilities, Pass, PassResult, PromptLayout
from recap.errors import CapacityError, InvalidRequestError
from recap.predictions import Predictions, PromptPredictions
from recap.requests import Chunk, Vocabulary
from recap.sequence import Sequence
from recap.tree import CandidateTree

VOCAB = 64
IMAGE = VOCAB - 1
EOS = 0
TOP_K = 8


def toy_row(history: Seq[int], salt: float = 0.0) -> NDArray[np.float32]:
    """float32 [VOCAB] logits that depend on the whole history, mostly on its last two tokens."""
    tail = ",".join(map(str, history[-2:])) + f";{len(history) % 5};{salt:.3f}"
    seed = int.from_bytes(hashlib.sha256(tail.encode()).digest()[:8], "little")
    row = np.random.default_rng(seed).normal(size=VOCAB).astype(np.float32) * 3
    row[IMAGE] = -50.0
    row[EOS] -= 4.0
    return row


def predictions_of(rows: Seq[NDArray[np.float32]]) -> Predictions:
    """Top-K, probabilities and entropy of logits rows."""
    if not rows:
        return Predictions(
            np.empty((0, TOP_K), np.int32),
            np.empty((0, TOP_K), np.float32),
            np.empty(0, np.float32),
        )
    logits = np.stack(rows).astype(np.float64)
    probs = np.exp(logits - logits.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :TOP_K].astype(np.int32)
    top = np.take_along_axis(probs, ids, 1).astype(np.float32)
    entropy = -(probs * np.log(probs + 1e-30)).sum(1).astype(np.float32)
    return Predictions(ids, top, entropy)


def plain_decode(prompt: Seq[int], max_tokens: int, salt: float = 0.0) -> list[int]:
    """What the toy model answers, one token at a time."""
    history = list(prompt)
    while len(history) - len(prompt) < max_tokens:
        history.append(int(toy_row(history, salt).argmax()))
        if history[-1] == EOS:
            break
    return history[len(prompt) :]


class ToyHandle:
    """Result of a toy pass."""

    def __init__(self, result: PassResult) -> None:
        self._result = result

    def result(self) -> PassResult:
        return self._result

    def tree_logits(self, tree: int, row: int) -> NDArray[np.float32]:
        raise AssertionError("greedy decoding needs no full rows")

    def prefill_logits(self, prefill: int) -> NDArray[np.float32]:
        raise AssertionError("greedy decoding needs no full rows")


class ToyEngine:
    """The toy model with slots; position of history index i is i plus the layout's delta."""

    def __init__(self, slots: int = 4, context: int = 256, **abilities: bool) -> None:
        flags = {"mixed_passes": True, "chunked_prefill": True, "prompt_predictions": True}
        self.capabilities = Capabilities(
            **{**flags, **abilities},
            max_sequence_tokens=context,
            slots=slots,
            max_nodes=255,
            vocab_size=VOCAB,
        )
        self.cache: dict[int, list[int]] = {}
        self.pending: dict[int, CandidateTree] = {}
        self.salt: dict[int, float] = {}
        self.deltas: dict[int, int] = {}
        self.passes: list[Pass] = []
        self.fail_next: Exception | None = None

    def layout(
        self, ids: NDArray[np.int32], image_layout: NDArray[np.int64] | None
    ) -> PromptLayout:
        is_image = ids == IMAGE
        expected = 0 if image_layout is None else int(image_layout.sum())
        if is_image.sum() != expected:
            raise InvalidRequestError("image", "placeholders do not fit")
        delta = -3 if expected else 0
        positions = np.tile(np.arange(len(ids), dtype=np.int32) + delta, (3, 1))
        return PromptLayout(positions, delta, is_image)

    def allocate(self, n_tokens: int) -> int:
        if n_tokens > self.capabilities.max_sequence_tokens:
            raise InvalidRequestError("prompt", "too long")
        free = sorted(set(range(self.capabilities.slots)) - set(self.cache))
        if not free:
            raise CapacityError("no slot")
        self.cache[free[0]] = []
        self.salt[free[0]] = 0.0
        return free[0]

    def submit(self, work: Pass) -> ToyHandle:
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        self.passes.append(work)
        slots = [e.slot for e in work.prefills] + [e.slot for e in work.trees]
        assert len(set(slots)) == len(slots), "a slot twice in one pass"
        assert set(slots) <= set(self.cache), "a slot that is not allocated"
        assert not (work.prefills and work.trees) or self.capabilities.mixed_passes
        return ToyHandle(
            PassResult(
                [self._prefill(chunk) for chunk in work.prefills],
                [self._verify(entry) for entry in work.trees],
            )
        )

    def _prefill(self, chunk) -> Predictions:
        cache = self.cache[chunk.slot]
        begin = len(cache)
        if chunk.features is not None:
            assert len(chunk.features) == chunk.is_image.sum()
            self.salt[chunk.slot] += float(chunk.features.sum())
        delta = int(chunk.positions[0, 0]) - begin
        assert self.deltas.setdefault(chunk.slot, delta) == delta or begin == 0
        self.deltas[chunk.slot] = delta
        cache.extend(chunk.ids.tolist())
        wanted = chunk.wanted.tolist() + ([len(chunk.ids) - 1] if chunk.last else [])
        salt = self.salt[chunk.slot]
        return predictions_of([toy_row(cache[: begin + i + 1], salt) for i in wanted])

    def _verify(self, entry) -> Predictions:
        assert entry.slot not in self.pending, "a tree is not committed yet"
        cache, tree = self.cache[entry.slot], entry.tree
        assert entry.root_position == len(cache) + self.deltas[entry.slot]
        self.pending[entry.slot] = tree
        rows = []
        for row in range(len(tree.tokens)):
            path = []
            while row >= 0:
                path.append(int(tree.tokens[row]))
                row = int(tree.parents[row])
            rows.append(toy_row(cache + path[::-1], self.salt[entry.slot]))
        return predictions_of(rows)

    def commit(self, slot: int, rows: NDArray[np.int32]) -> None:
        tree = self.pending.pop(slot)
        assert rows[0] == 0 and (tree.parents[rows[1:]] == rows[:-1]).all()
        self.cache[slot].extend(tree.tokens[rows].tolist())

    def release(self, slot: int) -> None:
        self.cache.pop(slot, None)
        self.pending.pop(slot, None)

    def cost(self, rows: int, batch: int, context: int) -> float:
        return 1e-3


class GuessingDrafter:
    """Random trees that hold a share of right guesses; counts what it is told."""

    def __init__(self, seed: int = 0, right: float = 0.7) -> None:
        self.rng = np.random.default_rng(seed)
        self.right = right
        self.open: set[int] = set()
        self.seeds: dict[int, PromptPredictions | None] = {}
        self.salts: dict[int, float] = {}

    def begin(self, request: Sequence, seed: PromptPredictions | None) -> None:
        assert request.key not in self.open
        self.open.add(request.key)
        self.seeds[request.key] = seed

    def propose(self, requests: Seq[Sequence], total_nodes: int) -> list[CandidateTree]:
        return [self._tree(each, total_nodes // len(requests)) for each in requests]

    def _tree(self, request: Sequence, nodes: int) -> CandidateTree:
        assert request.key in self.open
        tokens, parents, depth = [int(request.history[-1])], [-1], [0]
        for _ in range(int(self.rng.integers(0, nodes + 1))):
            parent = int(self.rng.integers(0, len(tokens)))
            if depth[parent] + 1 > request.remaining - 1:
                continue
            path, row = [], parent
            while row > 0:
                path.append(tokens[row])
                row = parents[row]
            token = int(self.rng.integers(0, VOCAB - 1))
            if self.rng.random() < self.right:
                history = request.history.tolist() + path[::-1]
                token = int(toy_row(history, self.salts.get(request.key, 0.0)).argmax())
            siblings = [t for t, p in zip(tokens, parents, strict=True) if p == parent]
            if token in siblings:
                continue
            tokens.append(token)
            parents.append(parent)
            depth.append(depth[parent] + 1)
        size = len(tokens)
        return CandidateTree(
            np.array(tokens, np.int32),
            np.array(parents, np.int32),
            np.array(depth, np.int32),
            np.ones(size, np.float32),
            np.zeros(size, np.uint8),
            np.zeros(size, np.uint16),
        )

    def observe(self, requests, trees, predictions, accepted) -> None:
        for request, tree, rows, path in zip(requests, trees, predictions, accepted, strict=True):
            assert request.history[-1] == tree.tokens[0], "observe comes before the emitted tokens"
            assert len(rows) == len(tree.tokens)
            assert path[0] == 0

    def end(self, request: Sequence) -> None:
        self.open.discard(request.key)

    def reset_persistent(self) -> None:
        pass


class RecordingSink:
    """Keeps chunks and failures; complains about anything after the end."""

    def __init__(self, on_chunk=None) -> None:
        self.chunks: list[Chunk] = []
        self.error: Exception | None = None
        self.ends = 0
        self.ended = threading.Event()
        self.on_chunk = on_chunk

    def emit(self, chunk: Chunk) -> None:
        assert self.ends == 0, "output after the end"
        self.chunks.append(chunk)
        if chunk.finish_reason:
            self._end()
        if self.on_chunk is not None:
            self.on_chunk(chunk)

    def fail(self, error: Exception) -> None:
        assert self.ends == 0, "failure after the end"
        self.error = error
        self._end()

    def _end(self) -> None:
        self.ends += 1
        self.ended.set()

    @property
    def ids(self) -> list[int]:
        return [int(t) for chunk in self.chunks for t in chunk.tokens]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def last(self) -> Chunk:
        return self.chunks[-1]


def toy_vocabulary() -> Vocabulary:
    """Letters for ids; the end token decodes to nothing."""
    return Vocabulary(
        decode=lambda ids: "".join(chr(0x100 + i) for i in ids if i != EOS),
        eos_ids=frozenset({EOS}),
    )
