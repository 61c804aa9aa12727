"""Finds a Triton server on this machine and makes its Python backend use this interpreter.

Two kinds are known. The NGC container has `tritonserver` on PATH and one Python-backend stub,
built for the container's interpreter. The PyPI package `nvidia-pytriton` carries the server and a
stub for every Python version; the backend looks for the stub beside its own library, so a copy of
the backends folder is made with the right one in place.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from recap.errors import SettingsError

STUB = "triton_python_backend_stub"
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PACKAGE_ROOT = Path(__file__).resolve().parents[2]
"""The folder to put on PYTHONPATH so that `import recap` finds this very package."""


@dataclass(frozen=True)
class Installation:
    """A server and what it needs in order to run.

    Attributes:
        binary: The executable.
        backends: The value of `--backend-directory`; None for the server's own default.
        library_path: Folders for LD_LIBRARY_PATH, in order.
    """

    binary: Path
    backends: Path | None = None
    library_path: tuple[Path, ...] = field(default_factory=tuple)


def find_server(explicit: Path | None, cache: Path) -> Installation:
    """Finds the server: the given path, then PATH, then the PyPI package.

    Args:
        explicit: What the user named, if anything.
        cache: Where a copy of the backends folder may be kept.

    Raises:
        SettingsError: There is no server, or its Python backend has no stub for this interpreter.
    """
    if explicit is not None:
        if not (explicit.is_file() and os.access(explicit, os.X_OK)):
            raise SettingsError(f"--tritonserver: {explicit} is not an executable file")
        return _prepare(explicit.resolve(), cache)
    if found := shutil.which("tritonserver"):
        return _prepare(Path(found).resolve(), cache)
    package = importlib.util.find_spec("pytriton")
    if package and package.submodule_search_locations:
        binary = Path(package.submodule_search_locations[0]) / "tritonserver/bin/tritonserver"
        if binary.is_file():
            return _prepare(binary, cache)
    raise SettingsError(
        "tritonserver not found, neither on PATH nor as a Python package; "
        "install the extra: pip install 'recap-triton[cpu-server]'"
    )


def _prepare(binary: Path, cache: Path) -> Installation:
    home = binary.parent.parent
    stubs = home / "python_backend_stubs"
    if not stubs.is_dir():
        backends = home / "backends"
        _check_stub(backends / "python" / STUB)
        return Installation(binary, backends if backends.is_dir() else None, _own_libpython())
    stub = stubs / PYTHON_VERSION / STUB
    if not stub.is_file():
        versions = ", ".join(sorted(entry.name for entry in stubs.iterdir() if entry.is_dir()))
        raise SettingsError(
            f"Python {PYTHON_VERSION} is not supported by {binary}; "
            f"it has Python-backend stubs for {versions}"
        )
    libraries = home.parent.parent / "nvidia_pytriton.libs"
    return Installation(
        binary,
        _copy_backends(home / "backends", stub, cache),
        (*_own_libpython(), *([libraries] if libraries.is_dir() else [])),
    )


def _check_stub(stub: Path) -> None:
    """Refuses a stub that was linked against another Python version.

    The version stands in the file as the name of the library it needs. A missing stub is left to
    the server, which may keep its backends elsewhere.
    """
    if not stub.is_file():
        return
    found = re.search(rb"libpython(3\.\d+)", stub.read_bytes())
    if found and found[1].decode() != PYTHON_VERSION:
        raise SettingsError(
            f"this is Python {PYTHON_VERSION}, but the server's Python backend ({stub}) runs "
            f"Python {found[1].decode()}; start serve.py with that version"
        )


def _own_libpython() -> tuple[Path, ...]:
    """The folder of this interpreter's shared library, which has to come first for the stub.

    Otherwise the loader may pick the distribution's library of the same name, and C extensions of
    this interpreter then fail to import in the stub (`undefined symbol: _PyModule_Add`).
    """
    folder = sysconfig.get_config_var("LIBDIR")
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and folder:
        return (Path(folder),)
    return ()


def _copy_backends(backends: Path, stub: Path, cache: Path) -> Path:
    """A copy of `backends` that holds `stub`, made once and moved into place as a whole.

    It also holds a link to this package: from Python 3.11 on the stub ignores PYTHONPATH, but the
    folder of the backend is on its module path.
    """
    stamp = f"{backends} {PACKAGE_ROOT} {stub.stat().st_size} {stub.stat().st_mtime_ns}"
    name = f"backends-{PYTHON_VERSION}-{hashlib.sha256(stamp.encode()).hexdigest()[:12]}"
    target = cache / name
    if target.is_dir():
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=cache))
    except OSError as error:
        raise SettingsError(f"--run-dir: cannot write to {cache}: {error.strerror}") from None
    shutil.copytree(
        backends, draft, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy2(stub, draft / "python" / STUB)
    (draft / "python" / "recap").symlink_to(PACKAGE_ROOT / "recap")
    try:
        draft.rename(target)
    except OSError:
        # Another launcher was quicker; its copy is the same.
        shutil.rmtree(draft, ignore_errors=True)
    return target
