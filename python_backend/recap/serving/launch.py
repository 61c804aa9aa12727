"""Starts a tritonserver on our model repository and watches over it.

`scripts/serve.py` and the server tests share this. Everything that can be known to be wrong is
checked before the server starts (`plan`); what the server itself says is filtered and kept
(`ServerLog`), so that a failed start can be told in one line.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from recap.config import PREFIX, load_settings
from recap.errors import RecapError, SettingsError
from recap.serving.installation import PACKAGE_ROOT, find_server
from recap.serving.server_log import ServerLog

SHARED_MEMORY = Path("/dev/shm")
"""Where the Python backend keeps the regions through which every tensor passes."""

MIN_SHM_BYTES = 60 * 2**20
"""A little under Docker's default of 64 MiB: enough for a few photographs in flight."""

EXIT_TIMEOUT_S = 30
"""How long the server lets running requests finish after SIGTERM."""

KILL_TIMEOUT_S = EXIT_TIMEOUT_S + 10
"""When a server that was asked to end is killed. Triton 2.51 needs that: any gRPC stream that a
client holds open, even an idle one, keeps it from ending for good."""

_SHELL_SYNTAX = re.compile(r"""[\s"'\\$`;&|<>()*?\[\]{}]""")


class LaunchError(RecapError):
    """The server did not come up; the message has the reason from its log."""


@dataclass(frozen=True)
class Options:
    """What to launch.

    Attributes:
        repository: The model repository.
        tritonserver: A server binary; None looks for one.
        settings: Environment variables that override settings, such as ``RECAP_DRAFTER__NODES``.
        host: Address that the three ports listen on.
        http_port: 0 picks a free one, as for the other two.
        grpc_port: See `http_port`.
        metrics_port: See `http_port`.
        run_dir: Where files of the launcher go; None: the user's cache folder.
    """

    repository: Path
    tritonserver: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    run_dir: Path | None = None


@dataclass(frozen=True)
class Plan:
    """A checked launch.

    Attributes:
        command: The argument list.
        environment: Variables to set on top of the inherited ones.
        regions: How the names of the server's files in `SHARED_MEMORY` begin; its alone.
        host: Where a client on this machine reaches the server.
        http_port: The chosen port, as for the other two.
        grpc_port: See `http_port`.
        metrics_port: See `http_port`.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    regions: str
    host: str
    http_port: int
    grpc_port: int
    metrics_port: int

    @property
    def http_url(self) -> str:
        """HOST:PORT of the HTTP endpoint."""
        return f"{self.host}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """HOST:PORT of the gRPC endpoint."""
        return f"{self.host}:{self.grpc_port}"

    def shell(self) -> str:
        """The same launch as one line for a shell."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return shlex.join(["env", *variables, *self.command])


def default_run_dir() -> Path:
    """The user's cache folder for this project."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "recap-triton"


def plan(options: Options) -> Plan:
    """Checks everything that can be checked before a server starts.

    Raises:
        SettingsError: One line that says what is wrong and, where it helps, what to do.
    """
    repository = options.repository.resolve()
    if not repository.is_dir():
        raise SettingsError(f"model repository: no such directory: {repository}")
    with _environment(options.settings):
        load_settings(repository.parent)
    _check_shared_memory()
    server = find_server(options.tritonserver, (options.run_dir or default_run_dir()).absolute())
    _check_path("--model-repository", repository)
    if server.backends:
        _check_path("--run-dir", server.backends)
    http_port, grpc_port, metrics_port = _choose_ports(options)
    regions = f"recap-{uuid.uuid4().hex[:12]}-"
    command = [
        str(server.binary),
        f"--model-repository={repository}",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        f"--backend-config=python,shm-region-prefix-name={regions}",
        *(
            f"--{protocol}-{what}"
            for protocol, port in (
                ("http", http_port),
                ("grpc", grpc_port),
                ("metrics", metrics_port),
            )
            for what in (f"address={options.host}", f"port={port}")
        ),
    ]
    if server.backends:
        command.append(f"--backend-directory={server.backends}")
    environment = {
        **dict(_search_paths(server.library_path)),
        **{name: value for name, value in os.environ.items() if name.startswith(PREFIX)},
        **options.settings,
    }
    host = "127.0.0.1" if options.host in ("0.0.0.0", "::") else options.host
    return Plan(tuple(command), environment, regions, host, http_port, grpc_port, metrics_port)


def _search_paths(libraries: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    """What the stub needs in order to find this interpreter, its packages and `recap`.

    The stub starts as the first `python3` on PATH would, virtual environment included.
    """
    bins = [Path(sys.executable).parent]
    site = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    for name, folders in (
        ("LD_LIBRARY_PATH", libraries),
        ("PATH", bins),
        ("PYTHONPATH", [PACKAGE_ROOT, *site]),
    ):
        inherited = [entry for entry in os.environ.get(name, "").split(":") if entry]
        entries = list(dict.fromkeys([*map(str, folders), *inherited]))
        if entries:
            yield name, ":".join(entries)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Settings are read from the environment, so the check has to run inside of it."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _check_shared_memory() -> None:
    """A server without room for its regions starts, and fails at the first larger image."""
    with contextlib.suppress(FileNotFoundError):
        free = shutil.disk_usage(SHARED_MEMORY).free
        if free < MIN_SHM_BYTES:
            raise SettingsError(
                f"{SHARED_MEMORY} has {free >> 20} MiB free, {MIN_SHM_BYTES >> 20} MiB are needed; "
                "in Docker use --shm-size=1g"
            )


def _check_path(flag: str, path: Path) -> None:
    """The Python backend starts its stubs by an unquoted shell line, and waits for them for good.

    The line holds the paths of the stub and of the model, no others.
    """
    if _SHELL_SYNTAX.search(str(path)):
        raise SettingsError(
            f"{flag}: tritonserver cannot use a path with spaces or shell syntax: {path}"
        )


def _choose_ports(options: Options) -> list[int]:
    """Checks the wanted ports and finds free ones, all held at once so that no two are the same.

    The check matters for gRPC, where a second server would silently share a taken port.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    ports = []
    with contextlib.ExitStack() as held:
        for name in ("http_port", "grpc_port", "metrics_port"):
            wanted: int = getattr(options, name)
            probe = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((options.host, wanted))
                # Binding alone passes when the other one only bound as well.
                probe.listen(1)
            except (OSError, OverflowError) as error:
                reason = error.strerror if isinstance(error, OSError) else "no such port"
                flag = "--" + name.replace("_", "-")
                raise SettingsError(
                    f"{flag}: cannot listen on {options.host}:{wanted}: {reason}"
                ) from None
            ports.append(probe.getsockname()[1])
    return ports


class Server:
    """A running tritonserver in a process group of its own.

    It is killed when the thread that made this object ends without having stopped it.

    Args:
        launch: From `plan`.
        echo: Gets lines of the server's output, without line end; see `ServerLog`.
        verbose: See `ServerLog`.
    """

    def __init__(
        self, launch: Plan, echo: Callable[[str], None] | None = None, verbose: bool = False
    ) -> None:
        self.plan = launch
        # A group of its own, so that Ctrl-C in a terminal reaches the launcher only and the
        # server is stopped once and in order.
        self._process = subprocess.Popen(
            launch.command,
            env={**os.environ, **launch.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        assert self._process.stdout is not None
        self.log = ServerLog(self._process.stdout, echo, verbose)

    @property
    def pid(self) -> int:
        """Of the server."""
        return self._process.pid

    def wait_ready(
        self, timeout_s: float, progress: Callable[[float, str], None] | None = None
    ) -> None:
        """Waits until every model is ready.

        Args:
            timeout_s: Give up after this long.
            progress: Called about once a second with the elapsed seconds and the loaded models.

        Raises:
            LaunchError: The server ended, or the time is over.
        """
        begin = time.monotonic()
        told = 0.0
        while not self._is_ready():
            elapsed = time.monotonic() - begin
            code = self.poll()
            if code is not None:
                self.log.join()
                raise LaunchError(
                    f"tritonserver ended with code {code} during start: {self.log.reason()}"
                )
            if elapsed > timeout_s:
                raise LaunchError(
                    f"tritonserver was not ready after {timeout_s:.0f} s: {self.log.reason()}"
                )
            if progress and elapsed - told >= 1:
                told = elapsed
                loaded = ", ".join(self.log.loaded())
                progress(elapsed, f"loaded {loaded}" if loaded else "no model loaded yet")
            time.sleep(0.1)
        self.log.announce()

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(self.plan.host, self.plan.http_port, timeout=2)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Waits for the end, tidies up after the server, and returns the exit code."""
        code = self._process.wait()
        # A server that crashes, is killed, or is told to stop while its models load leaves behind
        # a stub that waits for it for good, with the model in its memory, and shared memory.
        self.kill()
        self.log.join()
        for region in SHARED_MEMORY.glob(f"{self.plan.regions}*"):
            region.unlink(missing_ok=True)
        return code

    def terminate(self, number: int = signal.SIGTERM) -> None:
        """Asks the server to finish what runs and to end."""
        if self.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Ends the server and its stubs at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def stop(self, timeout_s: float = KILL_TIMEOUT_S) -> int:
        """Ends the server, by force when it takes longer than `timeout_s`; its exit code."""
        self.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
        return self.wait()


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Lets the kernel end the server when its launcher is killed and cannot do so itself.

    By force, since nobody is left to do that to a server that does not end when asked to. Its stubs
    end by themselves; see `recap.serving.decoder`.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
