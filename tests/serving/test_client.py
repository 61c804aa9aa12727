"""What the client says of an address that it cannot reach, and of arguments that are no text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recap.serving.client import Call, ClientError, generate_http

ROOT = Path(__file__).parents[2]
NOWHERE = ["127.0.0.1:1", "127.0.0.1:abc", "", " ", "http://127.0.0.1:1", "two words", "a\nb"]


@pytest.mark.parametrize("url", NOWHERE)
def test_an_address_without_a_server(url: str) -> None:
    with pytest.raises(ClientError, match="cannot be reached"):
        list(generate_http(url, Call(text="a"), timeout_s=5))


@pytest.mark.parametrize("url", NOWHERE)
def test_healthcheck_is_one_line(url: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "healthcheck.py"), "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout.startswith("unhealthy: ")
    assert not done.stderr


@pytest.mark.parametrize("option", ["--prompt", "--messages"])
def test_bytes_that_are_no_text_are_wrong_usage(option: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "client.py"), option, os.fsdecode(b"a\xff")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
