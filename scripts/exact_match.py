#!/usr/bin/env python3
"""Checks that drafting changes no token: every method against transformers' `generate`.

    python scripts/exact_match.py --per-family 25

Each sample of the suite is decoded by every method alone, then with several requests interleaved,
in float32, and compared id by id. Exit code 1 when any id differs other than at a tie.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "python_backend")]

from tqdm import tqdm  # noqa: E402

from engine_build.tiny_vlm.suite import load_suite  # noqa: E402
from recap.benchmark.arms import make_arms  # noqa: E402
from recap.benchmark.exact import arms_total, check  # noqa: E402
from recap.benchmark.protocol import Bench  # noqa: E402
from recap.config import load_settings  # noqa: E402
from recap.errors import SettingsError  # noqa: E402
from recap.models.reference import ReferenceModel  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    """Prints one line per method and way of running."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoint", type=Path, help="default: the shipped checkpoint")
    parser.add_argument("--suite", default="mini")
    parser.add_argument("--per-family", type=int, help="only the first N samples of each family")
    parser.add_argument("--methods", default="recap,token_recycling,prompt_lookup")
    parser.add_argument("--nodes", default="15", help="comma-separated node counts")
    parser.add_argument("--at-once", type=int, default=4, help="requests interleaved")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument(
        "--threads", type=int, default=0, help="engine.threads (0: torch's default)"
    )
    parser.add_argument("--json", type=Path, help="write the verdicts here")
    args = parser.parse_args(argv)
    model = {"checkpoint": args.checkpoint} if args.checkpoint else {}
    engine = {"dtype": "float32", "device": "cpu", "threads": args.threads}
    try:
        settings = load_settings(ROOT, model=model, engine=engine)
        arms = make_arms(args.methods.split(","), [int(n) for n in args.nodes.split(",")])
        samples = load_suite(args.suite, per_family=args.per_family)
    except (SettingsError, ValueError) as error:
        print(f"exact_match: {error}", file=sys.stderr)
        return 2
    bench = Bench(settings, arms, args.max_tokens)
    reference = ReferenceModel(bench.checkpoint)
    with tqdm(total=arms_total(len(samples), arms), unit="sample") as bar:
        verdicts = check(bench, reference, samples, args.at_once, bar.update)
    for verdict in verdicts:
        same = verdict.samples - verdict.ties - len(verdict.wrong)
        print(
            f"{verdict.name}: {same}/{verdict.samples} identical, {verdict.ties} ties, "
            f"{len(verdict.wrong)} wrong, {verdict.tokens} tokens"
        )
        for line in verdict.wrong:
            print(f"  {line}")
    if args.json:
        args.json.write_text(json.dumps([vars(each) for each in verdicts], indent=1) + "\n")
    return int(any(verdict.wrong for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
