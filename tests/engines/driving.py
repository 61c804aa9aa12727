"""Drives any engine through its contract, for tests: prompts, trees, and a trusted reference.

The reference for every figure is a fresh prefill of the same text in a slot of its own, which uses
no tree, no commit and no earlier state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from recap.engines.base import Engine, Handle, Pass, PrefillChunk, TreeVerification
from recap.predictions import Predictions
from recap.tree import CandidateTree


@dataclass(frozen=True)
class Prompt:
    """Ids with the images behind their placeholders.

    Attributes:
        ids: int32 [n].
        image_layout: int64 [images, k], or None.
        features: float32 [m, hidden], or None.
    """

    ids: NDArray[np.int32]
    image_layout: NDArray[np.int64] | None = None
    features: NDArray[np.float32] | None = None

    def plus(self, tokens: Sequence[int]) -> Prompt:
        """The prompt with text behind it."""
        longer = np.concatenate([self.ids, np.asarray(tokens, np.int32)])
        return Prompt(longer, self.image_layout, self.features)


def text_prompt(length: int, seed: int) -> Prompt:
    """Random text ids that every test vocabulary has."""
    return Prompt(np.random.default_rng(seed).integers(20, 1000, length).astype(np.int32))


def chunks(
    engine: Engine,
    slot: int,
    prompt: Prompt,
    cuts: Sequence[int] = (),
    wanted: Sequence[int] = (),
) -> list[PrefillChunk]:
    """The prompt's prefill, cut before the given indices; `wanted` are indices into the prompt."""
    layout = engine.layout(prompt.ids, prompt.image_layout)
    bounds = [0, *cuts, len(prompt.ids)]
    taken = 0
    made = []
    for begin, end in zip(bounds[:-1], bounds[1:], strict=True):
        is_image = layout.is_image[begin:end]
        count = int(is_image.sum())
        features = prompt.features[taken : taken + count] if prompt.features is not None else None
        taken += count
        made.append(
            PrefillChunk(
                slot=slot,
                ids=prompt.ids[begin:end],
                positions=layout.positions[:, begin:end],
                is_image=is_image,
                features=features if count else None,
                last=end == len(prompt.ids),
                wanted=np.array([w - begin for w in wanted if begin <= w < end], np.int32),
            )
        )
    return made


def prefill(engine: Engine, slot: int, prompt: Prompt, cuts: Sequence[int] = ()) -> Handle:
    """Prefills, one pass per chunk; the handle of the last pass."""
    for chunk in chunks(engine, slot, prompt, cuts):
        handle = engine.submit(Pass(prefills=[chunk]))
        handle.result()
    return handle


def root_position(engine: Engine, prompt: Prompt) -> int:
    """Rotary position of the token behind the prompt."""
    return len(prompt.ids) + engine.layout(prompt.ids, prompt.image_layout).position_delta


def verification(
    engine: Engine, slot: int, prompt: Prompt, tree: CandidateTree
) -> TreeVerification:
    """The tree behind a prompt that the slot holds."""
    return TreeVerification(slot, tree, root_position(engine, prompt))


def decode(engine: Engine, slot: int, prompt: Prompt, first: int, steps: int) -> list[int]:
    """Plain greedy decoding behind a prefilled prompt; `first` included."""
    tokens = [first]
    for _ in range(steps):
        held = prompt.plus(tokens[:-1])
        tree = CandidateTree.root_only(tokens[-1])
        handle = engine.submit(Pass(trees=[verification(engine, slot, held, tree)]))
        engine.commit(slot, np.zeros(1, np.int32))
        tokens.append(int(handle.result().trees[0].ids[0, 0]))
    return tokens


def reference(engine: Engine, prompt: Prompt) -> NDArray[np.float32]:
    """float32 [vocab]: logits behind the prompt, from a fresh prefill."""
    with slots(engine, 1) as (slot,):
        return prefill(engine, slot, prompt).prefill_logits(0).copy()


@contextmanager
def slots(engine: Engine, count: int, n_tokens: int = 200) -> Iterator[list[int]]:
    """Allocates slots and releases them whatever happens."""
    held = [engine.allocate(n_tokens) for _ in range(count)]
    try:
        yield held
    finally:
        for slot in held:
            engine.release(slot)


def make_tree(parents: Sequence[int], tokens: Sequence[int]) -> CandidateTree:
    """A tree from parents (-1 first) and tokens."""
    n = len(parents)
    depth = [0] * n
    for row in range(1, n):
        depth[row] = depth[parents[row]] + 1
    return CandidateTree(
        tokens=np.array(tokens, np.int32),
        parents=np.array(parents, np.int32),
        depth=np.array(depth, np.int32),
        score=np.ones(n, np.float32),
        source=np.zeros(n, np.uint8),
        bin=np.zeros(n, np.uint16),
    )


def path_to(tree: CandidateTree, row: int) -> list[int]:
    """Rows from the root to `row`."""
    path = [row]
    while tree.parents[path[-1]] >= 0:
        path.append(int(tree.parents[path[-1]]))
    return path[::-1]


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 8) -> CandidateTree:
    """Random shapes, tokens all different."""
    n = draw(st.integers(0, max_nodes))
    parents = [-1] + [draw(st.integers(0, row)) for row in range(n)]
    seed = draw(st.integers(0, 1000))
    tokens = np.random.default_rng(seed).choice(np.arange(20, 1000), n + 1, replace=False)
    return make_tree(parents, tokens.tolist())


def check_predictions(rows: Predictions, logits: NDArray[np.float32]) -> None:
    """Predictions against the very logits [n, vocab] they were made from."""
    assert len(rows) == len(logits)
    assert (rows.ids.dtype, rows.probs.dtype) == (np.int32, np.float32)
    for row in range(len(rows)):
        check_row(rows, row, logits[row], tolerance=0.0)


def check_row(rows: Predictions, row: int, logits: NDArray[np.float32], tolerance: float) -> None:
    """One row of predictions; ids exactly where `tolerance` is 0."""
    exact = logits.astype(np.float64)
    probs = np.exp(exact - exact.max())
    probs /= probs.sum()
    ids = rows.ids[row]
    if tolerance == 0:
        expected = np.lexsort((np.arange(len(logits)), -logits))[: len(ids)]
        np.testing.assert_array_equal(ids, expected)
    assert logits[ids[0]] >= logits.max() - 2 * tolerance
    np.testing.assert_allclose(rows.probs[row], probs[ids], rtol=1e-4 + 4 * tolerance, atol=1e-7)
    positive = probs[probs > 0]
    entropy = -(positive * np.log(positive)).sum()
    np.testing.assert_allclose(rows.entropy[row], entropy, atol=1e-4 + 40 * tolerance)
