"""Messages are read strictly: a chat, or one error that names the place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.config import LimitSettings
from recap.errors import InvalidRequestError
from recap.models.messages import parse_messages

LIMITS = LimitSettings()

IMG = {"type": "image"}
HI = {"role": "user", "content": "hi"}


def user(*parts):
    return [{"role": "user", "content": list(parts)}]


@pytest.mark.parametrize(
    ("messages", "n_images", "field", "rule"),
    [
        ("not json", 0, "messages", "must be JSON"),
        ("", 0, "messages", "must be JSON"),
        ("[" * 100_000, 0, "messages", "nested"),
        ('[{"role": "user", "content": ' + "1" * 5000 + "}]", 0, "messages", "JSON"),
        ("{}", 0, "messages", "non-empty JSON list"),
        ("[]", 0, "messages", "non-empty JSON list"),
        ('"hi"', 0, "messages", "non-empty JSON list"),
        ([1], 0, "messages[0]", "object"),
        ([{"role": "user"}], 0, "messages[0]", "must have content"),
        ([{"content": "x"}], 0, "messages[0]", "must have role"),
        ([{**HI, "tool_calls": []}], 0, "messages[0]", "unknown key 'tool_calls'"),
        ([HI, {"role": "tool", "content": "x"}], 0, "messages[1].role", "must be one of"),
        ([{"role": ["user"], "content": "x"}], 0, "messages[0].role", "must be one of"),
        ([HI, {"role": "assistant", "content": "x"}], 0, "messages[1].role", "last message"),
        ([{"role": "user", "content": None}], 0, "messages[0].content", "string"),
        ([{"role": "user", "content": ""}], 0, "messages[0].content", "empty"),
        (user(), 0, "messages[0].content", "non-empty"),
        (user({"type": "text", "text": ""}), 0, "messages[0].content", "empty"),
        (user("hi"), 0, "messages[0].content[0]", "type"),
        (user({"type": "input_text", "text": "x"}), 0, "messages[0].content[0]", "input_text"),
        (user({"type": ["text"], "text": "x"}), 0, "messages[0].content[0]", "type"),
        (user({"type": "text"}), 0, "messages[0].content[0]", "must have text"),
        (user({"type": "text", "text": 1}), 0, "messages[0].content[0].text", "string"),
        (user(IMG), 0, "messages[0].content[0]", "one more image"),
        (user(IMG, IMG), 1, "messages[0].content[1]", "one more image"),
        (user(IMG), 2, "image", "2 given, but messages has 1"),
        ([HI], 1, "image", "1 given, but messages has 0"),
        (user({**IMG, "image": "x"}), 1, "messages[0].content[0]", "unknown key"),
        (user({"type": "image_url"}), 0, "messages[0].content[0]", "must have image_url"),
        (user({"type": "image_url", "image_url": 3}), 0,
         "messages[0].content[0].image_url", "data URI"),
        (user({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}), 0,
         "messages[0].content[0].image_url.url", "not fetched"),
        ('[{"role": "user", "content": "\\ud800"}]', 0, "messages[0].content", "surrogate"),
    ],
)  # fmt: skip
def test_bad_messages_name_place_and_rule(messages, n_images, field, rule):
    with pytest.raises(InvalidRequestError) as caught:
        parse_messages(messages, [b""] * n_images, LIMITS)
    assert caught.value.field == field and rule in caught.value.rule
    str(caught.value).encode()


KEYS = st.sampled_from(["role", "content", "type", "text", "image_url", "url"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["user", "text", "image"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(messages=JSON | st.lists(JSON, min_size=1, max_size=2))
def test_any_json_is_a_chat_or_an_error(messages):
    try:
        assert parse_messages(json.dumps(messages), [], LIMITS).turns
    except InvalidRequestError as error:
        assert error.field.startswith("messages")


def test_images_come_in_order_of_appearance():
    inline = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": 1}}
    short = {"type": "image_url", "image_url": "DATA:image/png;base64,BB=="}
    messages = [
        {"role": "system", "content": "s"},
        *user(IMG, {"type": "text", "text": "t"}, inline),
        {"role": "assistant", "content": ""},
        *user(short, IMG),
    ]
    chat = parse_messages(json.dumps(messages), [b"first", b"second"], LIMITS)
    assert [(source.field, source.data) for source in chat.images] == [
        ("image[0]", b"first"),
        ("messages[1].content[2].image_url.url", b"data:image/png;base64,AA=="),
        ("messages[3].content[0].image_url", b"DATA:image/png;base64,BB=="),
        ("image[1]", b"second"),
    ]
    assert chat.turns == [
        messages[0],
        {"role": "user", "content": [IMG, {"type": "text", "text": "t"}, IMG]},
        messages[2],
        {"role": "user", "content": [IMG, IMG]},
    ]
