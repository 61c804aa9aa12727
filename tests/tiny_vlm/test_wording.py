"""The small helpers that word answers."""

from hypothesis import given
from hypothesis import strategies as st

from engine_build.tiny_vlm.wording import join_and, key, parse_keyed, plural, with_article

PLAIN = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1)


@given(st.lists(st.tuples(PLAIN, st.booleans()), min_size=1))
def test_marks_come_out_as_spans(parts):
    text, spans = parse_keyed("".join(key(part) if keyed else part for part, keyed in parts))
    assert text == "".join(part for part, _ in parts)
    assert [text[span.start : span.end] for span in spans] == [p for p, keyed in parts if keyed]


def test_lists_articles_and_plurals():
    assert join_and(["a"]) == "a"
    assert join_and(["a", "b"]) == "a and b"
    assert join_and(["a", "b", "c"]) == "a, b and c"
    assert with_article(key("orange")) == "an " + key("orange")
    assert with_article("red ring") == "a red ring"
    assert (plural("cross"), plural("ring")) == ("crosses", "rings")
