"""Measures a checkpoint on held-out samples with the right and with a shuffled image.

`python -m engine_build.tiny_vlm.evaluate --checkpoint DIR --samples 24 [--json OUT]`

An attribute counts as right when it occurs in the greedy text after the attribute before it that
was found. The shuffled image is another one of the same family and size, so that what is scored
with it is what can be guessed from the question alone. Needs torch and transformers.
"""

import argparse
import inspect
import json
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import transformers
from PIL import Image
from tqdm import tqdm

from engine_build.tiny_vlm.families import FAMILIES
from engine_build.tiny_vlm.generator import Sample, sample
from engine_build.tiny_vlm.seeds import BLOCK, HELD_OUT_SEEDS, block_seed
from engine_build.tiny_vlm.suite import SUITE_MAX_TOKENS, user_turn

IMAGE_PLACEHOLDER = "<|image_pad|>"
_MERGED_PATCHES = 4
"""Patches of the vision tower that become one token of the prompt."""


class Answerer:
    """A checkpoint with its tokenizer and image processor, answering prompts greedily."""

    def __init__(self, checkpoint: Path) -> None:
        """Loads a checkpoint in float32 on the CPU."""
        self.model = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(
            checkpoint, dtype=torch.float32
        ).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
        self.image_processor = _pil_image_processor().from_pretrained(checkpoint)
        self._image_id: Any = self.tokenizer.convert_tokens_to_ids(IMAGE_PLACEHOLDER)
        # transformers 5 wants to be told which tokens are images; 4 finds out for itself.
        parameters = inspect.signature(self.model.forward).parameters
        self._wants_token_types = "mm_token_type_ids" in parameters

    def encode(
        self, messages: Sequence[dict[str, Any]], images: Sequence[Image.Image]
    ) -> dict[str, torch.Tensor]:
        """Makes the model's inputs for one prompt.

        Returns:
            input_ids and attention_mask int64 [1, T], and where there are images pixel_values
            float32 [patches, width] and image_grid_thw int64 [images, 3].
        """
        text = self.tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        inputs: dict[str, torch.Tensor] = {}
        counts: list[int] = []
        if images:
            pixels = self.image_processor(images=list(images), return_tensors="pt")
            inputs["pixel_values"] = pixels["pixel_values"]
            inputs["image_grid_thw"] = pixels["image_grid_thw"]
            counts = (pixels["image_grid_thw"].prod(dim=1) // _MERGED_PATCHES).tolist()
        input_ids = torch.tensor([list(_expand(ids, self._image_id, counts))])
        inputs["input_ids"] = input_ids
        inputs["attention_mask"] = torch.ones_like(input_ids)
        if self._wants_token_types:
            inputs["mm_token_type_ids"] = (input_ids == self._image_id).int()
        return inputs

    @torch.inference_mode()
    def answer(
        self,
        messages: Sequence[dict[str, Any]],
        images: Sequence[Image.Image],
        max_tokens: int = SUITE_MAX_TOKENS,
    ) -> str:
        """Answers one prompt greedily and returns the text."""
        inputs = self.encode(messages, images)
        output = self.model.generate(**inputs, do_sample=False, max_new_tokens=max_tokens)
        new_ids = output[0, inputs["input_ids"].shape[1] :]
        return str(self.tokenizer.decode(new_ids, skip_special_tokens=True))


def _pil_image_processor() -> Any:
    """The image processor that needs no torchvision; its name changed in transformers 5."""
    if hasattr(transformers, "Qwen2VLImageProcessorPil"):
        return transformers.Qwen2VLImageProcessorPil
    return transformers.Qwen2VLImageProcessor


def _expand(ids: Sequence[int], image_id: int, counts: Sequence[int]) -> Iterator[int]:
    """Repeats the n-th image placeholder `counts[n]` times."""
    remaining = iter(counts)
    for token in ids:
        if token == image_id:
            yield from [token] * next(remaining)
        else:
            yield token


def attribute_hits(attributes: Sequence[str], text: str) -> int:
    """How many attributes occur in a text as whole words, each after the one found before it."""
    hits = position = 0
    for attribute in attributes:
        pattern = rf"(?<![A-Za-z0-9]){re.escape(attribute)}(?![A-Za-z0-9])"
        found = re.compile(pattern).search(text, position)
        if found:
            hits += 1
            position = found.end()
    return hits


@dataclass(frozen=True)
class Score:
    """What was measured on one family; all but `samples` are rates between 0 and 1."""

    samples: int
    right: float
    shuffled: float
    all_right: float
    exact: float


def held_out_sample(family: str, index: int) -> Sample:
    """Sample `index` of a family's block of held-out seeds."""
    return sample(block_seed(HELD_OUT_SEEDS, list(FAMILIES).index(family), index), family)


def shuffled_image(family: str, index: int) -> Image.Image:
    """The image of the next held-out sample of the same family and image size."""
    size = held_out_sample(family, index).image.size
    for step in range(1, BLOCK):
        image = held_out_sample(family, (index + step) % BLOCK).image
        if image.size == size:
            return image
    raise ValueError(f"no other image of {family} is {size}")


def measure_family(
    answerer: Answerer, family: str, samples: int, progress: "tqdm[Any] | None" = None
) -> Score:
    """Answers held-out samples of one family twice each, with their own and another image."""
    attributes = right = shuffled = all_right = exact = 0
    for i in range(samples):
        made = held_out_sample(family, i)
        messages = [user_turn(made.question, images=1)]
        text = answerer.answer(messages, [made.image])
        hits = attribute_hits(made.attributes, text)
        attributes += len(made.attributes)
        right += hits
        all_right += hits == len(made.attributes)
        exact += text == made.answer
        other_text = answerer.answer(messages, [shuffled_image(family, i)])
        shuffled += attribute_hits(made.attributes, other_text)
        if progress is not None:
            progress.update()
    return Score(
        samples,
        right / attributes,
        shuffled / attributes,
        all_right / samples,
        exact / samples,
    )


def mean_score(scores: Sequence[Score]) -> Score:
    """The mean over families, each with the same weight."""
    return Score(
        sum(score.samples for score in scores),
        fmean(score.right for score in scores),
        fmean(score.shuffled for score in scores),
        fmean(score.all_right for score in scores),
        fmean(score.exact for score in scores),
    )


def render_table(scores: dict[str, Score]) -> str:
    """The scores as a markdown table."""
    lines = [
        "| family | samples | attributes, right image | attributes, shuffled image "
        "| all attributes | exact text |",
        "|---|---|---|---|---|---|",
    ]
    for name, score in scores.items():
        rates = (score.right, score.shuffled, score.all_right, score.exact)
        cells = " | ".join(f"{rate:.3f}" for rate in rates)
        lines.append(f"| {name} | {score.samples} | {cells} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures every family, prints a table and optionally writes it as JSON."""
    parser = argparse.ArgumentParser(description="Measure a checkpoint's accuracy.")
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR")
    parser.add_argument("--samples", type=int, default=24, help="per family (default: 24)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the scores here")
    parser.add_argument("--threads", type=int, help="threads of torch (default: torch's choice)")
    args = parser.parse_args(argv)
    if args.samples < 1:
        parser.error("--samples must be at least 1")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    answerer = Answerer(args.checkpoint)
    with tqdm(total=args.samples * len(FAMILIES), unit="sample") as progress:
        scores = {}
        for family in FAMILIES:
            progress.set_description(family)
            scores[family] = measure_family(answerer, family, args.samples, progress)
    scores["mean"] = mean_score(list(scores.values()))
    versions = {name: version(name) for name in ("torch", "transformers", "pillow")}
    versions["python"] = platform.python_version()
    print(render_table(scores))
    print(", ".join(f"{name} {number}" for name, number in versions.items()))
    if args.json is not None:
        report = {
            "scores": {name: asdict(score) for name, score in scores.items()},
            "versions": versions,
        }
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
