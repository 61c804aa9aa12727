#!/usr/bin/env python3
"""Says whether a server really answers: asks for one token and waits no longer than it should.

Triton's own /v2/health/live and /v2/health/ready stay green after the decoder's process has died;
then every request hangs or fails. For liveness probes and Docker's HEALTHCHECK. Exit codes: 0 a
token came, 1 it did not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python_backend"))

from recap.serving.client import Call, ClientError, ServerError, generate_http


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="127.0.0.1:8000", metavar="HOST:PORT", help="HTTP")
    parser.add_argument("--timeout", type=float, default=5.0, metavar="SECONDS")
    options = parser.parse_args()
    call = Call(text="ping", max_tokens=1, stream=False)
    try:
        pieces = list(generate_http(options.url, call, options.timeout))
    except (ClientError, ServerError) as error:
        print(f"unhealthy: {error}")
        return 1
    if not pieces or not pieces[-1].finish_reason:
        print("unhealthy: the answer has no end")
        return 1
    print("healthy")
    return 0


if __name__ == "__main__":
    sys.exit(main())
