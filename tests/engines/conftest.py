"""The shipped checkpoint, loaded once: engine, vision encoder, and transformers' whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recap.config import EngineSettings
from recap.engines.torch_engine import TorchEngine
from recap.engines.vision import VisionEncoder

CHECKPOINT = Path(__file__).parents[2] / "engine_build/tiny_vlm/checkpoint"
# One thread: the suite must be quick beside other work on few cores.
SETTINGS = EngineSettings(device="cpu", slots=4, max_sequence_tokens=200, threads=1)


def pixels(grids: np.ndarray, seed: int) -> np.ndarray:
    """float32 [patches, 1176]: noise with a trend, in the range of normalised pixels."""
    rows = int(np.prod(grids, axis=1).sum()) if len(grids) else 0
    noise = np.random.default_rng(seed).normal(size=(rows, 1176))
    return (noise + np.linspace(-1, 1, rows)[:, None]).astype(np.float32)


@pytest.fixture(scope="session")
def vision() -> VisionEncoder:
    return VisionEncoder(CHECKPOINT, SETTINGS)


@pytest.fixture(scope="session")
def engine() -> TorchEngine:
    return TorchEngine(CHECKPOINT, SETTINGS)


@pytest.fixture(scope="session")
def full_model() -> Any:
    from transformers import Qwen2_5_VLForConditionalGeneration

    return Qwen2_5_VLForConditionalGeneration.from_pretrained(
        CHECKPOINT, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
