"""What differs per model family; `adapter_for` picks the adapter of a checkpoint."""

from __future__ import annotations

from pathlib import Path

from recap.errors import SettingsError
from recap.models.base import ModelAdapter, read_json
from recap.models.causal_lm import CausalLMAdapter
from recap.models.qwen2_5_vl import Qwen2_5_VLAdapter

ADAPTERS: tuple[type[ModelAdapter], ...] = (Qwen2_5_VLAdapter, CausalLMAdapter)


def adapter_for(checkpoint: Path) -> ModelAdapter:
    """The adapter of a transformers checkpoint directory.

    Raises:
        SettingsError: There is no checkpoint, or its architecture is not supported.
    """
    found = read_json(checkpoint / "config.json").get("architectures") or []
    for adapter in ADAPTERS:
        if any(name in adapter.architectures for name in found):
            return adapter(checkpoint)
    supported = ", ".join(name for adapter in ADAPTERS for name in adapter.architectures)
    raise SettingsError(
        f"{checkpoint}: architecture {', '.join(found) or '(none)'} is not supported; "
        f"supported: {supported}"
    )
