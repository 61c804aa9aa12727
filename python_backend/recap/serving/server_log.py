"""Reads the output of a tritonserver: keeps the end, passes on what matters, finds reasons."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable
from typing import IO

KEPT_LINES = 2000

_PREFIX = re.compile(r"^([IWEF])\d{4} \d\d:\d\d:\d\d\S* +\d+ \S+\] ?(.*)")
# Said by every server on a machine without a GPU.
_NOISE = re.compile("pinned system memory")
_LOADED = re.compile(r"successfully loaded '([^']+)'")
# What says why a start failed, the most telling first.
_REASONS = (
    re.compile(r"failed to load '([^']+)' version \d+: Internal: (?:TritonModelException: )?(.+)"),
    re.compile(r"^error: (.+)"),
    re.compile(r"error while loading shared libraries: (.+)"),
)


class ServerLog:
    """Drains a server's output on a thread of its own, so that it never blocks on a full pipe.

    Args:
        stream: The output, binary.
        echo: Gets the lines that are passed on, without line end.
        verbose: Pass on everything, from the start. Otherwise nothing is passed on before
            `announce`, since a server without a GPU starts with errors that mean nothing, and
            warnings and errors from then on.
    """

    def __init__(
        self, stream: IO[bytes], echo: Callable[[str], None] | None, verbose: bool
    ) -> None:
        self._stream = stream
        self._echo = echo or (lambda line: None)
        self._verbose = verbose
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._loaded: list[str] = []
        self._ready = False
        self._thread = threading.Thread(target=self._drain, name="server log", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Waits for the last line, once the server has ended.

        Bounded, since a stub that outlives the server holds the pipe open.
        """
        self._thread.join(5)

    def announce(self) -> None:
        """Says that the server is up."""
        self._ready = True

    def lines(self) -> list[str]:
        """The last lines, oldest first."""
        return list(self._lines)

    def loaded(self) -> list[str]:
        """Models that came up so far."""
        return list(self._loaded)

    def reason(self) -> str:
        """The line that says best why the server did not start."""
        lines = self.lines()
        for pattern in _REASONS:
            for line in lines:
                if found := pattern.search(line):
                    # A message of several lines comes as one, with its line ends escaped.
                    return ": ".join(found.groups()).split("\\n")[0].strip('" ')
        return lines[-1] if lines else "it said nothing"

    def _drain(self) -> None:
        level = "E"
        for raw in self._stream:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            self._lines.append(line)
            # A message of several lines has its level on the first one only.
            if found := _PREFIX.match(line):
                level = found[1]
            if loaded := _LOADED.search(line):
                self._loaded.append(loaded[1])
            if self._verbose or (self._ready and level != "I" and not _NOISE.search(line)):
                self._echo(line)
