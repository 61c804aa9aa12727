"""What can be known to be wrong before a server starts is one line; the rest comes from its log.

A shell script plays the server here; tests/server has the real one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from recap.errors import SettingsError
from recap.serving import installation, launch
from recap.serving.launch import LaunchError, Options, Server, plan
from recap.serving.server_log import ServerLog

ROOT = Path(__file__).parents[2]
FREE = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}


def fake_server(folder: Path, script: str) -> Path:
    """A `tritonserver` without backends of its own."""
    binary = folder / "opt" / "bin" / "tritonserver"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/bash\n{script}\n")
    binary.chmod(0o755)
    return binary


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(
        ROOT / "model_repository",
        tritonserver=fake_server(tmp_path, "sleep 60"),
        run_dir=tmp_path / "run",
        **FREE,
    )


def with_(options: Options, **changes) -> Options:
    return Options(**{**options.__dict__, **changes})


def refusal(options: Options) -> str:
    with pytest.raises(SettingsError) as refused:
        plan(options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_plan_has_three_different_ports_and_all_settings(options: Options) -> None:
    made = plan(with_(options, settings={"RECAP_DRAFTER__NODES": "31"}))
    assert len({made.http_port, made.grpc_port, made.metrics_port}) == 3
    assert made.environment["RECAP_DRAFTER__NODES"] == "31"
    assert f"--http-port={made.http_port}" in made.command
    assert made.environment["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert str(ROOT / "python_backend") in made.environment["PYTHONPATH"].split(":")
    assert "RECAP_DRAFTER__NODES" not in os.environ


def test_shell_line_runs_the_same_command(options: Options, tmp_path: Path) -> None:
    assert options.tritonserver is not None
    options.tritonserver.write_text('#!/bin/bash\necho "$@"; echo "nodes $RECAP_DRAFTER__NODES"')
    made = plan(with_(options, settings={"RECAP_DRAFTER__NODES": "31"}))
    done = subprocess.run(["bash", "-c", made.shell()], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [" ".join(made.command[1:]), "nodes 31"]


@pytest.mark.parametrize("port", ["http_port", "grpc_port", "metrics_port"])
def test_taken_port(options: Options, port: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        number = other.getsockname()[1]
        said = refusal(with_(options, **{port: number}))
    assert str(number) in said and port.replace("_", "-") in said


@pytest.mark.parametrize("port", [70_000, -1])
def test_port_out_of_range(options: Options, port: int) -> None:
    said = refusal(with_(options, http_port=port))
    assert "--http-port" in said and "no such port" in said


def test_missing_checkpoint(options: Options, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    said = refusal(with_(options, settings={"RECAP_MODEL__CHECKPOINT": nowhere}))
    assert "model.checkpoint" in said and nowhere in said


def test_settings_out_of_range(options: Options) -> None:
    assert "drafter.nodes" in refusal(with_(options, settings={"RECAP_DRAFTER__NODES": "-1"}))


def test_missing_repository(options: Options, tmp_path: Path) -> None:
    assert "no such directory" in refusal(with_(options, repository=tmp_path / "nowhere"))


@pytest.mark.parametrize("name", ["two words", "a;b", "$HOME", "it's", "a&b", "tab\tstop"])
def test_paths_that_the_stubs_shell_line_cannot_hold(
    options: Options, tmp_path: Path, name: str
) -> None:
    """Triton would wait for its stubs until the time for the start is over."""
    repository = tmp_path / name / "model_repository"
    repository.mkdir(parents=True)
    checkpoint = str(ROOT / "engine_build" / "tiny_vlm" / "checkpoint")
    settings = {"RECAP_MODEL__CHECKPOINT": checkpoint}
    said = refusal(with_(options, repository=repository, settings=settings))
    assert said.startswith("--model-repository: ") and "shell syntax" in said
    assert options.tritonserver is not None
    home = options.tritonserver.parent.parent
    stub = home / "python_backend_stubs" / installation.PYTHON_VERSION / installation.STUB
    stub.parent.mkdir(parents=True)
    stub.touch()
    (home / "backends" / "python").mkdir(parents=True)
    said = refusal(with_(options, run_dir=tmp_path / name))
    assert said.startswith("--run-dir: ") and "shell syntax" in said


def test_not_a_server(options: Options, tmp_path: Path) -> None:
    assert "not an executable file" in refusal(with_(options, tritonserver=tmp_path))


def test_no_server_anywhere(
    options: Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(installation.importlib.util, "find_spec", lambda name: None)
    assert "recap-triton[cpu-server]" in refusal(with_(options, tritonserver=None))


def test_path_comes_before_the_package(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    assert options.tritonserver is not None
    monkeypatch.setenv("PATH", f"{options.tritonserver.parent}:{os.environ['PATH']}")
    assert plan(with_(options, tritonserver=None)).command[0] == str(options.tritonserver)


def test_interpreter_without_a_stub(options: Options) -> None:
    assert options.tritonserver is not None
    (options.tritonserver.parent.parent / "python_backend_stubs" / "2.7").mkdir(parents=True)
    said = refusal(options)
    assert f"Python {installation.PYTHON_VERSION}" in said and "2.7" in said


def test_stub_of_another_python(options: Options) -> None:
    assert options.tritonserver is not None
    folder = options.tritonserver.parent.parent / "backends" / "python"
    folder.mkdir(parents=True)
    (folder / installation.STUB).write_bytes(b"\0libpython3.6m.so.1.0\0")
    assert "runs Python 3.6" in refusal(options)


def test_backends_are_copied_once_with_the_stub(options: Options) -> None:
    assert options.tritonserver is not None and options.run_dir is not None
    home = options.tritonserver.parent.parent
    stub = home / "python_backend_stubs" / installation.PYTHON_VERSION / installation.STUB
    stub.parent.mkdir(parents=True)
    stub.write_bytes(b"stub")
    (home / "backends" / "python").mkdir(parents=True)
    (home / "backends" / "python" / "libtriton_python.so").touch()
    first, second = plan(options), plan(options)
    (copy,) = options.run_dir.iterdir()
    assert (
        f"--backend-directory={copy}" in first.command and first.command[-1] == second.command[-1]
    )
    assert (copy / "python" / installation.STUB).read_bytes() == b"stub"
    assert (copy / "python" / "recap").resolve() == ROOT / "python_backend" / "recap"


def test_small_shared_memory(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")(0, 0, 2**20)
    monkeypatch.setattr(launch.shutil, "disk_usage", lambda path: usage)
    assert "--shm-size" in refusal(options)


FAILURE = r"""
echo 'I0101 10:00:00.000000 1 x.cc:1] "loading"'
echo 'E0101 10:00:00.1 1 model.cc:2] "failed to load '"'recap_decoder'"' version 1: Internal: TritonModelException: model.checkpoint: nothing there\n\nAt:\n  /x/model.py(3): initialize\n"'
echo 'error: creating server: Internal - failed to load all models'
exit 1
"""  # noqa: E501


def test_reason_of_a_failed_start(options: Options) -> None:
    assert options.tritonserver is not None
    options.tritonserver.write_text(f"#!/bin/bash\n{FAILURE}")
    server = Server(plan(options))
    with pytest.raises(LaunchError) as failed:
        server.wait_ready(20)
    assert str(failed.value).endswith("recap_decoder: model.checkpoint: nothing there")
    assert "code 1" in str(failed.value)
    assert server.stop() == 1


def test_timeout_and_stop_by_force(options: Options) -> None:
    assert options.tritonserver is not None
    options.tritonserver.write_text("#!/bin/bash\ntrap '' TERM\necho here\nsleep 60 & wait; wait")
    server = Server(plan(options))
    with pytest.raises(LaunchError, match="not ready after 1 s: here"):
        server.wait_ready(1)
    assert server.stop(timeout_s=0.5) == -signal.SIGKILL


@pytest.mark.parametrize("ending", ["exit 0", "exit 3", "kill -9 $$", "sleep 60", "trap '' TERM"])
def test_shared_memory_is_given_back_however_the_server_ends(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    shared = tmp_path / "shm"
    shared.mkdir()
    (shared / "of-somebody-else").touch()
    monkeypatch.setattr(launch, "SHARED_MEMORY", shared)
    assert options.tritonserver is not None
    options.tritonserver.write_text(
        "#!/bin/bash\n"
        'for word in "$@"; do case $word in *,shm-region-prefix-name=*)\n'
        f'    touch "{shared}/${{word##*=}}1" "{shared}/${{word##*=}}2" ;;\n'
        f"esac; done; {ending}\n"
        "echo up; sleep 60\n"
    )
    server = Server(plan(options))
    if ending.startswith(("exit", "kill")):
        server.wait()
    else:
        while len(list(shared.iterdir())) < 3:
            assert server.poll() is None
        server.stop(timeout_s=0.5)
    assert [left.name for left in shared.iterdir()] == ["of-somebody-else"]


def test_log_passes_on_warnings_once_ready() -> None:
    lines = [
        b'W0101 10:00:00.0 1 a.cc:1] "first"',
        b"I0101 10:00:00.0 1 a.cc:1] ",
        b"+-----+",
        b"I0101 10:00:00.0 1 a.cc:1] \"successfully loaded 'preprocessing'\"",
        b'W0101 10:00:00.0 1 a.cc:1] "failed to allocate pinned system memory"',
        b'E0101 10:00:00.0 1 a.cc:1] "last"',
        b"its second line",
    ]
    heard: list[str] = []
    read, write = os.pipe()
    with os.fdopen(read, "rb") as source:
        log = ServerLog(source, heard.append, verbose=False)
        log.announce()
        os.write(write, b"\n".join(lines))
        os.close(write)
        log.join()
    assert heard == [lines[index].decode() for index in (0, 5, 6)]
    assert log.loaded() == ["preprocessing"]
    assert len(log.lines()) == len(lines)


def test_a_server_that_does_not_end_when_asked_to_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = importlib.util.spec_from_file_location("serve", ROOT / "scripts" / "serve.py")
    assert spec is not None and spec.loader is not None
    serve = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serve)
    monkeypatch.setattr(serve, "KILL_TIMEOUT_S", 1)
    heard: list[str] = []
    killed = threading.Event()

    class Deaf:
        def terminate(self, number: int) -> None:
            heard.append(f"asked by {number}")

        def kill(self) -> None:
            heard.append("killed")
            killed.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    try:
        serve._handle_signals([Deaf()])
        os.kill(os.getpid(), signal.SIGTERM)
        assert killed.wait(20)
    finally:
        signal.alarm(0)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert heard == [f"asked by {signal.SIGTERM}", "killed"]


def test_scripts_read_no_variable_that_the_server_would_refuse() -> None:
    """What begins with RECAP_ is a setting, and an unknown setting is an error."""
    for script in (ROOT / "scripts").glob("*.sh"):
        assert not re.findall(r"\$\{?RECAP_\w+", script.read_text(encoding="utf-8")), script


class TestServeScript:
    """The command line, over a server that is a script."""

    @staticmethod
    def command(binary: Path, tmp_path: Path, *more: str) -> list[str]:
        ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
        script = str(ROOT / "scripts" / "serve.py")
        run = f"--run-dir={tmp_path / 'run'}"
        return [sys.executable, script, f"--tritonserver={binary}", run, *ports, *more]

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            (["--checkpoint=/nowhere"], "model.checkpoint: /nowhere"),
            (["--engine=abacus"], "engine.kind"),
            (["--dtype=int3"], "engine.dtype"),
            (["--set=drafter.nodes=-4"], "drafter.nodes"),
            (["--set=nonsense"], "--set: expected SECTION.FIELD=VALUE"),
            (["--config=/nowhere.yaml"], "no such file"),
        ],
    )
    def test_refusals_are_one_line(self, tmp_path: Path, more: list[str], said: str) -> None:
        binary = fake_server(tmp_path, "exit 9")
        done = subprocess.run(
            self.command(binary, tmp_path, *more), capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert said in done.stderr

    def test_print_command(self, tmp_path: Path) -> None:
        binary = fake_server(tmp_path, "exit 9")
        command = self.command(binary, tmp_path, "--print-command", "--set=engine.slots=2")
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert len(done.stdout.splitlines()) == 1
        assert str(binary) in done.stdout and "RECAP_ENGINE__SLOTS=2" in done.stdout

    def test_failed_start_is_one_line(self, tmp_path: Path) -> None:
        binary = fake_server(tmp_path, FAILURE)
        done = subprocess.run(
            self.command(binary, tmp_path), capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].endswith("model.checkpoint: nothing there")

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_killed_during_start_stops_the_server(self, tmp_path: Path, number: int) -> None:
        mark = tmp_path / "pid"
        binary = fake_server(tmp_path, f"echo $$ > {mark}.new; mv {mark}.new {mark}; exec sleep 60")
        process = subprocess.Popen(
            self.command(binary, tmp_path), stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        # The first line of progress comes after the handlers are in place.
        assert process.stderr.readline().startswith("starting")
        process.send_signal(number)
        assert process.wait(30) == 128 + number
        assert not Path(f"/proc/{mark.read_text().strip()}").exists()
        process.stderr.close()
