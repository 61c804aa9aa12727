"""The suffix index against brute force."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recap.suffix import NO_MATCH, SuffixIndex

# Few different tokens, so that repeats are long and frequent; -1 separates.
TEXTS = st.lists(st.sampled_from([0, 1, 2, -1]), max_size=60)


def occurrences(text: list[int], pattern: list[int]) -> list[int]:
    """Ends (exclusive) of all places where a pattern without separators stands in the text."""
    size = len(pattern)
    return [end for end in range(size, len(text) + 1) if text[end - size : end] == pattern]


def longest_earlier_suffix(text: list[int]) -> int:
    for size in range(len(text) - 1, 0, -1):
        suffix = text[-size:]
        if -1 not in suffix and len(occurrences(text, suffix)) > 1:
            return size
    return 0


@given(TEXTS)
@example([0] * 50)
@example([0, 1, -1, -1, -1, 0, 1])
def test_match_is_the_longest_suffix_that_stood_before(text):
    index = SuffixIndex()
    for end in range(len(text)):
        index.extend([text[end]])
        assert index.match().length == longest_earlier_suffix(text[: end + 1])
    assert index.length == len(text)


@given(TEXTS, st.lists(st.sampled_from([0, 1, 2]), max_size=8))
def test_advance_finds_the_longest_match_of_a_draft(text, draft):
    index = SuffixIndex()
    index.extend(text)
    match, history = index.match(), list(text)
    for token in draft:
        match = index.advance(match, token)
        history.append(token)
        expected = 0
        for size in range(1, len(history) + 1):
            suffix = history[-size:]
            if -1 not in suffix and occurrences(text, suffix):
                expected = size
        assert match.length == expected


@given(TEXTS)
def test_continuations_are_what_followed_longest_match_first_newest_first(text):
    index = SuffixIndex()
    index.extend(text)
    expected, size = [], index.match().length
    for length in range(size, 0, -1):
        ends = [end for end in occurrences(text, text[-length:]) if end < len(text)]
        for end in reversed(ends):
            if text[end] >= 0 and text[end] not in expected:
                expected.append(text[end])
    found = index.continuations(index.match(), 99)
    assert [one.token for one in found] == expected
    assert all(a.length >= b.length for a, b in zip(found, found[1:], strict=False))
    assert found[:2] == index.continuations(index.match(), 2)


def test_nothing_matches_in_an_empty_index():
    index = SuffixIndex()
    assert index.match() == NO_MATCH
    assert index.advance(NO_MATCH, 5) == NO_MATCH
    assert index.continuations(NO_MATCH, 3) == []


def test_a_run_of_separators_takes_one_state():
    index = SuffixIndex()
    index.extend([1, 2] + [-1] * 1000 + [1, 2])
    assert index.match().length == 2
    assert len(index._next) < 10


class _CountingLinks(list):
    """A list that counts how often it is read."""

    reads = 0

    def __getitem__(self, place):
        self.reads += 1
        return super().__getitem__(place)


@pytest.mark.parametrize("pattern", [[5], [5, 6], [5, 6, 7, 5, 5]])
def test_a_looping_text_makes_no_step_slower_than_the_one_before(pattern):
    """A match in a token repeated n times has n shorter ones below it."""
    costs = []
    for repeats in (300, 3000):
        index = SuffixIndex()
        index.extend(pattern * repeats)
        index._link = links = _CountingLinks(index._link)
        match = index.match()
        assert match.length > 200
        assert index.continuations(match, 3)[0].token == pattern[0]
        assert index.advance(match, pattern[0]).length == match.length + 1
        assert index.advance(match, 99) == NO_MATCH
        costs.append(links.reads)
    assert costs[0] == costs[1] <= 4 * SuffixIndex.HOPS


def test_advance_falls_back_to_the_token_alone():
    index = SuffixIndex()
    index.extend([8, *[5] * 500])
    assert index.advance(index.match(), 8).length == 1
