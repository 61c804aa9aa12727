"""Snippets in the documentation work: those under a `<!-- tested -->` line are run as they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from recap.serving.launch import Server

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "docs" / "serving.md"]
BLOCK = re.compile(r"^<!-- tested -->\n```(bash|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def snippets() -> list:
    found = []
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8") if document.is_file() else ""
        for number, (language, code) in enumerate(BLOCK.findall(text), 1):
            found.append(pytest.param(language, code, id=f"{document.name}-{number}-{language}"))
    return found


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a snippet, once more if it does not end.

    A Python process was seen once, on a busy machine, to print the answer and then not to end, in
    the teardown of its gRPC client as far as could be told. Twice in a row is a fault.
    """
    for last in (False, True):
        try:
            return subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
            )
        except subprocess.TimeoutExpired:
            if last:
                raise
    raise AssertionError("unreachable")


@pytest.mark.parametrize(("language", "code"), snippets())
def test_snippet(server: Server, language: str, code: str) -> None:
    code = code.replace("127.0.0.1:8000", server.plan.http_url)
    code = code.replace("127.0.0.1:8001", server.plan.grpc_url)
    command = ["bash", "-euo", "pipefail", "-c"] if language == "bash" else [sys.executable, "-c"]
    done = run([*command, code])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if "demo.png" in code:
        assert "stop" in done.stdout, done.stdout
        assert '"error"' not in done.stdout
