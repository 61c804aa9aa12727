#!/usr/bin/env python3
"""Compares drafting methods on a suite of prompts: MAT, speedup, losslessness.

    python scripts/bench.py --checkpoint engine_build/tiny_vlm/checkpoint --suite mini \
        --methods ar,prompt_lookup,token_recycling,recap --json OUT.json --plot OUT.png

The protocol is that of docs/benchmarks.md: every arm decodes every sample in this one process, in
rotated order, with persistent memories cold, and ratios are paired per sample.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "python_backend")]

from tqdm import tqdm  # noqa: E402

from engine_build.tiny_vlm import FAMILIES  # noqa: E402
from engine_build.tiny_vlm.suite import load_suite  # noqa: E402
from recap.benchmark.arms import METHODS, make_arms  # noqa: E402
from recap.benchmark.figures import family_table, summarise, table  # noqa: E402
from recap.benchmark.protocol import Bench  # noqa: E402
from recap.config import load_settings  # noqa: E402
from recap.errors import SettingsError  # noqa: E402


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoint", type=Path, help="default: the shipped checkpoint")
    parser.add_argument("--suite", default="mini", help="suite of prompts (default: mini)")
    parser.add_argument("--per-family", type=int, help="only the first N samples of each family")
    parser.add_argument(
        "--methods",
        default="ar,prompt_lookup,token_recycling,recap",
        help=f"comma-separated, of {', '.join(METHODS)}",
    )
    parser.add_argument("--nodes", default="7,15,31,63", help="comma-separated node counts")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a field of drafter.recap, for ablations (JSON value)",
    )
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--threads", type=int, default=0, help="engine.threads (0: torch's default)"
    )
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--plot", type=Path, help="write the picture here")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measures, prints tables, writes files. Exit code 1 when any arm changed any id."""
    args = parse(argv)
    try:
        overrides = {k: json.loads(v) for k, v in (item.split("=", 1) for item in args.set)}
        arms = make_arms(
            args.methods.split(","), [int(n) for n in args.nodes.split(",")], overrides
        )
        model = {"checkpoint": args.checkpoint} if args.checkpoint else {}
        engine = {"dtype": args.dtype, "device": args.device, "threads": args.threads}
        settings = load_settings(ROOT, model=model, engine=engine)
        samples = load_suite(args.suite, per_family=args.per_family)
    except (SettingsError, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    bench = Bench(settings, arms, args.max_tokens)
    bench.warm_up(load_suite("warmup"))
    with tqdm(total=len(samples), unit="sample", desc=f"{len(arms)} arms") as bar:
        runs = bench.measure(samples, progress=bar.update)
    figures = summarise(arms, runs)
    trained = summarise(arms, [run for run in runs if run.family in FAMILIES])
    print(f"All {len(samples)} samples:\n\n{table(figures)}\n")
    print(f"The families that the shipped checkpoint was trained on:\n\n{table(trained)}\n")
    print(family_table(figures))
    if args.json:
        report = {
            "suite": args.suite,
            "samples": len(samples),
            "max_tokens": args.max_tokens,
            "dtype": args.dtype,
            "threads": args.threads,
            "memory": "cold",
            "python": platform.python_version(),
            "torch": version("torch"),
            "transformers": version("transformers"),
            "arms": [each.as_json() for each in figures],
            "arms_on_trained_families": [each.as_json() for each in trained],
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    if args.plot:
        from recap.benchmark.plot import draw

        draw(figures, f"suite {args.suite}, {len(samples)} samples, {args.dtype}", args.plot)
    return 0 if all(each.identical == each.samples for each in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
