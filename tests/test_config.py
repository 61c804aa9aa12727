"""Settings come from one place, and every fault names the setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from recap.config import DEFAULT_CHECKPOINT, load_settings
from recap.errors import SettingsError

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith("RECAP_"):
            monkeypatch.delenv(name)


def test_defaults_find_the_shipped_checkpoint() -> None:
    assert load_settings(ROOT).model.checkpoint == (ROOT / DEFAULT_CHECKPOINT).resolve()


def test_environment_beats_file_beats_defaults(tmp_path, monkeypatch) -> None:
    path = tmp_path / "recap.yaml"
    path.write_text("drafter:\n  nodes: 31\n  recap:\n    suffix: false\nengine:\n  slots: 2\n")
    monkeypatch.setenv("RECAP_CONFIG", str(path))
    monkeypatch.setenv("RECAP_DRAFTER__NODES", "7")
    settings = load_settings(ROOT)
    assert settings.drafter.nodes == 7
    assert settings.drafter.recap.suffix is False
    assert settings.engine.slots == 2
    assert settings.limits.max_images == 8


@pytest.mark.parametrize(
    "name, value, named",
    [
        ("RECAP_DRAFTER__NODES", "many", "drafter.nodes"),
        ("RECAP_DRAFTER__NODES", "-1", "drafter.nodes"),
        ("RECAP_DRAFTER__NODE", "1", "drafter.node"),
        ("RECAP_DRAFTER__METHOD", "magic", "drafter.method"),
        ("RECAP_DRAFTER__RECAP__KEY_LENGTHS", "[1, 4]", "drafter.recap.key_lengths"),
        ("RECAP_ENGINE__DEVICE", "tpu", "engine.device"),
        ("RECAP_ENGINE__DTYPE", "float64", "engine.dtype"),
        ("RECAP_ENGINE__SLOTS", "0", "engine.slots"),
        ("RECAP_LIMITS__MAX_WAITING", "x", "limits.max_waiting"),
        ("RECAP_ENGIN__SLOTS", "1", "RECAP_ENGIN__SLOTS"),
        ("RECAP_NODES", "1", "RECAP_NODES"),
        ("RECAP_CONFIG", "no/such/file.yaml", "no/such/file.yaml"),
        ("RECAP_MODEL__CHECKPOINT", "no/such/place", "no/such/place"),
    ],
)
def test_a_bad_variable_is_one_error_that_names_it(monkeypatch, name, value, named) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load_settings(ROOT)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content, named",
    [
        ("drafter:\n  nodes: [1]\n", "drafter.nodes"),
        ("drafter:\n  colour: red\n", "drafter.colour"),
        ("servers: 3\n", "servers"),
        ("- a\n- b\n", "recap.yaml"),
        ("a: [1\n", "recap.yaml"),
        ("just text\n", "recap.yaml"),
        ("\udcff\udcfe", "recap.yaml"),
    ],
)
def test_a_bad_file_is_one_error_that_names_the_fault(tmp_path, monkeypatch, content, named):
    path = tmp_path / "recap.yaml"
    path.write_text(content, errors="surrogateescape")
    monkeypatch.setenv("RECAP_CONFIG", str(path))
    with pytest.raises(SettingsError) as caught:
        load_settings(ROOT)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_fault_is_listed_at_once(monkeypatch) -> None:
    monkeypatch.setenv("RECAP_DRAFTER__NODES", "x")
    monkeypatch.setenv("RECAP_ENGINE__SLOTS", "0")
    with pytest.raises(SettingsError) as caught:
        load_settings(ROOT)
    assert "drafter.nodes" in str(caught.value) and "engine.slots" in str(caught.value)


def test_the_document_is_the_rendering_of_the_settings() -> None:
    from recap.config_docs import render

    assert (ROOT / "docs" / "configuration.md").read_text() == render()
