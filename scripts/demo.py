#!/usr/bin/env python3
"""Starts the server, asks one question about the shipped image, and shuts the server down.

    scripts/demo.py [--image FILE] [--prompt TEXT]

`scripts/demo.sh` makes the environment first. For a server that stays, see scripts/serve.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python_backend"))

from recap.errors import RecapError  # noqa: E402
from recap.serving.client import Call, generate_grpc  # noqa: E402
from recap.serving.launch import Options, Server, plan  # noqa: E402

READY_TIMEOUT_S = 300.0


def _ask(url: str, image: Path, prompt: str) -> None:
    print(f"\n[{image.name}] {prompt}\n")
    begun = time.perf_counter()
    for piece in generate_grpc(url, Call(text=prompt, images=[image.read_bytes()], max_tokens=128)):
        print(piece.text, end="", flush=True)
        if piece.finish_reason:
            elapsed = time.perf_counter() - begun
            print(f"\n\nfinish reason: {piece.finish_reason}, {elapsed:.2f} s")
            for name, value in piece.statistics.items():
                shown = f"{value:.3f}" if isinstance(value, float) else value
                print(f"  {name}: {shown}")
            steps = piece.statistics["num_decode_steps"]
            tokens = piece.statistics["num_output_tokens"]
            if steps:
                print(f"  tokens per decode step: {(tokens - 1) / steps:.2f} (plain decoding: 1)")


def main() -> int:
    """Exit code 1 when anything goes wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", type=Path, default=ROOT / "engine_build/tiny_vlm/demo.png")
    parser.add_argument("--prompt", default="Explain everything you can see.")
    args = parser.parse_args()
    try:
        if not args.image.is_file():
            raise RecapError(f"--image: no such file: {args.image}")
        launch = plan(Options(ROOT / "model_repository", http_port=0, grpc_port=0, metrics_port=0))
        server = Server(launch)
        print(f"starting tritonserver (pid {server.pid})", flush=True)
        try:
            server.wait_ready(READY_TIMEOUT_S, lambda s, what: print(f"  {s:.0f} s: {what}"))
            print(f"ready: gRPC {launch.grpc_url}, HTTP {launch.http_url}")
            _ask(launch.grpc_url, args.image, args.prompt)
        finally:
            print("\nstopping the server", flush=True)
            code = server.stop()
        print(f"the server ended with code {code}")
        return int(code != 0)
    except RecapError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
