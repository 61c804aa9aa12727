"""The shipped checkpoint: what it is, how prompts are encoded, and that it looks at the image."""

import json
import re

import pytest
import torch
import transformers

from engine_build.tiny_vlm import CHECKPOINT_DIR, FAMILIES, evaluate
from engine_build.tiny_vlm.demo import demo_sample
from engine_build.tiny_vlm.evaluate import Answerer, attribute_hits, measure_family
from engine_build.tiny_vlm.suite import user_turn

SAMPLES = 1


@pytest.fixture(scope="module")
def answerer():
    return Answerer(CHECKPOINT_DIR)


def test_it_is_exactly_a_qwen2_5_vl_and_complete():
    model, report = transformers.AutoModelForImageTextToText.from_pretrained(
        CHECKPOINT_DIR, dtype=torch.float32, output_loading_info=True
    )
    assert type(model) is transformers.Qwen2_5_VLForConditionalGeneration
    assert not report["missing_keys"] and not report["unexpected_keys"]
    parameters = {p.data_ptr(): p.numel() for p in model.parameters()}
    assert sum(parameters.values()) == pytest.approx(7.75e6, rel=0.01)


def test_nothing_in_the_folder_names_a_machine():
    for path in CHECKPOINT_DIR.iterdir():
        if path.suffix in {".json", ".md", ".jinja"}:
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"/(home|root|tmp|Users)/", text), path.name


def test_prompts_are_encoded_as_in_training(answerer):
    made = demo_sample()
    inputs = answerer.encode([user_turn(made.question, images=1)], [made.image])
    tokenizer = answerer.tokenizer
    before = tokenizer("<|im_start|>user\n<|vision_start|>")["input_ids"]
    after = tokenizer(f"<|vision_end|>{made.question}<|im_end|>\n<|im_start|>assistant\n")[
        "input_ids"
    ]
    pads = [tokenizer.convert_tokens_to_ids("<|image_pad|>")] * 16
    assert inputs["input_ids"].tolist() == [before + pads + after]
    assert inputs["image_grid_thw"].tolist() == [[1, 8, 8]]
    assert inputs["pixel_values"].shape == (64, 3 * 2 * 14 * 14)


def test_two_images_are_expanded_one_by_one(answerer):
    images = [evaluate.held_out_sample(family, 0).image for family in ("ocr", "scene")]
    inputs = answerer.encode([user_turn("Read the sign.", images=2)], images)
    pad = answerer.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    pads = (inputs["input_ids"][0] == pad).int()
    edges = pads.diff().nonzero().flatten()
    assert (edges[1] - edges[0], edges[3] - edges[2]) == (10, 16)


def test_it_describes_the_demo_image_without_a_fault(answerer):
    made = demo_sample()
    text = answerer.answer([user_turn(made.question, images=1)], [made.image])
    assert text == made.answer
    assert len(answerer.tokenizer(text)["input_ids"]) > 50


def test_it_answers_from_the_image(answerer):
    scores = [measure_family(answerer, family, SAMPLES) for family in FAMILIES]
    mean = evaluate.mean_score(scores)
    assert mean.samples == SAMPLES * len(FAMILIES)
    assert mean.right > 0.7
    assert mean.shuffled < 0.5


def test_shuffled_images_have_the_same_size_and_are_others():
    for family in FAMILIES:
        own = evaluate.held_out_sample(family, 0).image
        other = evaluate.shuffled_image(family, 0)
        assert other.size == own.size and other.tobytes() != own.tobytes()


@pytest.mark.parametrize(
    ("attributes", "text", "hits"),
    [
        (["red", "cross"], "a red cross", 2),
        (["cross", "red"], "a red cross", 1),
        (["red", "red"], "red", 1),
        (["one"], "none", 0),
        (["8"], "85 or 8.", 1),
        (["(A)", "yes"], "The answer is (A): yes.", 2),
    ],
)
def test_attributes_are_found_in_order_and_as_words(attributes, text, hits):
    assert attribute_hits(attributes, text) == hits


def test_the_command_writes_its_scores(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(evaluate, "FAMILIES", {"ocr": FAMILIES["ocr"]})
    out = tmp_path / "scores.json"
    evaluate.main(["--checkpoint", str(CHECKPOINT_DIR), "--samples", "1", "--json", str(out)])
    report = json.loads(out.read_text())
    assert set(report["scores"]) == {"ocr", "mean"}
    assert "| ocr | 1 |" in capsys.readouterr().out
    assert report["versions"]["transformers"] == transformers.__version__
