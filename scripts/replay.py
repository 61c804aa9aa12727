#!/usr/bin/env python3
"""Replays recorded decoding against a drafter and prints its MAT; needs numpy, no model.

Examples:
    python scripts/replay.py --method recap --nodes 63
    python scripts/replay.py --method token_recycling --nodes 80     # the published template
    python scripts/replay.py --method token_recycling --nodes 23     # rank-cost tree of 23 nodes
    python scripts/replay.py --method recap --nodes 63 --set recap.fusion=backoff --json

MAT is tokens emitted per target pass, the bonus token included; the token that the prefill gives
counts in neither term. Start is cold and traces run in file order. ``--set`` takes any setting of
``drafter`` in docs/configuration.md; values are read as JSON where possible.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python_backend"))

from recap.config import DrafterSettings
from recap.replay import ReplayResult, Tally, drafter_settings, load_traces, replay_settings

DEFAULT_TRACES = Path(__file__).parent.parent / "tests/data/traces_specbench_smollm2.npz"


def main() -> None:
    """Runs the replay that the command line asks for."""
    parser = _parser()
    options = parser.parse_args()
    try:
        changes = dict(_assignment(text) for text in options.set)
        if options.seed_from_prompt:
            changes[f"{options.method}.seed_from_prompt"] = True
        settings = drafter_settings(options.method, options.nodes, changes)
        traces = load_traces(options.traces)
    except (ValidationError, ValueError, OSError, KeyError) as error:
        parser.error(str(error))
    result = replay_settings(settings, traces, options.nodes)
    if options.json:
        print(json.dumps(_report(settings, options.nodes, result)))
    else:
        _print_table(settings, options.nodes, result)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    methods = ("recap", "token_recycling", "prompt_lookup", "autoregressive")
    parser.add_argument("--traces", type=Path, default=DEFAULT_TRACES, metavar="FILE")
    parser.add_argument("--method", choices=methods, default="recap")
    parser.add_argument("--nodes", type=int, default=63, help="drafts per step")
    parser.add_argument(
        "--seed-from-prompt",
        action="store_true",
        help="seed the method's memory from prompt predictions (recap does by default)",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser


def _assignment(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"--set takes KEY=VALUE, got {text!r}")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def _report(settings: DrafterSettings, nodes: int, result: ReplayResult) -> dict[str, Any]:
    total = result.total
    return {
        "method": settings.method,
        "nodes": nodes,
        "mat": round(total.mat, 4),
        "by_category": {name: round(tally.mat, 4) for name, tally in result.by_category.items()},
        "steps": total.steps,
        "tokens": total.tokens,
        "mean_nodes": round(total.nodes / total.steps, 2),
        "propose_ms": round(1e3 * total.propose_s / total.steps, 4),
        "observe_ms": round(1e3 * total.observe_s / total.steps, 4),
        "settings": settings.model_dump(mode="json"),
    }


def _print_table(settings: DrafterSettings, nodes: int, result: ReplayResult) -> None:
    print(f"method {settings.method}, {nodes} nodes")
    print(f"{'category':16} {'MAT':>6} {'steps':>7} {'tokens':>7} {'nodes/step':>11}")
    rows: dict[str, Tally] = {**result.by_category, "all": result.total}
    for name, tally in rows.items():
        print(
            f"{name:16} {tally.mat:6.3f} {tally.steps:7d} {tally.tokens:7d} "
            f"{tally.nodes / tally.steps:11.1f}"
        )
    total = result.total
    print(
        f"CPU per step: propose {1e3 * total.propose_s / total.steps:.2f} ms, "
        f"observe {1e3 * total.observe_s / total.steps:.2f} ms"
    )


if __name__ == "__main__":
    main()
