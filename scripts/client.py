#!/usr/bin/env python3
"""Asks a running server and prints the answer as it comes.

    scripts/client.py --image chart.png --prompt "What is the highest value?"

Exit codes: 0 answered, 1 the server answered with an error, 2 wrong usage, 3 unreachable.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python_backend"))

from recap.serving.client import (
    Call,
    ClientError,
    Number,
    ServerError,
    generate_grpc,
    generate_http,
)

STOP_TIMEOUT_S = 10.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument("--prompt", help="the question; images come before it")
    parser.add_argument("--messages", metavar="JSON|@FILE", help="a whole chat instead of --prompt")
    parser.add_argument("--max-tokens", type=int, metavar="N")
    parser.add_argument("--stream", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--url", metavar="HOST:PORT", help="default: 127.0.0.1:8001, with --http 127.0.0.1:8000"
    )
    parser.add_argument("--http", action="store_true", help="HTTP instead of gRPC")
    parser.add_argument("--request-id", help="a name by which the request can be stopped")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS")
    return parser


def _call(options: argparse.Namespace) -> Call:
    messages = options.messages
    if messages is not None and messages.startswith("@"):
        messages = Path(messages[1:]).read_text(encoding="utf-8")
    named = {"request_id": options.request_id} if options.request_id else {}
    return Call(
        text=options.prompt,
        messages=messages,
        images=[path.read_bytes() for path in options.image],
        max_tokens=options.max_tokens,
        stream=options.stream,
        **named,
    )


def _show(statistics: dict[str, Number], reason: str) -> None:
    print(f"\n\nfinish reason: {reason}", file=sys.stderr)
    for name, value in statistics.items():
        shown = f"{value:.3f}" if isinstance(value, float) else value
        print(f"{name}: {shown}", file=sys.stderr)


def main() -> int:
    """The command line."""
    parser = _parser()
    options = parser.parse_args()
    if (options.prompt is None) == (options.messages is None):
        parser.error("give either --prompt or --messages")
    try:
        call = _call(options)
        call.values()  # fails here where the shell passed bytes that are no text
    except (OSError, UnicodeError) as error:
        parser.error(str(error))
    url = options.url or ("127.0.0.1:8000" if options.http else "127.0.0.1:8001")
    generate = generate_http if options.http else generate_grpc
    try:
        for piece in generate(url, call, options.timeout):
            print(piece.text, end="", flush=True)
            if piece.finish_reason:
                _show(piece.statistics, piece.finish_reason)
    except KeyboardInterrupt:
        # Hanging up does not reach the decoder behind an ensemble; a stop request does.
        end = Call(stop=True, request_id=call.request_id, stream=False)
        try:
            list(generate(url, end, STOP_TIMEOUT_S))
        except (ClientError, ServerError):
            print("the request had already ended", file=sys.stderr)
        return 130
    except ServerError as error:
        print(f"server: {error}", file=sys.stderr)
        return 1
    except ClientError as error:
        print(f"client: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
