#!/usr/bin/env python3
"""Serves a vision-language model with tritonserver.

    scripts/serve.py                                    the shipped checkpoint on ports 8000-8002
    scripts/serve.py --checkpoint DIR --dtype bfloat16  another one
    scripts/serve.py --print-command                    what would be run, to copy into a shell

Settings come from `--config FILE` and from environment variables; options here win over both.
Exit codes: the server's own; 2 when something is wrong before it starts; 1 when it does not start.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python_backend"))

from recap.config import CONFIG_VARIABLE
from recap.errors import SettingsError
from recap.serving.launch import (
    KILL_TIMEOUT_S,
    LaunchError,
    Options,
    Plan,
    Server,
    default_run_dir,
    plan,
)

ROOT = Path(__file__).resolve().parents[1]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="transformers checkpoint")
    parser.add_argument("--engine", metavar="KIND", help="engine implementation, such as torch")
    parser.add_argument("--dtype", help="float32, bfloat16 or float16")
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file of settings")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.FIELD=VALUE",
        help="any other setting, such as drafter.nodes=31; repeatable",
    )
    parser.add_argument("--model-repository", type=Path, default=ROOT / "model_repository")
    parser.add_argument("--tritonserver", type=Path, metavar="PATH", help="the server to run")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    for name, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002)):
        parser.add_argument(
            f"--{name}-port", type=int, default=port, metavar="N", help="0 picks a free one"
        )
    parser.add_argument(
        "--run-dir", type=Path, metavar="DIR", help=f"files of the launcher ({default_run_dir()})"
    )
    parser.add_argument("--ready-timeout", type=float, default=300.0, metavar="SECONDS")
    parser.add_argument("--verbose", action="store_true", help="show the server's whole log")
    parser.add_argument("--print-command", action="store_true", help="print the command and exit")
    return parser


def _settings(options: argparse.Namespace) -> dict[str, str]:
    """The options as environment variables, which is how settings reach the models."""
    variables = {}
    if options.config:
        variables[CONFIG_VARIABLE] = str(options.config.resolve())
    if options.checkpoint:
        variables["RECAP_MODEL__CHECKPOINT"] = str(options.checkpoint.resolve())
    if options.engine:
        variables["RECAP_ENGINE__KIND"] = options.engine
    if options.dtype:
        variables["RECAP_ENGINE__DTYPE"] = options.dtype
    for entry in options.set:
        name, equals, value = entry.partition("=")
        if not equals or "." not in name:
            raise SettingsError(f"--set: expected SECTION.FIELD=VALUE, got {entry!r}")
        variables["RECAP_" + name.upper().replace(".", "__")] = value
    return variables


def _options(options: argparse.Namespace) -> Options:
    return Options(
        repository=options.model_repository,
        tritonserver=options.tritonserver,
        settings=_settings(options),
        host=options.host,
        http_port=options.http_port,
        grpc_port=options.grpc_port,
        metrics_port=options.metrics_port,
        run_dir=options.run_dir,
    )


class _StoppedError(Exception):
    """A signal came before the server was ready."""


def _handle_signals(forward: list[Server]) -> None:
    """A signal before the server is in `forward` raises; then it is passed on, a second one kills.

    The server finishes what runs before it ends, which may take longer than somebody at a
    terminal wants to wait. An alarm gives the second signal where nobody does.
    """
    seen: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        if not forward:
            raise _StoppedError(number)
        if len(seen) > 1:
            forward[0].kill()
        else:
            forward[0].terminate(number)
            signal.alarm(KILL_TIMEOUT_S)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, handle)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _Progress:
    """Tells what is loaded when that changes, and every few seconds."""

    EVERY_S = 5.0

    def __init__(self) -> None:
        self._told = ("", 0.0)

    def __call__(self, elapsed_s: float, loaded: str) -> None:
        what, when_s = self._told
        if loaded != what or elapsed_s - when_s >= self.EVERY_S:
            self._told = (loaded, elapsed_s)
            _say(f"starting, {elapsed_s:.0f} s: {loaded}")


def main() -> int:
    """The command line."""
    arguments = _parser().parse_args()
    try:
        launch = plan(_options(arguments))
    except SettingsError as error:
        _say(f"serve.py: {error}")
        return 2
    if arguments.print_command:
        print(launch.shell())
        return 0
    return _serve(launch, arguments)


def _serve(launch: Plan, arguments: argparse.Namespace) -> int:
    forward: list[Server] = []
    server = None
    try:
        _handle_signals(forward)
        server = Server(launch, _say, arguments.verbose)
        server.wait_ready(arguments.ready_timeout, _Progress())
        forward.append(server)
    except _StoppedError as stopped:
        _say("stopping")
        if server:
            forward.append(server)
            server.stop()
        return 128 + int(stopped.args[0])
    except LaunchError as error:
        assert server is not None
        server.stop()
        _say(f"serve.py: {error}")
        return 1
    _say(f"ready: http://{launch.http_url} grpc {launch.grpc_url} pid {os.getpid()}")
    code = server.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
