"""Prompts: equality with transformers, client text that stays text, strict messages."""

from __future__ import annotations

import base64
import io
import json
import shutil
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoTokenizer

from recap.config import LimitSettings
from recap.errors import InvalidRequestError, SettingsError
from recap.images import digest
from recap.models.chat import load_tokenizer
from recap.models.processor import load_processor

CHECKPOINT = Path("engine_build/tiny_vlm/checkpoint")
IMAGE_PAD, VISION_START, VISION_END = 2046, 2043, 2044

# What the template of Qwen2.5-VL-Instruct does, in other words: a default system prompt, images
# counted over the whole chat, videos, and contents that are strings or lists of parts.
QWEN_TEMPLATE = """\
{%- set seen = namespace(images=0, videos=0) -%}
{%- if messages and messages[0].role != 'system' -%}
<|im_start|>system
You are a helpful assistant.<|im_end|>
{{ '' }}
{%- endif -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}
{%- set seen.images = seen.images + 1 -%}
{%- if add_vision_id is defined and add_vision_id -%}Picture {{ seen.images }}: {% endif -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' or 'video' in part -%}
{%- set seen.videos = seen.videos + 1 -%}
<|vision_start|><|video_pad|><|vision_end|>
{%- elif 'text' in part -%}
{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""
TRIMMING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {% for c in m.content %}"
    "{% if c.type == 'image' %}<|image_pad|>{% else %}{{ c.text | trim }}{% endif %}{% endfor %}"
    "<|im_end|>{% endfor %}"
)


def copy_checkpoint(target, template=None, **config):
    for path in CHECKPOINT.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, target / path.name)
    if template is not None:
        (target / "chat_template.jinja").write_text(template)
    if config:
        merged = {**json.loads((target / "config.json").read_text()), **config}
        (target / "config.json").write_text(json.dumps(merged))
    return target


@pytest.fixture(scope="module", params=["tiny", "qwen", "trimming"])
def checkpoint(request, tmp_path_factory):
    template = {"tiny": None, "qwen": QWEN_TEMPLATE, "trimming": TRIMMING_TEMPLATE}[request.param]
    return copy_checkpoint(tmp_path_factory.mktemp(request.param), template)


@pytest.fixture(scope="module")
def processor():
    return load_processor(CHECKPOINT)


@pytest.fixture(scope="module")
def chat():
    return load_tokenizer(CHECKPOINT)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.fixture(scope="module")
def specials(tokenizer):
    return {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}


def picture(width=60, height=40, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def png(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def uri(image):
    return "data:image/png;base64," + base64.b64encode(png(image)).decode()


def reference(tokenizer, turns):
    """Ids of transformers, whatever its version wraps them in."""
    ids = tokenizer.apply_chat_template(turns, tokenize=True, add_generation_prompt=True)
    return list(ids if isinstance(ids, list) else ids["input_ids"])


ORDINARY = st.text(max_size=30) | st.text(
    st.sampled_from("ab \n\t'é\u0301漢😄.,<|>1\0"), max_size=30
)


@pytest.fixture(scope="module")
def pair(checkpoint):
    return load_tokenizer(checkpoint), AutoTokenizer.from_pretrained(checkpoint)


@settings(max_examples=120, deadline=None)
@given(texts=st.lists(ORDINARY, min_size=1, max_size=3), image=st.booleans())
@example(["\n\n hello \n"], True)
@example(["\u0301combines with what stands before"], False)
@example(["'s"], True)
@example([" ", "\n"], False)
def test_ids_are_those_of_transformers(pair, texts, image):
    chat, reference_tokenizer = pair
    parts = [{"type": "text", "text": text} for text in texts]
    if image:
        parts.insert(len(parts) // 2, {"type": "image"})
    turns = [
        {"role": "system", "content": parts[:1]},
        {"role": "user", "content": parts},
    ]
    assert chat.encode_chat(turns) == reference(reference_tokenizer, turns)


@settings(max_examples=40, deadline=None)
@given(text=ORDINARY)
def test_string_contents_too(chat, tokenizer, text):
    turns = [{"role": "assistant", "content": text}, {"role": "user", "content": text}]
    assert chat.encode_chat(turns) == reference(tokenizer, turns)


def test_every_special_token_typed_is_text(processor, specials):
    assert len(specials) >= 14
    ids = set(specials.values())
    template_only = processor.from_text("x").input_ids.tolist()
    wanted = [index for index in template_only if index in ids]
    for special in specials:
        for text in (special, f"a{special}b", f" {special}\n", special * 2, f"{special[:-1]}"):
            chat = json.dumps([{"role": "user", "content": text}])
            parts = [{"role": "user", "content": [{"type": "text", "text": text}]}]
            for prompt in (
                processor.from_text(text),
                processor.from_messages(chat),
                processor.from_messages(parts),
            ):
                found = prompt.input_ids.tolist()
                assert [index for index in found if index in ids] == wanted
                assert text in processor.decode(found)
            raw = processor.from_text(text, raw=True).input_ids.tolist()
            assert not ids & set(raw) and processor.decode(raw) == text


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_special_strings_anywhere_are_text(processor, specials, data):
    pieces = st.sampled_from(sorted(specials)) | ORDINARY | st.sampled_from(["<|", "|>", "<|im_"])
    text = "".join(data.draw(st.lists(pieces, min_size=1, max_size=6))) or "x"
    raw = processor.from_text(text, raw=True).input_ids.tolist()
    assert not set(specials.values()) & set(raw)
    assert processor.decode(raw) == unicodedata.normalize("NFC", text)


def test_template_and_client_text_never_join_to_a_special_token(tmp_path):
    template = "{% for m in messages %}<|im_{{ m.content[0].text or '' }}{% endfor %}"
    chat_checkpoint = copy_checkpoint(tmp_path, template)
    chat = load_tokenizer(chat_checkpoint)
    ids = chat.encode_chat([{"role": "user", "content": [{"type": "text", "text": "start|>"}]}])
    assert chat.decode(ids) == "<|im_start|>"


def test_tokenizer_state_and_threads(processor):
    texts = [f"text {i} <|im_end|> é漢 " * 5 for i in range(40)]
    images = [picture(40 + i, 50, seed=i) for i in range(4)]
    before = processor._chat._backend.encode_special_tokens

    def work(i):
        prompt = processor.from_text(texts[i], [images[i % 4]])
        return prompt.input_ids.tobytes() + prompt.pixel_values.tobytes()

    alone = [work(i) for i in range(len(texts))]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(len(texts)))) == alone
    assert processor._chat._backend.encode_special_tokens == before


def test_prompt_with_images(processor):
    images = [picture(60, 40, 1), picture(120, 90, 2)]
    prompt = processor.from_text("What?", [png(images[0]), images[1]])
    assert prompt.input_ids.dtype == np.int32
    assert prompt.pixel_values.dtype == np.float32 and prompt.image_layout.dtype == np.int64
    assert prompt.image_layout.shape == (2, 3)
    rows = prompt.image_layout.prod(axis=1)
    assert prompt.pixel_values.shape == (rows.sum(), 3 * 2 * 14 * 14)
    assert prompt.image_digests == [digest(image) for image in images]
    ids = prompt.input_ids.tolist()
    expected = [[VISION_START, *[IMAGE_PAD] * (int(count) // 4), VISION_END] for count in rows]
    first = ids.index(VISION_START)
    assert ids[first : first + sum(map(len, expected))] == expected[0] + expected[1]
    raw = processor.from_text("What?", images, raw=True).input_ids.tolist()
    assert (
        raw == expected[0] + expected[1] + processor.from_text("What?", raw=True).input_ids.tolist()
    )
    alone = processor.from_text("", [images[1]])
    assert np.array_equal(alone.pixel_values, prompt.pixel_values[rows[0] :])


def test_prompt_without_images(processor):
    prompt = processor.from_text("hello")
    assert prompt.pixel_values.shape == (0, 1176) and prompt.image_layout.shape == (0, 3)
    assert prompt.image_digests == []


@pytest.mark.parametrize("size", [(1, 1), (200, 1), (1, 200), (3, 500), (500, 3)])
def test_small_and_long_images_fit(processor, size):
    prompt = processor.from_text("x", [Image.new("RGB", size, "red")])
    assert (prompt.input_ids == IMAGE_PAD).sum() == prompt.image_layout.prod() // 4 > 0
    red = prompt.pixel_values[0].reshape(3, -1)[:, 0]
    assert np.allclose(red, [(1 - 0.48145466) / 0.26862954, -0.4578275 / 0.26130258,
                             -0.40821073 / 0.27577711], atol=1e-5)  # fmt: skip


def test_size_of_the_checkpoint_bounds_the_features(processor):
    """preprocessor_config.json: at most 28224 pixels, which are 36 features of 28 x 28."""
    prompt = processor.from_text("x", [picture(400, 400)])
    assert prompt.image_layout.tolist() == [[1, 12, 12]]


@pytest.mark.parametrize("size", [(201, 1), (1, 201), (4000, 10)])
def test_extreme_aspect_ratios_are_refused(processor, size):
    with pytest.raises(InvalidRequestError, match=r"image\[1\]: .*200 times"):
        processor.from_text("x", [picture(), png(Image.new("RGB", size))])


def test_messages_take_images_in_order(processor):
    images = [picture(60, 40, seed) for seed in range(3)]
    chat = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "and"},
                                     {"type": "image_url", "image_url": {"url": uri(images[1]),
                                                                         "detail": "low"}}]},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": [{"type": "text", "text": "now"}, {"type": "image"},
                                     {"type": "image_url", "image_url": uri(images[0])}]},
    ]  # fmt: skip
    prompt = processor.from_messages(json.dumps(chat), [png(images[0]), png(images[2])])
    order = [images[0], images[1], images[2], images[0]]
    assert prompt.image_digests == [digest(image) for image in order]
    assert len(prompt.image_layout) == 4
    text = processor.decode(prompt.input_ids.tolist())
    assert text == "system\nBe short.\nuser\nand\nassistant\nok\nuser\nnow\nassistant\n"
    escaped = json.dumps(chat).replace("/", "\\/")
    again = processor.from_messages(escaped, [png(images[0]), png(images[2])])
    assert np.array_equal(again.input_ids, prompt.input_ids)


HI = {"role": "user", "content": "hi"}


def user(*parts):
    return [{"role": "user", "content": list(parts)}]


def test_an_inline_image_that_is_none_is_named(processor):
    parts = [{"type": "text", "text": "hi"}]
    parts += [{"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}]
    with pytest.raises(InvalidRequestError) as caught:
        processor.from_messages(user(*parts))
    assert caught.value.field == "messages[0].content[1].image_url.url"
    assert "PNG" in caught.value.rule


def test_bad_text(processor):
    for text, images in (("", []), ("\ud800", []), ("a\udfff", [])):
        with pytest.raises(InvalidRequestError, match="text_input"):
            processor.from_text(text, images)
    nul = processor.from_text("a\0b", raw=True).input_ids.tolist()
    assert processor.decode(nul) == "a\0b"


def test_limits():
    limits = LimitSettings(max_text_bytes=100, max_images=1, max_image_pixels=60 * 40)
    processor = load_processor(CHECKPOINT, limits)
    processor.from_text("é" * 50, [picture()])
    for call in (
        lambda: processor.from_text("é" * 51),
        lambda: processor.from_messages([{"role": "user", "content": "é" * 51}]),
        lambda: processor.from_messages(json.dumps([HI]) + " " * 100),
    ):
        with pytest.raises(InvalidRequestError, match="at most 100 bytes"):
            call()
    # An image inside the JSON does not count as text.
    part = {"type": "image_url", "image_url": uri(picture())}
    processor.from_messages(json.dumps(user(part)))
    with pytest.raises(InvalidRequestError, match="at most 1 images"):
        processor.from_messages(user(part, part))
    with pytest.raises(InvalidRequestError, match="at most 1 images"):
        processor.from_text("x", [b"", b""])
    with pytest.raises(InvalidRequestError, match="at most 2400 pixels"):
        processor.from_text("x", [png(picture(61, 40))])


def test_prepare_takes_exactly_one_form(processor):
    assert np.array_equal(processor.prepare(text="x").input_ids, processor.from_text("x").input_ids)
    processor.prepare(messages=[HI])
    for arguments in ({}, {"text": "x", "messages": [HI]}, {"messages": [HI], "raw": True}):
        with pytest.raises(InvalidRequestError):
            processor.prepare(**arguments)


def test_template_errors_are_the_clients(tmp_path):
    refusing = (
        "{% if messages | length > 1 %}{{ raise_exception('one message only') }}{% endif %}"
        "{{ messages[0].content if messages[0].content is string else 'x' }}"
    )
    processor = load_processor(copy_checkpoint(tmp_path, refusing))
    with pytest.raises(InvalidRequestError, match="one message only"):
        processor.from_messages([HI, HI])
    with pytest.raises(InvalidRequestError, match="shows 0 of 1 images"):
        processor.from_text("x", [picture()])


def test_decode_skips_special_tokens_and_tidies_nothing(processor, chat, tokenizer):
    ids = list(range(0, 2048, 7))
    assert (
        processor.decode(ids)
        == chat.decode(ids)
        == tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    )


def test_unusable_checkpoints(tmp_path):
    with pytest.raises(SettingsError, match="config.json"):
        load_processor(tmp_path)
    copy_checkpoint(tmp_path, model_type="llama")
    with pytest.raises(SettingsError, match="'llama' is not supported"):
        load_processor(tmp_path)
    copy_checkpoint(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ nothing.here }}")
    with pytest.raises(SettingsError, match="template"):
        load_processor(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(SettingsError, match="template"):
        load_processor(tmp_path)
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": QWEN_TEMPLATE}))
    assert load_processor(tmp_path).decode(load_processor(tmp_path).from_text("x").input_ids)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(SettingsError, match="tokenizer"):
        load_tokenizer(tmp_path)
