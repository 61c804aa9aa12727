"""Names, dtypes and shapes of every tensor that crosses a Triton model border, written once.

`render` turns a model of this module into the text of its `config.pbtxt`; the committed
`model_repository` is that rendering, and a test holds the two equal. The services read their
tensors by the constants below and by nothing else. To write the files again::

    python -m recap.serving.contract --write model_repository
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

TEXT_INPUT = "text_input"
MESSAGES = "messages"
RAW_PROMPT = "raw_prompt"
IMAGE = "image"
MAX_TOKENS = "max_tokens"
STREAM = "stream"
STOP = "stop"

INPUT_IDS = "input_ids"
PIXEL_VALUES = "pixel_values"
IMAGE_LAYOUT = "image_layout"
IMAGE_DIGEST = "image_digest"
IMAGE_FEATURES = "image_features"

TEXT_OUTPUT = "text_output"
FINISH_REASON = "finish_reason"
NUM_INPUT_TOKENS = "num_input_tokens"
NUM_OUTPUT_TOKENS = "num_output_tokens"
NUM_DECODE_STEPS = "num_decode_steps"
TOTAL_DRAFT_TOKENS = "total_draft_tokens"
TOTAL_ACCEPTED_DRAFT_TOKENS = "total_accepted_draft_tokens"
ACCEPTANCE_RATE = "acceptance_rate"

PREPROCESSING = "preprocessing"
VISION_ENCODER = "vision_encoder"
RECAP_DECODER = "recap_decoder"
RECAP_VLM = "recap_vlm"

DTYPES: dict[str, npt.DTypeLike] = {
    "STRING": np.object_,
    "BOOL": np.bool_,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT32": np.uint32,
    "FP32": np.float32,
}
"""Triton's data types that we use, and what they are in numpy (STRING: an array of bytes)."""


@dataclass(frozen=True)
class Tensor:
    """One input or output of a model.

    Attributes:
        name: Part of the public API; clients write it.
        dtype: A key of `DTYPES`.
        dims: Shape without the batch dimension; -1 for what varies.
        optional: Inputs only: a request may leave it out.
        ragged: Inputs only: requests of different shapes may share a batch.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    optional: bool = False
    ragged: bool = False


@dataclass(frozen=True)
class Step:
    """One step of an ensemble; a tensor keeps its name in every step it passes through."""

    model: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Model:
    """What one `config.pbtxt` says.

    Attributes:
        name: Folder in the repository.
        comment: First lines of the file.
        inputs: In the order of the table in `docs/serving.md`.
        outputs: Likewise.
        max_batch_size: 0 when Triton must not add a batch dimension.
        decoupled: Whether a request may get several responses.
        instances: Processes that serve it; 0 for an ensemble.
        steps: For an ensemble only.
    """

    name: str
    comment: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_batch_size: int = 0
    decoupled: bool = False
    instances: int = 1
    steps: tuple[Step, ...] = ()

    def tensor(self, name: str) -> Tensor:
        """The input or output called `name`."""
        return next(t for t in self.inputs + self.outputs if t.name == name)


def _names(tensors: Sequence[Tensor]) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in tensors)


_PROMPT = (
    Tensor(TEXT_INPUT, "STRING", (1,), optional=True),
    Tensor(MESSAGES, "STRING", (1,), optional=True),
    Tensor(IMAGE, "STRING", (-1,), optional=True),
    Tensor(RAW_PROMPT, "BOOL", (1,), optional=True),
)
_STOP = Tensor(STOP, "BOOL", (1,), optional=True)
_CONTROL = (
    Tensor(MAX_TOKENS, "INT32", (1,), optional=True),
    Tensor(STREAM, "BOOL", (1,), optional=True),
    _STOP,
)
# Between steps: the leading 1 is the batch dimension of the vision encoder, which the models
# around it (without batching) have to write out.
_INPUT_IDS = Tensor(INPUT_IDS, "INT32", (-1,))
_PIXELS = Tensor(PIXEL_VALUES, "FP32", (1, -1, -1))
_LAYOUT = Tensor(IMAGE_LAYOUT, "INT64", (1, -1, -1))
_FEATURES = Tensor(IMAGE_FEATURES, "FP32", (1, -1, -1))

STATISTICS = (
    Tensor(NUM_INPUT_TOKENS, "UINT32", (1,)),
    Tensor(NUM_OUTPUT_TOKENS, "UINT32", (1,)),
    Tensor(NUM_DECODE_STEPS, "INT32", (1,)),
    Tensor(TOTAL_DRAFT_TOKENS, "INT32", (1,)),
    Tensor(TOTAL_ACCEPTED_DRAFT_TOKENS, "INT32", (1,)),
    Tensor(ACCEPTANCE_RATE, "FP32", (1,)),
)
"""Outputs that only the last response carries."""

_GENERATED = (
    Tensor(TEXT_OUTPUT, "STRING", (1,)),
    Tensor(FINISH_REASON, "STRING", (1,)),
    *STATISTICS,
)

MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model(
            PREPROCESSING,
            "Chat template, tokenizer, image decoding and patching. Stateless, on the CPU.",
            inputs=(*_PROMPT, _STOP),
            outputs=(
                _INPUT_IDS,
                _PIXELS,
                _LAYOUT,
                Tensor(IMAGE_DIGEST, "STRING", (-1,)),
            ),
        ),
        Model(
            VISION_ENCODER,
            "Patches to image features. Requests of different sizes share one execute.",
            inputs=(
                Tensor(PIXEL_VALUES, "FP32", (-1, -1), ragged=True),
                Tensor(IMAGE_LAYOUT, "INT64", (-1, -1), ragged=True),
            ),
            outputs=(Tensor(IMAGE_FEATURES, "FP32", (-1, -1)),),
            max_batch_size=8,
        ),
        Model(
            RECAP_DECODER,
            "Draft, verify, accept; streams text. One instance only: a second one would be a\n"
            "second process with its own KV cache and its own memories.",
            inputs=(
                _INPUT_IDS,
                replace(_FEATURES, optional=True),
                replace(_LAYOUT, optional=True),
                *_CONTROL,
            ),
            outputs=_GENERATED,
            decoupled=True,
        ),
        Model(
            RECAP_VLM,
            "The public pipeline: preprocessing -> vision_encoder -> recap_decoder.",
            inputs=(*_PROMPT, *_CONTROL),
            outputs=_GENERATED,
            instances=0,
            steps=(
                Step(
                    PREPROCESSING,
                    _names((*_PROMPT, _STOP)),
                    (INPUT_IDS, PIXEL_VALUES, IMAGE_LAYOUT),
                ),
                Step(VISION_ENCODER, (PIXEL_VALUES, IMAGE_LAYOUT), (IMAGE_FEATURES,)),
                Step(
                    RECAP_DECODER,
                    (INPUT_IDS, IMAGE_FEATURES, IMAGE_LAYOUT, *_names(_CONTROL)),
                    _names(_GENERATED),
                ),
            ),
        ),
    )
}
"""Every model of the repository by its name."""


def render(model: Model) -> str:
    """The text of the model's `config.pbtxt`."""
    lines = ["# Rendered by `python -m recap.serving.contract`; edit contract.py, not this file."]
    lines += [f"# {line}" for line in model.comment.splitlines()]
    lines.append(f'name: "{model.name}"')
    lines.append('platform: "ensemble"' if model.steps else 'backend: "python"')
    lines.append(f"max_batch_size: {model.max_batch_size}")
    # An ensemble takes over the policy of its steps; saying it there is an error.
    if model.decoupled:
        lines.append("model_transaction_policy { decoupled: true }")
    lines += _render_tensors("input", model.inputs)
    lines += _render_tensors("output", model.outputs)
    if model.max_batch_size > 0:
        lines.append("dynamic_batching { }")
    if model.steps:
        lines += _render_steps(model.steps)
    else:
        lines.append(f"instance_group [ {{ count: {model.instances} kind: KIND_CPU }} ]")
    return "\n".join(lines) + "\n"


def _render_tensors(kind: str, tensors: Sequence[Tensor]) -> list[str]:
    entries = []
    for tensor in tensors:
        dims = ", ".join(str(size) for size in tensor.dims)
        entry = f'  {{ name: "{tensor.name}" data_type: TYPE_{tensor.dtype} dims: [ {dims} ]'
        if tensor.optional:
            entry += " optional: true"
        if tensor.ragged:
            entry += " allow_ragged_batch: true"
        entries.append(entry + " }")
    return [f"{kind} [", ",\n".join(entries), "]"]


def _render_steps(steps: Sequence[Step]) -> list[str]:
    lines = ["ensemble_scheduling {", "  step ["]
    for index, step in enumerate(steps):
        lines += ["    {", f'      model_name: "{step.model}"', "      model_version: -1"]
        for kind, names in (("input_map", step.inputs), ("output_map", step.outputs)):
            lines += [f'      {kind} {{ key: "{name}" value: "{name}" }}' for name in names]
        lines.append("    }," if index + 1 < len(steps) else "    }")
    return [*lines, "  ]", "}"]


def write(repository: Path) -> None:
    """Writes every `config.pbtxt` under `repository`, and the version folder each model needs."""
    for model in MODELS.values():
        folder = repository / model.name
        (folder / "1").mkdir(parents=True, exist_ok=True)
        (folder / "config.pbtxt").write_text(render(model), encoding="utf-8")
        if model.steps:
            # Triton wants a version folder even for an ensemble; git keeps no empty one.
            (folder / "1" / ".gitkeep").touch()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Renders the model repository's config.pbtxt.")
    parser.add_argument("--write", type=Path, metavar="DIR", help="the model repository")
    options = parser.parse_args(arguments)
    if options.write:
        write(options.write)
    else:
        sys.stdout.write("\n".join(render(model) for model in MODELS.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
