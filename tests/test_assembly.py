"""From settings to parts that fit each other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from recap.assembly import join, stored_top_k
from recap.config import DrafterSettings, load_settings
from recap.drafters.autoregressive import AutoregressiveDrafter
from recap.errors import SettingsError
from tests.fakes import ToyEngine

ROOT = Path(__file__).parents[1]


def toy() -> ToyEngine:
    engine = ToyEngine()
    engine.adapter = SimpleNamespace(eos_ids=(0,), forbidden_ids=np.array([63], np.int32))
    return engine


@pytest.mark.parametrize(
    "method, wanted",
    [("recap", 3), ("token_recycling", 8), ("prompt_lookup", 1), ("autoregressive", 1)],
)
def test_a_setting_of_one_method_does_not_starve_another(method: str, wanted: int) -> None:
    """Token recycling has eight successors whatever `recap` is set to keep."""
    settings = DrafterSettings.model_validate({"method": method, "recap": {"top_k": 3}})
    assert stored_top_k(settings) == wanted


@pytest.mark.parametrize("method", ["recap", "token_recycling", "prompt_lookup", "autoregressive"])
def test_no_nodes_is_plain_decoding_and_learns_nothing(method: str) -> None:
    settings = load_settings(ROOT, drafter={"method": method, "nodes": 0})
    scheduler = join(settings, toy())
    assert isinstance(scheduler.drafter, AutoregressiveDrafter)
    assert scheduler.budget.total(3) == 0
    assert not scheduler._seed


def test_more_nodes_than_the_engine_verifies_are_refused() -> None:
    engine = toy()
    engine.capabilities = SimpleNamespace(**{**vars(engine.capabilities), "max_nodes": 7})
    with pytest.raises(SettingsError, match=r"drafter\.nodes: .* at most 7, got 15"):
        join(load_settings(ROOT), engine)
