"""Builds the parts that settings ask for and joins them to a scheduler.

The server and the benchmark both start here, so that what is measured is what is served.
"""

from __future__ import annotations

from recap.budget import FixedBudget
from recap.config import DrafterSettings, Settings
from recap.drafters import make_drafter
from recap.drafters.templates import RANKS
from recap.engines.torch_engine import TorchEngine
from recap.errors import SettingsError
from recap.models.processor import load_tokenizer
from recap.requests import Vocabulary
from recap.scheduler import Scheduler


def build_scheduler(settings: Settings) -> Scheduler:
    """Loads the text model and returns a scheduler over it, not started yet.

    Args:
        settings: From `config.load_settings`, so that the checkpoint is set.

    Raises:
        SettingsError: The settings do not fit each other or the checkpoint.
    """
    return join(settings, build_engine(settings))


def build_engine(settings: Settings, top_k: int | None = None) -> TorchEngine:
    """Loads the text model into an engine.

    Args:
        settings: From `config.load_settings`.
        top_k: Predictions per position; None: as many as the drafter of `settings` stores.

    Raises:
        SettingsError: The checkpoint is missing, damaged or of an unsupported family.
    """
    assert settings.model.checkpoint is not None, "load_settings sets the checkpoint"
    top_k = stored_top_k(settings.drafter) if top_k is None else top_k
    return TorchEngine(settings.model.checkpoint, settings.engine, top_k=top_k)


def stored_top_k(drafter: DrafterSettings) -> int:
    """Predictions per position that the method makes use of; one is what decoding itself needs."""
    if drafter.method == "recap":
        return drafter.recap.top_k
    return RANKS if drafter.method == "token_recycling" else 1


def join(settings: Settings, engine: TorchEngine) -> Scheduler:
    """A scheduler with the drafter that the settings name, over an engine that is loaded already.

    Raises:
        SettingsError: The drafter asks for more nodes than the engine verifies.
    """
    assert settings.model.checkpoint is not None, "load_settings sets the checkpoint"
    drafter, can = settings.drafter, engine.capabilities
    if drafter.nodes == 0:
        # Nothing would ever be proposed from what the method learns: do not make it learn.
        drafter = drafter.model_copy(update={"method": "autoregressive"})
    if drafter.nodes > can.max_nodes:
        raise SettingsError(
            f"drafter.nodes: the engine verifies at most {can.max_nodes}, got {drafter.nodes}"
        )
    tokenizer = load_tokenizer(settings.model.checkpoint)
    vocabulary = Vocabulary(tokenizer.decode, frozenset(engine.adapter.eos_ids))
    return Scheduler(
        engine,
        make_drafter(
            drafter,
            vocab_size=can.vocab_size,
            forbidden_ids=engine.adapter.forbidden_ids,
            eos_ids=engine.adapter.eos_ids,
        ),
        FixedBudget(0 if drafter.method == "autoregressive" else drafter.nodes),
        vocabulary,
        settings.limits,
        prefill_chunk_tokens=settings.engine.prefill_chunk_tokens,
        seed_from_prompt=_seeds(drafter),
    )


def _seeds(drafter: DrafterSettings) -> bool:
    """Whether the method learns from the prompt's predictions; otherwise none are computed."""
    if drafter.method == "recap":
        return drafter.recap.seed_from_prompt
    if drafter.method == "token_recycling":
        return drafter.token_recycling.seed_from_prompt
    return False
