"""The generator: the same bit for bit, well formed, in the sizes of the model card."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

from engine_build.tiny_vlm import DEMO_IMAGE, FAMILIES, sample
from engine_build.tiny_vlm.canvas import Canvas
from engine_build.tiny_vlm.demo import demo_sample
from engine_build.tiny_vlm.demo import main as demo_main
from engine_build.tiny_vlm.generator import FOLLOW_UPS, dialogue
from engine_build.tiny_vlm.vocabulary import LABEL_IDS, LABELS

from .digests import GOLDEN_SEEDS, golden_digests, image_digest

ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
SIZES = {
    "scene": {(112, 112)},
    "gqa": {(112, 112)},
    "chart": {(140, 112)},
    "ocr": {(140, 56)},
    "doc": {(112, 140)},
    "table": {(140, 84), (140, 112)},
    "sci": {(112, 112)},
}
SEEDS = range(60)


def test_two_processes_make_the_same_bytes():
    outputs = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(Path(__file__).with_name("digests.py"))]
        outputs.append(subprocess.check_output(command, env=environment))
    assert outputs[0] == outputs[1]
    assert json.loads(outputs[0])["golden"].keys() == GOLDEN["digests"].keys()


def test_texts_equal_the_golden_ones():
    for name, digests in golden_digests().items():
        assert digests["text"] == GOLDEN["digests"][name]["text"], name


def test_images_equal_the_golden_ones():
    """Pixels depend on Pillow; with another version than the recorded one two runs must agree."""
    if version("pillow") == GOLDEN["pillow"]:
        expected = GOLDEN["digests"]
    else:
        expected = golden_digests()
    for name, digests in golden_digests().items():
        assert digests["image"] == expected[name]["image"], name


def test_families_are_those_of_the_card():
    assert list(FAMILIES) == list(SIZES)


@pytest.mark.parametrize("family", SIZES)
def test_images_have_the_sizes_of_the_card(family):
    sizes = {sample(seed, family).image.size for seed in SEEDS}
    assert sizes == SIZES[family]
    assert all(side % 28 == 0 for size in sizes for side in size)


@pytest.mark.parametrize("family", SIZES)
def test_spans_point_at_the_attributes(family):
    for seed in SEEDS:
        made = sample(seed, family)
        assert made.family == family and made.seed == seed
        assert len(made.attributes) >= 3
        assert all(made.answer[start:end] for start, end in made.spans)
        assert all(first.end <= second.start for first, second in pairwise(made.spans))
        assert not any(re.search(r"^\s|\s$|[\x01\x02]", each) for each in made.attributes)
        assert not re.search(r"[\x01\x02]|  ", made.answer + made.question)


@pytest.mark.parametrize("family", SIZES)
def test_every_kind_of_question_comes_up(family):
    kinds = {sample(seed, family).kind for seed in SEEDS}
    assert len(kinds) == {"scene": 4, "gqa": 5, "chart": 4, "sci": 5}.get(family, 3)


def test_the_seed_may_choose_the_family():
    assert {sample(seed).family for seed in SEEDS} == set(SIZES)
    assert sample(3) == sample(3)


def test_an_unknown_family_is_an_error():
    with pytest.raises(KeyError, match="video"):
        sample(1, "video")


def test_grammar_is_mended():
    for family in ("gqa", "ocr"):
        for seed in range(150):
            made = sample(seed, family)
            assert not re.search(r"crosss|\b[Aa] orange|\ban [^aeiou]", made.question + made.answer)


@pytest.mark.parametrize("family", SIZES)
def test_annotations_lie_in_the_image_and_in_the_table(family):
    for seed in SEEDS:
        made = sample(seed, family)
        width, height = made.image.size
        assert made.annotations
        for note in made.annotations:
            assert 0 <= note.x < width and 0 <= note.y < height
            assert LABELS[note.label_id] == note.label


def test_every_shape_of_an_answer_is_annotated():
    for seed in SEEDS:
        made = sample(seed, "scene")
        named = [f"sh:{word}" for word in made.attributes if f"sh:{word}" in LABEL_IDS]
        noted = [note.label for note in made.annotations if note.label.startswith("sh:")]
        assert named == noted


def test_an_unknown_label_is_an_error():
    with pytest.raises(ValueError, match="no such label"):
        Canvas(28, 28, (0, 0, 0)).annotate(1, 1, "co:mauve")


def test_the_label_table_has_no_doubles():
    assert len(LABEL_IDS) == len(LABELS)


@pytest.mark.parametrize("family", FOLLOW_UPS)
def test_a_dialogue_asks_two_different_things_about_one_picture(family):
    for seed in GOLDEN_SEEDS:
        first, second = dialogue(seed, family)
        assert first == sample(seed, family)
        assert first.image is second.image
        assert first.question != second.question
        assert second.family == FOLLOW_UPS[family] and second.kind != first.kind


def test_the_demo_image_is_what_the_generator_makes(tmp_path, capsys):
    demo_main([str(tmp_path / "demo.png")])
    assert demo_sample().question in capsys.readouterr().out
    with Image.open(DEMO_IMAGE) as shipped, Image.open(tmp_path / "demo.png") as made:
        assert shipped.mode == made.mode == "RGB"
        assert shipped.size == made.size
        assert shipped.tobytes() == made.tobytes() == demo_sample().image.tobytes()


def test_digests_tell_images_apart():
    assert image_digest(sample(1, "ocr")) != image_digest(sample(2, "ocr"))
