"""`VisionEncoder`: ragged batches, empty entries, and agreement with transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recap.engines.vision import VisionEncoder
from recap.errors import InvalidRequestError
from tests.engines.conftest import pixels

NO_IMAGE = np.zeros((0, 3), np.int64)
GRIDS = [np.array([[1, 8, 8]]), np.array([[1, 4, 6], [1, 10, 4]])]


def test_ragged_batch_equals_one_at_a_time(vision: VisionEncoder) -> None:
    layouts = [GRIDS[0], NO_IMAGE, GRIDS[1]]
    values = [pixels(grids, seed) for seed, grids in enumerate(layouts)]
    together = vision.encode(values, layouts)
    assert [part.shape for part in together] == [(16, 256), (0, 256), (16, 256)]
    assert vision.hidden_size == 256
    for part, rows, layout in zip(together, values, layouts, strict=True):
        (alone,) = vision.encode([rows], [layout])
        assert part.dtype == np.float32
        np.testing.assert_allclose(part, alone, atol=1e-4)


def test_agrees_with_transformers(vision: VisionEncoder, full_model: Any) -> None:
    values = pixels(GRIDS[1], seed=5)
    (got,) = vision.encode([values], [GRIDS[1]])
    with torch.inference_mode():
        out = full_model.model.get_image_features(torch.tensor(values), torch.tensor(GRIDS[1]))
    parts = getattr(out, "pooler_output", out)
    np.testing.assert_allclose(got, torch.cat(list(parts)).numpy(), atol=1e-5)


def test_no_images_do_not_run_the_tower(
    vision: VisionEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("the tower ran")

    monkeypatch.setattr(vision.adapter, "encode", refuse)
    empty = np.zeros((0, 1176), np.float32)
    got = vision.encode([empty, empty], [NO_IMAGE, NO_IMAGE])
    assert [part.shape for part in got] == [(0, 256), (0, 256)]
    assert vision.encode([], []) == []
    with pytest.raises(AssertionError, match="the tower ran"):
        vision.encode([pixels(GRIDS[0], 0)], [GRIDS[0]])


def test_pixels_must_fit_the_layout(vision: VisionEncoder) -> None:
    with pytest.raises(InvalidRequestError, match="64 patches, got 63"):
        vision.encode([pixels(GRIDS[0], 0)[:-1]], [GRIDS[0]])
