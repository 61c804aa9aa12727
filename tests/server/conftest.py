"""Real tritonservers for the tests of this folder, started once and stopped cleanly."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from recap.serving import contract
from recap.serving.launch import Options, Server, plan

from .library import Library

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "engine_build" / "tiny_vlm" / "checkpoint"
READY_TIMEOUT_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.server)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """Shows what the servers said when a test fails."""
    report = yield
    if report.failed:
        for name in ("server", "echo_server"):
            server = getattr(item, "funcargs", {}).get(name)
            if isinstance(server, Server):
                report.sections.append((f"log of {name}", "\n".join(server.log.lines()[-60:])))
    return report


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


def running(options: Options) -> Iterator[Server]:
    server = Server(plan(options))
    try:
        server.wait_ready(READY_TIMEOUT_S)
        yield server
    finally:
        code = server.stop()
    assert code == 0, "\n".join(server.log.lines()[-40:])
    assert not any("Non-graceful" in line for line in server.log.lines())


@pytest.fixture(scope="session")
def server(run_dir: Path) -> Iterator[Server]:
    """The product: the committed repository with the shipped checkpoint."""
    yield from running(
        Options(
            ROOT / "model_repository", http_port=0, grpc_port=0, metrics_port=0, run_dir=run_dir
        )
    )


@pytest.fixture(scope="session")
def echo_server(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The same repository over a target model that repeats its prompt byte by byte."""
    repository = tmp_path_factory.mktemp("scripted") / "model_repository"
    shutil.copytree(Path(__file__).parent / "scripted_repository", repository)
    contract.write(repository)
    yield from running(
        Options(
            repository,
            settings={"RECAP_MODEL__CHECKPOINT": str(CHECKPOINT), "PROJECT_ROOT": str(ROOT)},
            http_port=0,
            grpc_port=0,
            metrics_port=0,
            run_dir=run_dir,
        )
    )


@pytest.fixture(scope="session")
def library() -> Library:
    """The same model in this process, without any server."""
    return Library(ROOT)
