"""`TorchEngine`: the conformance suite on the shipped checkpoint, and what is its own."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recap.config import EngineSettings
from recap.engines import masks, torch_engine
from recap.engines.base import Pass
from recap.engines.torch_engine import TorchEngine
from recap.engines.vision import VisionEncoder
from recap.errors import SettingsError
from recap.tree import CandidateTree
from tests.engines.conformance import Conformance
from tests.engines.conftest import CHECKPOINT, SETTINGS, pixels
from tests.engines.driving import (
    Prompt,
    chunks,
    decode,
    make_tree,
    prefill,
    reference,
    slots,
    text_prompt,
    verification,
)

VISION_START, VISION_END, IMAGE_PAD = 2043, 2044, 2046
USER, ASSISTANT = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def image_prompt(vision: VisionEncoder) -> Prompt:
    """Two images of different sizes with text around them."""
    grids = np.array([[1, 4, 8], [1, 6, 4]])
    (features,) = vision.encode([pixels(grids, seed=1)], [grids])
    ids = [2036, 100, VISION_START, *[IMAGE_PAD] * 8, VISION_END]
    ids += [VISION_START, *[IMAGE_PAD] * 6, VISION_END, 200, 300]
    return Prompt(np.array(ids, np.int32), grids, features)


class TestConformance(Conformance):
    pass


@pytest.mark.parametrize("grids", [[], [[1, 8, 8]], [[1, 8, 4], [1, 6, 10]]])
def test_greedy_equals_transformers_generate(
    engine: TorchEngine, vision: VisionEncoder, full_model: Any, grids: list[list[int]]
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    layout = np.array(grids, np.int64).reshape(-1, 3)
    image = "<|vision_start|>{}<|vision_end|>"
    images = "".join(image.format("<|image_pad|>" * (t * h * w // 4)) for t, h, w in grids)
    ids = np.array(tokenizer(USER + images + "Describe the image." + ASSISTANT).input_ids, np.int32)
    pixel_values = pixels(layout, seed=len(grids))
    (features,) = vision.encode([pixel_values], [layout])
    prompt = Prompt(ids, layout, features if grids else None)

    tokens = torch.tensor(ids[None].astype(np.int64))
    inputs: dict[str, Any] = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if grids:
        inputs["pixel_values"] = torch.tensor(pixel_values)
        inputs["image_grid_thw"] = torch.tensor(layout)
        # transformers 5 places images by this, 4 finds them itself and refuses it.
        if "mm_token_type_ids" in inspect.signature(full_model.forward).parameters:
            inputs["mm_token_type_ids"] = (tokens == IMAGE_PAD).int()
    steps = 32
    generated = full_model.generate(
        **inputs, do_sample=False, max_new_tokens=steps + 1, min_new_tokens=steps + 1
    )
    expected = generated[0, len(ids) :].tolist()

    with slots(engine, 1) as (slot,):
        logits = prefill(engine, slot, prompt).prefill_logits(0)
        got = []
        for _ in range(steps + 1):
            logits = logits.copy()  # `min_new_tokens` keeps the end token out of generate too
            logits[list(engine.adapter.eos_ids)] = -np.inf
            got.append(int(logits.argmax()))
            root = CandidateTree.root_only(got[-1])
            held = prompt.plus(got[:-1])
            handle = engine.submit(Pass(trees=[verification(engine, slot, held, root)]))
            engine.commit(slot, np.zeros(1, np.int32))
            logits = handle.tree_logits(0, 0)
    assert got == expected


def test_speculative_text_equals_plain_text(engine: TorchEngine, image_prompt: Prompt) -> None:
    """The whole loop with drafts that are partly right: the same ids, in fewer passes."""
    with slots(engine, 1) as (slot,):
        first = int(prefill(engine, slot, image_prompt).prefill_logits(0).argmax())
        plain = decode(engine, slot, image_prompt, first, 40)
    tokens, passes = [first], 0
    with slots(engine, 1) as (slot,):
        prefill(engine, slot, image_prompt)
        while len(tokens) < len(plain):
            at = len(tokens)
            right = plain[at : at + 3]
            wrong = [(token + 1) % 2000 for token in right]
            # root -> (wrong, right -> (wrong, right -> ..))
            parents, drafts = [-1], [tokens[-1]]
            parent = 0
            for good, bad in zip(right, wrong, strict=True):
                parents += [parent, parent]
                drafts += [bad, good]
                parent = len(drafts) - 1
            tree = make_tree(parents, drafts)
            held = image_prompt.plus(tokens[:-1])
            handle = engine.submit(Pass(trees=[verification(engine, slot, held, tree)]))
            best = handle.result().trees[0].ids[:, 0]
            rows, passes = [0], passes + 1
            while True:
                tokens.append(int(best[rows[-1]]))
                children = np.flatnonzero(tree.parents == rows[-1])
                hit = [row for row in children if tree.tokens[row] == tokens[-1]]
                if not hit:
                    break
                rows.append(int(hit[0]))
            engine.commit(slot, np.array(rows, np.int32))
    assert tokens[: len(plain)] == plain
    assert passes <= 10


def test_single_root_needs_no_mask(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch, image_prompt: Prompt
) -> None:
    """Plain decoding takes the lean path: no mask is made, nothing is padded."""

    def refuse(*args: object) -> None:
        raise AssertionError("a mask was made")

    monkeypatch.setattr(masks, "tree_mask", refuse)
    monkeypatch.setattr(masks, "chunk_mask", refuse)
    with slots(engine, 1) as (slot,):
        first = int(prefill(engine, slot, image_prompt).prefill_logits(0).argmax())
        decode(engine, slot, image_prompt, first, 2)
        with pytest.raises(AssertionError, match="a mask was made"):
            tree = make_tree([-1, 0], [30, 31])
            engine.submit(Pass(trees=[verification(engine, slot, image_prompt, tree)]))


def test_seeds_in_pieces(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded scoring memory changes nothing."""
    prompt = text_prompt(30, seed=8)
    results = []
    for values in (torch_engine.SCORED_VALUES_AT_ONCE, 4 * 2048):
        monkeypatch.setattr(torch_engine, "SCORED_VALUES_AT_ONCE", values)
        with slots(engine, 1) as (slot,):
            work = Pass(prefills=chunks(engine, slot, prompt, wanted=range(29)))
            results += engine.submit(work).result().prefills
    np.testing.assert_array_equal(results[0].ids, results[1].ids)
    np.testing.assert_allclose(results[0].entropy, results[1].entropy, atol=1e-4)


def test_only_what_is_served_is_kept(
    engine: TorchEngine, vision: VisionEncoder, full_model: Any
) -> None:
    parts = engine.parts
    modules = torch.nn.ModuleList([parts.embed, *parts.layers, parts.norm, parts.lm_head])
    decoder = sum(p.numel() for p in modules.parameters())  # tied weights count once
    tower = sum(p.numel() for p in vision.tower.parameters())
    assert decoder + tower == sum(p.numel() for p in full_model.parameters())


def test_released_memory_is_wiped(engine: TorchEngine) -> None:
    with slots(engine, 1) as (slot,):
        reference(engine, text_prompt(20, seed=1))
        prefill(engine, slot, text_prompt(50, seed=1))
    assert not engine._cache.memory.any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype: str, image_prompt: Prompt) -> None:
    """Smoke: a tree pass and plain decoding run, and stay near each other."""
    settings = SETTINGS.model_copy(update={"dtype": dtype})
    half = TorchEngine(CHECKPOINT, settings, top_k=4)
    tree = make_tree([-1, 0, 1, 0], [31, 32, 33, 34])
    with slots(half, 1) as (slot,):
        prefill(half, slot, image_prompt)
        handle = half.submit(Pass(trees=[verification(half, slot, image_prompt, tree)]))
        rows = handle.result().trees[0]
        got = handle.tree_logits(0, 2)
    assert rows.ids.shape == (4, 4)
    assert got.dtype == np.float32
    assert np.isfinite(rows.entropy).all()
    assert np.abs(got - reference(half, image_prompt.plus([31, 32, 33]))).max() < 1.0


def test_limits_come_from_settings_and_checkpoint() -> None:
    settings = EngineSettings(device="cpu", slots=1, max_sequence_tokens=100_000, threads=1)
    assert TorchEngine(CHECKPOINT, settings).capabilities.max_sequence_tokens == 2048


@pytest.mark.parametrize("device", ["cuda:99", *([] if torch.cuda.is_available() else ["cuda"])])
def test_a_device_that_is_not_there_is_one_clear_error(device: str) -> None:
    with pytest.raises(SettingsError, match=r"engine\.device: cuda.* CUDA devices"):
        TorchEngine(CHECKPOINT, SETTINGS.model_copy(update={"device": device}))


def test_broken_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((CHECKPOINT / "config.json").read_text())
    with pytest.raises(SettingsError, match="cannot be loaded"):
        TorchEngine(tmp_path, SETTINGS)
