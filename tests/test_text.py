"""Deltas joined are the whole text, whatever the decoder, the tokens and the steps."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from recap.text import REPLACEMENT, IncrementalDetokenizer

CHECKPOINT = Path("engine_build/tiny_vlm/checkpoint")

TEXTS = st.text(max_size=40) | st.text(
    st.sampled_from("aé漢😄👩‍👧🏳️‍🌈\ufffd \n\t'<|>\u0301ñ한"), max_size=40
)


@pytest.fixture(scope="module")
def byte_level():
    return Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


@pytest.fixture(scope="module")
def sentencepiece():
    """Llama's decoder over pieces with a leading mark, lone spaces and byte fallback."""
    pieces = ["<unk>", "\u2581", "\u2581\u2581", "\u2581the", "\u2581a", "the", "ing", "é", "漢"]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.WordLevel({p: i for i, p in enumerate(pieces)}, "<unk>"))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    return tokenizer


STEPS = st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(any)
"""Sizes of steps, repeated as long as there are tokens; speculation emits several at once."""


def steps_of(sizes, ids):
    sizes, steps = itertools.cycle(sizes), []
    while ids:
        size = next(sizes)
        steps.append(ids[:size])
        ids = ids[size:]
    return steps


def run(decode, steps):
    detokenizer = IncrementalDetokenizer(decode)
    return [detokenizer.push(step) for step in steps] + [detokenizer.flush()]


def check(decode, steps):
    deltas = run(decode, steps)
    ids = [index for step in steps for index in step]
    assert "".join(deltas) == decode(ids)
    return deltas


@settings(max_examples=100, deadline=None)
@given(sizes=STEPS, text=TEXTS)
def test_text_survives_any_steps(byte_level, sizes, text):
    ids = byte_level.encode(text, add_special_tokens=False).ids
    check(byte_level.decode, steps_of(sizes, ids))


@settings(max_examples=100, deadline=None)
@given(sizes=STEPS, ids=st.lists(st.integers(0, 2047) | st.integers(0, 255), max_size=80))
def test_any_tokens_survive(byte_level, sizes, ids):
    """Low ids are single bytes: mostly invalid UTF-8; high ids are skipped special tokens."""
    check(byte_level.decode, steps_of(sizes, ids))


def byte_ids(byte_level, data):
    """One token per byte."""
    letters = {}
    for index in range(256):
        token = byte_level.id_to_token(index)
        if token is not None and len(token) == 1:
            letters[token] = index
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable}
    alphabet |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [letters[alphabet[byte]] for byte in data]


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=60)
    | st.lists(
        st.sampled_from([b"\xf0\x9f", b"\x98\x84", b"\xe2\x82", b"\xac", b"\xff", b"a", b" ",
                         "\ufffd".encode(), "😄".encode()]),
        max_size=40,
    ).map(b"".join)
)  # fmt: skip
@example("😄é漢\ufffd\ufffd\ufffd\ufffd\ufffd".encode() * 3)
@example(b"\xff" * 60)
@example(b"\xe2\x82" * 30)
@example(b"\xf0\x9f\x98" * 20 + "😄".encode())
def test_byte_by_byte(byte_level, data):
    steps = [[index] for index in byte_ids(byte_level, data)]
    deltas = check(byte_level.decode, steps)
    assert "".join(deltas) == data.decode("utf-8", "replace")


@settings(max_examples=100, deadline=None)
@given(TEXTS)
def test_no_half_characters_and_nothing_else_held_back(byte_level, text):
    data = text.encode()
    detokenizer = IncrementalDetokenizer(byte_level.decode)
    out = ""
    for n, index in enumerate(byte_ids(byte_level, data), 1):
        out += detokenizer.push([index])
        assert text.startswith(out)  # so a replacement character is one of the text's own
        held = data[:n].decode("utf-8", "ignore").removeprefix(out)
        assert held == REPLACEMENT * len(held) and len(held) <= 16
    assert out + detokenizer.flush() == text


@settings(max_examples=100, deadline=None)
@given(sizes=STEPS, ids=st.lists(st.integers(0, 8) | st.just(265), max_size=80))
def test_leading_spaces_of_sentencepiece(sentencepiece, sizes, ids):
    check(sentencepiece.decode, steps_of(sizes, ids))


@settings(max_examples=100, deadline=None)
@given(
    sizes=STEPS,
    words=st.lists(
        st.sampled_from(["\u2581the", "ing", "\u2581", "\n", "😄", "한", "ñ", "<s>"]), max_size=7
    ),
)
def test_byte_fallback_of_sentencepiece(sentencepiece, sizes, words):
    ids = []
    for word in words:
        index = sentencepiece.token_to_id(word)
        ids += (
            [sentencepiece.token_to_id(f"<0x{byte:02X}>") for byte in word.encode()]
            if index is None
            else [index]
        )
    check(sentencepiece.decode, steps_of(sizes, ids))


def test_byte_fallback_cut_inside_a_character_keeps_what_was_sent(sentencepiece):
    ids = [sentencepiece.token_to_id(f"<0x{byte:02X}>") for byte in "\n漢".encode()]
    assert "".join(run(sentencepiece.decode, [[index] for index in ids[:-1]])) == (
        "\n" + 2 * REPLACEMENT
    )


@pytest.mark.parametrize("case", ["words", "specials", "half and specials", "invalid", "newlines"])
def test_cost_of_a_push_does_not_grow(byte_level, case):
    half = byte_ids(byte_level, b"\xe2")
    ids = {
        "words": byte_level.encode("one two three ").ids * 500,
        "specials": [2046] * 2000,
        "half and specials": half + [2046] * 2000,
        "invalid": byte_ids(byte_level, b"\xff") * 2000,
        "newlines": byte_level.encode("\n").ids * 2000,
    }[case]
    most = 0

    def decode(tokens):
        nonlocal most
        most = max(most, len(tokens))
        return byte_level.decode(tokens)

    check_ids = ids[:2000]
    deltas = run(decode, [[index] for index in check_ids])
    assert "".join(deltas) == byte_level.decode(check_ids)
    assert most <= 33


def test_leading_space_survives_a_special_token_run(sentencepiece):
    special, the = sentencepiece.token_to_id("<s>"), sentencepiece.token_to_id("\u2581the")
    steps = [[the]] + [[special]] * 50 + [[the]]
    assert "".join(run(sentencepiece.decode, steps)) == "the the"
    steps = [[special]] * 50 + [[the]] + [[the]]
    assert "".join(run(sentencepiece.decode, steps)) == "the the"


def test_empty_stream(byte_level):
    assert run(byte_level.decode, []) == [""]
    assert run(byte_level.decode, [[], []]) == ["", "", ""]
