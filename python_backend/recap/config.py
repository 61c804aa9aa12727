"""Every setting of the product with its default, read once at start-up.

Order of precedence: environment variables, then the YAML file that ``RECAP_CONFIG`` names, then
the defaults below. A variable is ``RECAP_<SECTION>__<FIELD>``, for example
``RECAP_DRAFTER__NODES=31``. Unknown names and values out of range are one `SettingsError` that
lists every fault. `docs/configuration.md` is the rendering of this file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)
from pydantic_settings import (
    SettingsError as PydanticSettingsError,
)

from recap.errors import SettingsError

DEFAULT_CHECKPOINT = Path("engine_build/tiny_vlm/checkpoint")
"""The shipped checkpoint, relative to the folder that holds `model_repository`."""

PREFIX = "RECAP_"
CONFIG_VARIABLE = "RECAP_CONFIG"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSettings(_Section):
    """Which model is served."""

    checkpoint: Path | None = Field(
        None,
        description="Directory of a transformers checkpoint (safetensors). "
        f"Unset: `{DEFAULT_CHECKPOINT}` beside the model repository.",
    )


class EngineSettings(_Section):
    """Where and how the target model runs."""

    kind: Literal["torch"] = Field("torch", description="Engine implementation.")
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="`auto` (CUDA when there is one), `cpu`, `cuda` or `cuda:N`.",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32",
        description="Computation dtype. Output equals plain decoding token for token in float32.",
    )
    slots: int = Field(4, ge=1, le=256, description="Sequences held in the KV cache at once.")
    max_sequence_tokens: int = Field(
        2048,
        ge=16,
        description="Most tokens of prompt and output together; bounded by the checkpoint's own.",
    )
    prefill_chunk_tokens: int = Field(
        512, ge=16, description="Most prompt tokens in one pass, all newcomers together."
    )
    threads: int = Field(0, ge=0, description="CPU threads of the engine; 0: torch's default.")


class LimitSettings(_Section):
    """What a request may ask for."""

    default_max_tokens: int = Field(256, ge=1, description="When `max_tokens` is not given.")
    max_output_tokens: int = Field(1024, ge=1, description="Largest `max_tokens` accepted.")
    max_text_bytes: int = Field(
        1_000_000,
        ge=1,
        description="Most UTF-8 bytes of `text_input` or `messages`, data URIs left out.",
    )
    max_images: int = Field(8, ge=0, description="Most images of one request.")
    max_image_bytes: int = Field(
        20_000_000, ge=1, description="Most bytes of one encoded image (after base64)."
    )
    max_image_pixels: int = Field(
        50_000_000, ge=1, description="Most pixels of one image before resizing."
    )
    max_waiting: int = Field(
        128, ge=0, description="Requests that may wait for a slot; one more is UNAVAILABLE."
    )


class RecapSettings(_Section):
    """Ingredients of the `recap` drafter; each can be switched off for an ablation."""

    key_lengths: tuple[Literal[1, 2, 3], ...] = Field(
        (1, 2, 3), description="Lengths of the keys that are looked up."
    )
    fusion: Literal["entropy", "backoff", "uniform"] = Field(
        "entropy", description="How predictions found under several keys are weighed."
    )
    seed_from_prompt: bool = Field(
        True, description="Fill the request's memories from the prefill's own predictions."
    )
    suffix: bool = Field(True, description="Let repeats of the request's own text join the tree.")
    persistent: bool = Field(
        True,
        description="Keep the one-token memory across requests; of no effect without key length 1.",
    )
    persistent_window: int = Field(
        8,
        ge=1,
        le=1024,
        description="Passes over which the one-token memory averages; 1: the newest alone.",
    )
    recycle_rejected: bool = Field(
        True, description="Write predictions of rejected nodes too, not only of accepted ones."
    )
    calibrated: bool = Field(
        True, description="Score by acceptance learnt online instead of raw fused probability."
    )
    max_depth: int = Field(10, ge=1, le=32, description="Deepest draft.")
    top_k: int = Field(8, ge=1, le=32, description="Predictions kept per memory entry.")
    branch: int = Field(16, ge=1, le=64, description="Most fused candidates below one node.")
    contextual_entries: int = Field(
        65_536,
        ge=64,
        le=1 << 20,
        description="Entries of one request's memory, all key lengths together.",
    )


class TokenRecyclingSettings(_Section):
    """Switches of the `token_recycling` baseline; the defaults are the published method."""

    tree: Literal["published", "rank_cost"] = Field(
        "published",
        description="`published`: the 80-node template; `rank_cost`: a tree of `drafter.nodes`.",
    )
    update_all_nodes: bool = Field(True, description="Rejected nodes update the matrix too.")
    seed_from_prompt: bool = Field(False, description="Fill the matrix from the prefill.")
    persistent: bool = Field(True, description="Keep the matrix across requests.")


class PromptLookupSettings(_Section):
    """The `prompt_lookup` baseline."""

    max_ngram: int = Field(3, ge=1, le=8, description="Longest suffix that is looked up.")
    draft_tokens: int = Field(10, ge=1, le=64, description="Longest continuation proposed.")


class DrafterSettings(_Section):
    """What proposes drafts, and how many."""

    method: Literal["recap", "token_recycling", "prompt_lookup", "autoregressive"] = Field(
        "recap", description="`autoregressive` is plain decoding."
    )
    nodes: int = Field(
        15, ge=0, le=255, description="Most drafts per request and step; 0 is plain decoding."
    )
    recap: RecapSettings = Field(default_factory=RecapSettings)
    token_recycling: TokenRecyclingSettings = Field(default_factory=TokenRecyclingSettings)
    prompt_lookup: PromptLookupSettings = Field(default_factory=PromptLookupSettings)


class Settings(BaseSettings):
    """All settings."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    model: ModelSettings = Field(default_factory=ModelSettings)
    engine: EngineSettings = Field(default_factory=EngineSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    drafter: DrafterSettings = Field(default_factory=DrafterSettings)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment over YAML file over defaults; explicit arguments win over all."""
        sources: list[PydanticBaseSettingsSource] = [init_settings, env_settings]
        if path := os.environ.get(CONFIG_VARIABLE):
            sources.append(YamlConfigSettingsSource(settings_cls, yaml_file=path))
        return tuple(sources)


def load_settings(root: Path | None = None, **overrides: Any) -> Settings:
    """Reads and checks all settings.

    Args:
        root: Folder that holds `model_repository`; where the shipped checkpoint is looked for
            when no checkpoint is set. None: the current directory.
        **overrides: Sections given in code, such as ``drafter={"nodes": 7}``.

    Returns:
        Settings whose ``model.checkpoint`` is an existing directory.

    Raises:
        SettingsError: A name is unknown, a value is out of range, or a file is missing.
    """
    _check_names()
    if path := os.environ.get(CONFIG_VARIABLE):
        _check_file(Path(path))
    try:
        settings = Settings(**overrides)
    except ValidationError as error:
        raise SettingsError(_explain(error)) from None
    except (PydanticSettingsError, ValueError) as error:
        raise SettingsError(f"settings: {' '.join(str(error).split())}") from None
    checkpoint = settings.model.checkpoint or (root or Path()) / DEFAULT_CHECKPOINT
    if not (checkpoint / "config.json").is_file():
        raise SettingsError(
            f"model.checkpoint: {checkpoint} is not a checkpoint directory (no config.json)"
        )
    model = settings.model.model_copy(update={"checkpoint": checkpoint.resolve()})
    return settings.model_copy(update={"model": model})


def _check_file(path: Path) -> None:
    """Reads the YAML file once by itself, so that what is wrong with it is said of the file."""
    if not path.is_file():
        raise SettingsError(f"{CONFIG_VARIABLE}: no such file: {path}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise SettingsError(f"settings: {path} is not a YAML file: {reason}") from None
    if content is not None and not isinstance(content, dict):
        raise SettingsError(f"settings: {path} must hold sections, such as `drafter:`")


def _check_names() -> None:
    """Refuses variables under our prefix with an unknown section: a typo, otherwise silent."""
    known = tuple(f"{PREFIX}{section.upper()}__" for section in Settings.model_fields)
    for name in os.environ:
        if name.startswith(PREFIX) and name != CONFIG_VARIABLE and not name.startswith(known):
            raise SettingsError(
                f"{name}: unknown setting; names are {PREFIX}<SECTION>__<FIELD> with sections "
                + ", ".join(section.upper() for section in Settings.model_fields)
            )


def _explain(error: ValidationError) -> str:
    faults = (
        f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
        for fault in error.errors(include_url=False)
    )
    return "settings: " + "; ".join(faults)
