"""A text-only model with one rotary axis passes the same suite (random weights)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from recap.engines.torch_engine import TorchEngine
from recap.engines.vision import VisionEncoder
from recap.errors import InvalidRequestError, SettingsError
from recap.models import adapter_for
from tests.engines.conformance import Conformance
from tests.engines.conftest import SETTINGS


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1100,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,  # far from uniform predictions, so that errors show
    )
    path = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> TorchEngine:
    return TorchEngine(checkpoint, SETTINGS)


@pytest.fixture
def image_prompt() -> None:
    return None


class TestConformance(Conformance):
    pass


def test_takes_no_images(checkpoint: Path) -> None:
    adapter = adapter_for(checkpoint)
    with pytest.raises(InvalidRequestError, match="^image: "):
        adapter.layout(np.array([1, 2], np.int32), np.array([[1, 2, 2]]))
    with pytest.raises(SettingsError, match="no images"):
        VisionEncoder(checkpoint, SETTINGS)
