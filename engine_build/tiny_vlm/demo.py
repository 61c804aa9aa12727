"""Makes the demo image: `python -m engine_build.tiny_vlm.demo OUT.png`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from engine_build.tiny_vlm.generator import Sample, sample
from engine_build.tiny_vlm.seeds import DEMO_SEEDS

DEMO_FAMILY = "scene"
DEMO_SEED = DEMO_SEEDS[35]
"""Chosen because the shipped checkpoint describes this picture at length and without a fault."""


def demo_sample() -> Sample:
    """The sample whose image is the demo image, with the question to ask about it."""
    return sample(DEMO_SEED, DEMO_FAMILY)


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the demo image and prints the question and the true answer."""
    parser = argparse.ArgumentParser(description="Write the demo image.")
    parser.add_argument("out", type=Path, metavar="OUT.png")
    out: Path = parser.parse_args(argv).out
    made = demo_sample()
    made.image.save(out, format="PNG")
    print(f"{out}: {made.question}\n{made.answer}")


if __name__ == "__main__":
    main()
