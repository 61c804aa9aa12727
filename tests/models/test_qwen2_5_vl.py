"""The Qwen2.5-VL adapter: layout against transformers, special ids, refusals."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recap.errors import InvalidRequestError, SettingsError
from recap.models import adapter_for
from recap.models.qwen2_5_vl import Qwen2_5_VLAdapter

CHECKPOINT = Path(__file__).parents[2] / "engine_build/tiny_vlm/checkpoint"
START, END, PAD = 2043, 2044, 2046


@pytest.fixture(scope="module")
def adapter() -> Qwen2_5_VLAdapter:
    found = adapter_for(CHECKPOINT)
    assert isinstance(found, Qwen2_5_VLAdapter)
    return found


@pytest.fixture(scope="module")
def reference() -> Any:
    """Transformers' model without weights: only its position rule is used."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLModel

    with torch.device("meta"):
        return Qwen2_5_VLModel(Qwen2_5_VLConfig.from_pretrained(CHECKPOINT))


def prompt(grids: list[list[int]], before: int = 4, after: int = 5) -> np.ndarray:
    """Text, the images each between its markers, text."""
    ids = list(range(20, 20 + before))
    for t, h, w in grids:
        ids += [START, *[PAD] * (t * h * w // 4), END]
    return np.array(ids + list(range(50, 50 + after)), np.int32)


@pytest.mark.parametrize("after", [0, 5])
@pytest.mark.parametrize(
    "grids",
    [
        [],
        [[1, 8, 8]],
        [[1, 4, 10]],
        [[1, 10, 4], [1, 2, 2]],
        [[1, 6, 12], [1, 8, 8], [1, 2, 20]],
    ],
)
def test_layout_equals_transformers(
    adapter: Qwen2_5_VLAdapter, reference: Any, grids: list[list[int]], after: int
) -> None:
    ids = prompt(grids, after=after)
    layout = adapter.layout(ids, np.array(grids, np.int64).reshape(-1, 3))
    tokens = torch.tensor(ids[None].astype(np.int64))
    arguments: dict[str, Any] = {"image_grid_thw": torch.tensor(grids) if grids else None}
    if "mm_token_type_ids" in inspect.signature(reference.get_rope_index).parameters:
        arguments["mm_token_type_ids"] = (tokens == PAD).int()
    positions, delta = reference.get_rope_index(tokens, **arguments)
    np.testing.assert_array_equal(layout.positions, positions[:, 0].numpy())
    assert layout.positions.dtype == np.int32
    assert layout.position_delta == int(delta)
    np.testing.assert_array_equal(layout.is_image, ids == PAD)


def test_layout_without_images(adapter: Qwen2_5_VLAdapter) -> None:
    ids = prompt([])
    none, empty = adapter.layout(ids, None), adapter.layout(ids, np.zeros((0, 3), np.int64))
    np.testing.assert_array_equal(none.positions, empty.positions)
    assert none.position_delta == empty.position_delta == 0


@pytest.mark.parametrize(
    ("grids", "held"),
    [([[1, 8, 8]], []), ([], [[1, 8, 8]]), ([[1, 8, 8], [1, 4, 4]], [[1, 8, 8]])],
)
def test_placeholders_must_fit(
    adapter: Qwen2_5_VLAdapter, grids: list[list[int]], held: list[list[int]]
) -> None:
    with pytest.raises(InvalidRequestError, match="^image: "):
        adapter.layout(prompt(held), np.array(grids, np.int64).reshape(-1, 3))


@given(
    grids=st.lists(
        st.lists(st.sampled_from([-2, 0, 1, 2, 3, 4, 6, 2**31, 2**62]), min_size=1, max_size=4),
        min_size=1,
        max_size=3,
    ).filter(lambda grids: len({len(grid) for grid in grids}) == 1),
    held=st.integers(0, 12),
)
def test_any_grid_is_laid_out_or_refused(
    adapter: Qwen2_5_VLAdapter, grids: list[list[int]], held: int
) -> None:
    """Callers of one step of the pipeline may send what no image processor makes."""
    images = np.array(grids, np.int64)
    ids = np.array([20, *[PAD] * held, 50], np.int32)
    try:
        layout = adapter.layout(ids, images)
    except InvalidRequestError:
        return
    assert layout.is_image.sum() == held == (images.prod(1) // 4).sum()
    assert (images >= 1).all() and not (images[:, 1:] % 2).any()
    assert layout.positions.min() == 0


def test_pixels_must_fit_the_grids(adapter: Qwen2_5_VLAdapter) -> None:
    adapter.check_pixels(np.zeros((4, 1176), np.float32), np.array([[1, 2, 2]]))
    adapter.check_pixels(np.zeros((0, 1176), np.float32), np.zeros((0, 3), np.int64))
    for shape, grid in (
        ((4, 7), [1, 2, 2]),
        ((3, 1176), [1, 2, 2]),
        ((12, 1176), [1, 3, 4]),
        ((4, 1176), [1, -2, -2]),
    ):
        with pytest.raises(InvalidRequestError, match="^image: "):
            adapter.check_pixels(np.zeros(shape, np.float32), np.array([grid]))


def test_image_must_not_be_torn_apart(adapter: Qwen2_5_VLAdapter) -> None:
    ids = np.array([PAD, 20, PAD, PAD, PAD], np.int32)
    with pytest.raises(InvalidRequestError, match="adjacent"):
        adapter.layout(ids, np.array([[1, 4, 4]]))


@pytest.mark.parametrize("ids", [[], [2048], [-1]])
def test_ids_must_be_in_the_vocabulary(adapter: Qwen2_5_VLAdapter, ids: list[int]) -> None:
    with pytest.raises(InvalidRequestError):
        adapter.layout(np.array(ids, np.int32), None)


def test_special_ids(adapter: Qwen2_5_VLAdapter) -> None:
    assert adapter.eos_ids == (2034,)
    assert adapter.forbidden_ids.tolist() == [2035, 2043, 2044, 2046, 2047]
    assert adapter.image_token_id == PAD
    assert (adapter.vocab_size, adapter.hidden_size, adapter.max_positions) == (2048, 256, 2048)
    assert adapter.features_per_image(np.array([[1, 8, 8], [1, 2, 4]])).tolist() == [16, 2]


def test_end_token_that_pads_may_be_drafted(tmp_path: Path) -> None:
    config = json.loads((CHECKPOINT / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [2034, 2035], "pad_token_id": 2035})
    )
    adapter = adapter_for(tmp_path)
    assert adapter.eos_ids == (2034, 2035)
    assert 2035 not in adapter.forbidden_ids
    (tmp_path / "generation_config.json").unlink()
    assert adapter_for(tmp_path).eos_ids == (2034,)


def test_flat_config_of_older_checkpoints(tmp_path: Path) -> None:
    """Public Qwen2.5-VL checkpoints keep the decoder's values at the top level."""
    config = json.loads((CHECKPOINT / "config.json").read_text())
    config |= config.pop("text_config")
    (tmp_path / "config.json").write_text(json.dumps(config))
    adapter = adapter_for(tmp_path)
    assert (adapter.vocab_size, adapter.hidden_size, adapter.eos_ids) == (2048, 256, (2034,))


def test_adapter_for_refuses(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="config.json"):
        adapter_for(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["T5Model"]}')
    with pytest.raises(SettingsError, match="T5Model.*Qwen2_5_VLForConditionalGeneration"):
        adapter_for(tmp_path)
