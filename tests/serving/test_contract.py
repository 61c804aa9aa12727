"""The committed model repository is the rendering of the contract."""

from dataclasses import replace
from pathlib import Path

import pytest

from recap.serving import contract

REPOSITORY = Path(__file__).parents[2] / "model_repository"


@pytest.mark.parametrize("name", contract.MODELS)
def test_committed_config_is_the_rendering(name: str) -> None:
    committed = (REPOSITORY / name / "config.pbtxt").read_text(encoding="utf-8")
    assert committed == contract.render(contract.MODELS[name]), (
        "run: python -m recap.serving.contract --write model_repository"
    )


def test_repository_holds_our_models_only() -> None:
    assert {path.name for path in REPOSITORY.iterdir()} == set(contract.MODELS)


@pytest.mark.parametrize("name", contract.MODELS)
def test_version_folder_survives_git(name: str) -> None:
    files = [path.name for path in (REPOSITORY / name / "1").iterdir()]
    assert ("model.py" in files) != (".gitkeep" in files), files


@pytest.mark.parametrize("path", sorted(REPOSITORY.glob("*/1/model.py")), ids=str)
def test_model_files_are_thin(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 80


def test_ensemble_maps_every_tensor_once_and_in_order() -> None:
    ensemble = contract.MODELS[contract.RECAP_VLM]
    known = {tensor.name: tensor for tensor in ensemble.inputs}
    for step in ensemble.steps:
        model = contract.MODELS[step.model]
        inputs = {tensor.name for tensor in model.inputs}
        assert set(step.inputs) <= inputs
        required = {tensor.name for tensor in model.inputs if not tensor.optional}
        assert required <= set(step.inputs)
        for name in step.inputs:
            theirs, ours = known[name], model.tensor(name)
            assert theirs.dtype == ours.dtype
            batch = (1,) if model.max_batch_size else ()
            assert theirs.dims == (*batch, *ours.dims)
            # A client may leave an input out only where the step that gets it allows that.
            assert ours.optional or not theirs.optional
        for name in step.outputs:
            tensor = model.tensor(name)
            batch = (1,) if model.max_batch_size else ()
            known[name] = replace(tensor, dims=(*batch, *tensor.dims))
    assert {tensor.name for tensor in ensemble.outputs} <= set(known)


def test_only_text_or_messages_is_needed() -> None:
    assert all(tensor.optional for tensor in contract.MODELS[contract.RECAP_VLM].inputs)


def test_write_makes_the_same_files(tmp_path: Path) -> None:
    assert contract.main(["--write", str(tmp_path)]) == 0
    for name in contract.MODELS:
        written = (tmp_path / name / "config.pbtxt").read_bytes()
        assert written == (REPOSITORY / name / "config.pbtxt").read_bytes()
