"""A small, really trained vision-language model and the generator of the data it was trained on.

The generator (pictures, questions, answers) needs only Pillow; `evaluate` also needs torch and
transformers and is therefore not imported here. Nothing in this package knows the server.
"""

from pathlib import Path

from engine_build.tiny_vlm.families import FAMILIES
from engine_build.tiny_vlm.generator import Sample, sample
from engine_build.tiny_vlm.suite import SUITE_MAX_TOKENS, SuiteSample, load_suite

CHECKPOINT_DIR = Path(__file__).parent / "checkpoint"
"""The shipped checkpoint, in the layout that `from_pretrained` reads."""

DEMO_IMAGE = Path(__file__).parent / "demo.png"
"""The shipped demo image; `engine_build.tiny_vlm.demo` makes it again."""

__all__ = [
    "CHECKPOINT_DIR",
    "DEMO_IMAGE",
    "FAMILIES",
    "SUITE_MAX_TOKENS",
    "Sample",
    "SuiteSample",
    "load_suite",
    "sample",
]
