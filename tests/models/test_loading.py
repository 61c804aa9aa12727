"""A checkpoint that is not whole is refused by name; it never serves made-up weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from recap.config import EngineSettings
from recap.engines.torch_engine import TorchEngine
from recap.engines.vision import VisionEncoder
from recap.errors import SettingsError

CHECKPOINT = Path(__file__).parents[2] / "engine_build/tiny_vlm/checkpoint"
SETTINGS = EngineSettings(device="cpu", threads=1)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHECKPOINT, tmp_path / "checkpoint"))


@pytest.mark.parametrize("loader", [TorchEngine, VisionEncoder])
@pytest.mark.parametrize(
    "missing", ["layers.1.mlp.up_proj.weight", "blocks.0.attn.qkv.bias", "embed_tokens.weight"]
)
def test_missing_weights_are_refused(copy: Path, loader: type, missing: str) -> None:
    weights = load_file(copy / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.endswith(missing)}
    assert len(kept) < len(weights)
    save_file(kept, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(SettingsError, match="missing") as caught:
        loader(copy, SETTINGS)
    assert str(copy) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no weights at all", b"\xff" * 64])
def test_a_damaged_weights_file_is_one_error_that_names_the_checkpoint(
    copy: Path, content: bytes
) -> None:
    (copy / "model.safetensors").write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        TorchEngine(copy, SETTINGS)
    assert str(copy) in str(caught.value)


def test_the_shipped_checkpoint_is_whole() -> None:
    assert TorchEngine(CHECKPOINT, SETTINGS).capabilities.vocab_size == 2048
