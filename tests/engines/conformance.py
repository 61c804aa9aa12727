"""What every engine must do, written against `recap.engines.base` alone.

A test module subclasses `Conformance` and gives two fixtures: `engine` (at least 4 slots of at
least 200 tokens, no slot taken) and `image_prompt` (a `Prompt` with images, or None where the
engine takes none). One that does not compute in float32 also sets another `tolerance`.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from recap.engines.base import Engine, Pass
from recap.errors import CapacityError, InvalidRequestError
from recap.tree import CandidateTree
from tests.engines.driving import (
    Prompt,
    check_predictions,
    check_row,
    chunks,
    decode,
    make_tree,
    path_to,
    prefill,
    reference,
    slots,
    text_prompt,
    trees,
    verification,
)

LENGTHS = st.integers(1, 40)

# Several engines run the same test functions: harmless, as nothing is replayed from a database.
examples = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
        HealthCheck.too_slow,
    ],
)


class Conformance:
    """The suite. Logits are compared, not only ids, so that small errors show."""

    tolerance = 2e-4

    @pytest.fixture(autouse=True)
    def nothing_left(self, engine: Engine) -> None:
        """Every test finds all slots free; a test that leaked would fail the next one."""
        with slots(engine, engine.capabilities.slots):
            pass

    def same(self, got: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=0, atol=self.tolerance)

    def prompts(self, image_prompt: Prompt | None, lengths: list[int]) -> list[Prompt]:
        made = [text_prompt(length, seed=7 + i) for i, length in enumerate(lengths)]
        if image_prompt is not None:
            made[-1] = image_prompt.plus(made[-1].ids.tolist())
        return made

    # Trees

    @examples
    @given(data=st.data())
    def test_tree_equals_sequential(
        self, engine: Engine, image_prompt: Prompt | None, data: st.DataObject
    ) -> None:
        """Every row of trees of different sizes, on texts of different lengths, in one pass."""
        lengths = data.draw(st.lists(LENGTHS, min_size=1, max_size=3))
        prompts = self.prompts(image_prompt, lengths)
        batch = [data.draw(trees()) for _ in prompts]
        skip = data.draw(st.booleans())  # a hole between the slots of the pass
        with slots(engine, len(prompts) + skip) as held:
            used = held[: len(prompts) - 1] + held[-1:]
            for slot, prompt in zip(used, prompts, strict=True):
                prefill(engine, slot, prompt)
            order = data.draw(st.permutations(range(len(prompts))))
            handle = engine.submit(
                Pass(trees=[verification(engine, used[i], prompts[i], batch[i]) for i in order])
            )
            result = handle.result()
            logits = [
                np.stack([handle.tree_logits(at, row) for row in range(batch[i].nodes + 1)])
                for at, i in enumerate(order)
            ]
        for at, i in enumerate(order):
            check_predictions(result.trees[at], logits[at])
            for row, got in enumerate(logits[at]):
                path = batch[i].tokens[path_to(batch[i], row)]
                self.same(got, reference(engine, prompts[i].plus(path.tolist())))

    @examples
    @given(data=st.data())
    def test_any_commit_then_continue(
        self, engine: Engine, image_prompt: Prompt | None, data: st.DataObject
    ) -> None:
        """Whatever path is kept, the slot then holds that text and nothing else."""
        held = self.prompts(image_prompt, data.draw(st.lists(LENGTHS, min_size=1, max_size=2)))
        with slots(engine, len(held)) as used:
            for slot, prompt in zip(used, held, strict=True):
                prefill(engine, slot, prompt)
            for _ in range(2):
                batch = [data.draw(trees()) for _ in held]
                engine.submit(
                    Pass(
                        trees=[
                            verification(engine, slot, prompt, tree)
                            for slot, prompt, tree in zip(used, held, batch, strict=True)
                        ]
                    )
                ).result()
                for i, tree in enumerate(batch):
                    rows = path_to(tree, data.draw(st.integers(0, tree.nodes)))
                    engine.commit(used[i], np.array(rows, np.int32))
                    held[i] = held[i].plus(tree.tokens[rows].tolist())
            root = CandidateTree.root_only(33)
            handle = engine.submit(
                Pass(
                    trees=[
                        verification(engine, slot, prompt, root)
                        for slot, prompt in zip(used, held, strict=True)
                    ]
                )
            )
            logits = [handle.tree_logits(i, 0) for i in range(len(held))]
        for got, prompt in zip(logits, held, strict=True):
            self.same(got, reference(engine, prompt.plus([33])))

    def test_largest_tree_at_the_end_of_the_slot(self, engine: Engine) -> None:
        limit = engine.capabilities.max_sequence_tokens
        most = engine.capabilities.max_nodes
        prompt = text_prompt(limit - 1, seed=3)
        tree = make_tree([-1] + [0] * most, list(range(20, 21 + most)))
        with slots(engine, 2, limit) as (first, second):
            prefill(engine, first, prompt)
            prefill(engine, second, text_prompt(3, seed=4))
            handle = engine.submit(Pass(trees=[verification(engine, first, prompt, tree)]))
            got = handle.tree_logits(0, 0)
            engine.commit(first, np.zeros(1, np.int32))
            after = decode(engine, second, text_prompt(3, seed=4), 30, 3)
        with slots(engine, 1, limit) as (slot,):
            self.same(got, prefill(engine, slot, prompt.plus([20])).prefill_logits(0))
        with slots(engine, 1) as (slot,):
            prefill(engine, slot, text_prompt(3, seed=4))
            assert after == decode(engine, slot, text_prompt(3, seed=4), 30, 3)

    # Plain decoding

    @pytest.mark.parametrize("lengths", [[17], [9, 9], [5, 30, 12]])
    def test_root_only_trees_are_plain_decoding(self, engine: Engine, lengths: list[int]) -> None:
        held = self.prompts(None, lengths)
        with slots(engine, len(held)) as used:
            for slot, prompt in zip(used, held, strict=True):
                prefill(engine, slot, prompt)
            for token in (40, 50, 60):
                root = CandidateTree.root_only(token)
                handle = engine.submit(
                    Pass(
                        trees=[
                            verification(engine, slot, prompt, root)
                            for slot, prompt in zip(used, held, strict=True)
                        ]
                    )
                )
                assert [len(rows) for rows in handle.result().trees] == [1] * len(held)
                logits = [handle.tree_logits(i, 0) for i in range(len(held))]
                for slot in used:
                    engine.commit(slot, np.zeros(1, np.int32))
                held = [prompt.plus([token]) for prompt in held]
        for got, prompt in zip(logits, held, strict=True):
            self.same(got, reference(engine, prompt))

    # Prefill

    @examples
    @given(data=st.data())
    def test_chunked_prefill_equals_whole(
        self, engine: Engine, image_prompt: Prompt | None, data: st.DataObject
    ) -> None:
        if not engine.capabilities.chunked_prefill:
            pytest.skip("the engine prefills a prompt in one pass")
        prompt = text_prompt(30, seed=2)
        if image_prompt is not None:  # cuts may fall inside an image
            prompt = image_prompt.plus(prompt.ids.tolist())
        inside = st.integers(1, len(prompt.ids) - 1)
        cuts = sorted(data.draw(st.sets(inside, min_size=1, max_size=4)))
        with slots(engine, 1) as (slot,):
            got = prefill(engine, slot, prompt, cuts).prefill_logits(0)
        self.same(got, reference(engine, prompt))

    def test_prompt_predictions(self, engine: Engine) -> None:
        """Wanted positions in order, the last position of the prompt behind them."""
        prompt = text_prompt(24, seed=5)
        wanted = [0, 3, 11, 12, 22] if engine.capabilities.prompt_predictions else []
        with slots(engine, 2) as (whole, cut):
            handle = engine.submit(Pass(prefills=chunks(engine, whole, prompt, wanted=wanted)))
            (rows,) = handle.result().prefills
            last = handle.prefill_logits(0)
            pieces = []
            if engine.capabilities.chunked_prefill:
                for chunk in chunks(engine, cut, prompt, cuts=[8, 12], wanted=wanted):
                    pieces += engine.submit(Pass(prefills=[chunk])).result().prefills
                assert [len(piece) for piece in pieces] == [2, 1, 3] if wanted else [0, 0, 1]
        assert len(rows) == len(wanted) + 1
        expected = [reference(engine, Prompt(prompt.ids[: w + 1])) for w in wanted]
        for row, logits in enumerate([*expected, last]):
            check_row(rows, row, logits, self.tolerance)
        if pieces:
            ids = np.concatenate([piece.ids[:, 0] for piece in pieces])
            np.testing.assert_array_equal(ids, rows.ids[:, 0])

    def test_mixed_pass(self, engine: Engine, image_prompt: Prompt | None) -> None:
        if not engine.capabilities.mixed_passes:
            pytest.skip("the engine runs prompts and trees in passes of their own")
        old = self.prompts(None, [12, 25])
        new = self.prompts(image_prompt, [6, 8])
        tree = make_tree([-1, 0, 1, 0], [31, 32, 33, 34])
        with slots(engine, 4) as used:
            for slot, prompt in zip(used, old, strict=False):
                prefill(engine, slot, prompt)
            prefills = [chunks(engine, s, p)[0] for s, p in zip(used[2:], new, strict=True)]
            verified = [verification(engine, s, p, tree) for s, p in zip(used, old, strict=False)]
            handle = engine.submit(Pass(prefills=prefills, trees=verified))
            assert [len(rows) for rows in handle.result().prefills] == [1, 1]
            prompts = [handle.prefill_logits(i) for i in (0, 1)]
            nodes = [handle.tree_logits(i, 2) for i in (0, 1)]
            for slot in used[:2]:
                engine.commit(slot, np.array([0, 3], np.int32))
            handle = engine.submit(
                Pass(
                    trees=[
                        verification(engine, slot, prompt, CandidateTree.root_only(35))
                        for slot, prompt in zip(
                            used, [*(p.plus([31, 34]) for p in old), *new], strict=True
                        )
                    ]
                )
            )
            roots = [handle.tree_logits(i, 0) for i in range(4)]
        for got, prompt in zip(prompts, new, strict=True):
            self.same(got, reference(engine, prompt))
        for got, prompt in zip(nodes, old, strict=True):
            self.same(got, reference(engine, prompt.plus([31, 32, 33])))
        texts = [*(p.plus([31, 34, 35]) for p in old), *(p.plus([35]) for p in new)]
        for got, prompt in zip(roots, texts, strict=True):
            self.same(got, reference(engine, prompt))

    def test_unfinished_prompt_beside_a_finished_one(self, engine: Engine) -> None:
        if not (engine.capabilities.mixed_passes and engine.capabilities.chunked_prefill):
            pytest.skip("the engine runs one whole prompt at a time")
        long, short = text_prompt(30, seed=1), text_prompt(7, seed=2)
        with slots(engine, 2) as (slot, other):
            begin, end = chunks(engine, slot, long, cuts=[18])
            handle = engine.submit(Pass(prefills=[begin, *chunks(engine, other, short)]))
            assert [len(rows) for rows in handle.result().prefills] == [0, 1]
            got = handle.prefill_logits(1)
            check_predictions(handle.result().prefills[1], got[None])
            finished = engine.submit(Pass(prefills=[end])).prefill_logits(0)
        self.same(got, reference(engine, short))
        self.same(finished, reference(engine, long))

    # Slots

    def test_slots_do_not_see_each_other(self, engine: Engine) -> None:
        mine = text_prompt(10, seed=1)
        tree = make_tree([-1, 0, 0], [31, 32, 33])
        seen = []
        for seed in (100, 200):
            other = text_prompt(60, seed=seed)
            with slots(engine, 3) as used:
                prefill(engine, used[0], other)
                prefill(engine, used[1], mine)
                prefill(engine, used[2], other)
                handle = engine.submit(
                    Pass(
                        trees=[
                            verification(engine, used[1], mine, tree),
                            verification(engine, used[0], other, tree),
                        ]
                    )
                )
                seen.append([handle.tree_logits(0, row) for row in range(3)])
        np.testing.assert_array_equal(seen[0], seen[1])

    def test_release_and_reuse_leak_nothing(self, engine: Engine) -> None:
        short = text_prompt(4, seed=1)
        tree = make_tree([-1, 0, 1, 1], [31, 32, 33, 34])
        seen = []
        for earlier in (0, 1):
            with slots(engine, 2) as (a, b):
                if earlier:  # leave a long text and an uncommitted tree behind
                    for slot in (a, b):
                        prompt = text_prompt(90, seed=slot)
                        prefill(engine, slot, prompt)
                        engine.submit(Pass(trees=[verification(engine, slot, prompt, tree)]))
            with slots(engine, 2) as (a, b):
                longer = text_prompt(30, seed=2)
                prefill(engine, a, short)
                prefill(engine, b, longer)
                handle = engine.submit(
                    Pass(
                        trees=[
                            verification(engine, a, short, tree),
                            verification(engine, b, longer, tree),
                        ]
                    )
                )
                seen.append([handle.tree_logits(i, row) for i in (0, 1) for row in range(4)])
        np.testing.assert_array_equal(seen[0], seen[1])

    def test_capacity(self, engine: Engine) -> None:
        count = engine.capabilities.slots
        with slots(engine, count) as used:
            assert len(set(used)) == count
            with pytest.raises(CapacityError):
                engine.allocate(20)
            engine.release(used[1])
            engine.release(used[1])
            assert engine.allocate(20) == used[1]
            with pytest.raises(CapacityError):  # the second release freed nothing
                engine.allocate(20)
        with pytest.raises(InvalidRequestError):
            engine.allocate(engine.capabilities.max_sequence_tokens + 1)

    # Images

    def test_images_change_the_text(self, engine: Engine, image_prompt: Prompt | None) -> None:
        """Features replace the placeholders, each in its own place."""
        if image_prompt is None:
            pytest.skip("no images")
        assert image_prompt.features is not None
        flipped = Prompt(
            image_prompt.ids, image_prompt.image_layout, image_prompt.features[::-1].copy()
        )
        difference = reference(engine, image_prompt) - reference(engine, flipped)
        assert np.abs(difference).max() > 10 * self.tolerance

    def test_wrong_features(self, engine: Engine, image_prompt: Prompt | None) -> None:
        """Refused before anything is written: the slot can still be used."""
        if image_prompt is None:
            pytest.skip("no images")
        assert image_prompt.features is not None
        missing = Prompt(image_prompt.ids, image_prompt.image_layout, image_prompt.features[1:])
        narrow = Prompt(image_prompt.ids, image_prompt.image_layout, image_prompt.features[:, 1:])
        none = Prompt(image_prompt.ids, image_prompt.image_layout)
        with slots(engine, 1) as (slot,):
            for wrong in (missing, narrow, none):
                with pytest.raises(InvalidRequestError, match="^image: "):
                    engine.submit(Pass(prefills=chunks(engine, slot, wrong)))
            got = prefill(engine, slot, image_prompt).prefill_logits(0)
        self.same(got, reference(engine, image_prompt))

    def test_layout_refuses_unmatched_placeholders(
        self, engine: Engine, image_prompt: Prompt | None
    ) -> None:
        if image_prompt is None:
            pytest.skip("no images")
        with pytest.raises(InvalidRequestError, match="^image: "):
            engine.layout(image_prompt.ids, None)
        assert image_prompt.image_layout is not None
        with pytest.raises(InvalidRequestError, match="^image: "):
            engine.layout(text_prompt(5, 0).ids, image_prompt.image_layout)

    # Cost

    def test_cost(self, engine: Engine) -> None:
        """Positive, no cheaper for more work, and harmless for sequences in flight."""
        prompt = text_prompt(150, seed=1)
        with slots(engine, 2) as (slot, other):
            prefill(engine, slot, prompt)
            prefill(engine, other, text_prompt(5, seed=2))
            small = engine.cost(1, 1, 20)
            assert 0 < small <= engine.cost(64, 1, 20) <= engine.cost(64, 4, 150)
            assert small <= engine.cost(3, 2, 100) <= engine.cost(100, 8, 1000)
            root = verification(engine, slot, prompt, CandidateTree.root_only(31))
            got = engine.submit(Pass(trees=[root])).tree_logits(0, 0)
        self.same(got, reference(engine, prompt.plus([31])))
