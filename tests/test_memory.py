"""The prediction memories against plain dictionaries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.memory import (
    ID_BITS,
    MAX_VOCABULARY,
    ContextualMemory,
    PersistentMemory,
    Rows,
    concentration,
    contexts,
    keys_of,
)

TOP_K = 4


def rows_of(marks: list[int]) -> Rows:
    """Rows that can be told apart: ids count up from the mark."""
    ids = np.array(marks, np.int32).reshape(-1, 1) + np.arange(TOP_K, dtype=np.int32)
    probs = np.tile(np.array([0.5, 0.25, 0.125, 0.0625], np.float32), (len(marks), 1))
    return Rows(ids, probs, concentration(probs))


def column(keys: list[int]) -> np.ndarray:
    return np.array(keys, np.int64).reshape(-1, 1)


@given(st.lists(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 900)), max_size=20)))
def test_the_last_write_of_a_key_wins(batches):
    memory, expected = ContextualMemory(4096, TOP_K), {}
    for batch in batches:
        keys = [key for key, _ in batch]
        marks = [mark for _, mark in batch]
        memory.write(column(keys), rows_of(marks))
        expected.update(batch)
    assert memory.evictions == 0
    assert len(memory) == len(expected)
    for key in range(1, 41):
        entry = memory.find(key)
        assert (None if entry is None else entry[0][0]) == expected.get(key)


@given(st.lists(st.lists(st.integers(1, 60), max_size=30), max_size=12), st.sampled_from([8, 32]))
def test_buckets_keep_the_newest_eight_and_count_the_rest(batches, entries):
    """Model: keys come one by one, each bucket holds its eight newest."""
    memory = ContextualMemory(entries, TOP_K)
    buckets: dict[int, list[int]] = {}
    evictions = 0
    for batch in batches:
        before = {key for bucket in buckets.values() for key in bucket}
        for key in batch:
            bucket = buckets.setdefault(home(memory, key), [])
            if key in bucket:
                bucket.remove(key)
            bucket.append(key)
        for bucket in buckets.values():
            del bucket[:-8]
        after = {key for bucket in buckets.values() for key in bucket}
        evictions += len(before | set(batch)) - len(after)
        memory.write(column(batch), rows_of(batch))
    assert memory.evictions == evictions
    for key in range(1, 61):
        entry = memory.find(key)
        assert (entry is not None) == (key in buckets.get(home(memory, key), []))
        assert entry is None or entry[0][0] == key


def home(memory: ContextualMemory, key: int) -> int:
    return int(memory._bases(np.array([key], np.int64))[0])


def test_the_oldest_goes_first():
    memory = ContextualMemory(8, TOP_K)  # one bucket
    for key in range(1, 9):
        memory.write(column([key]), rows_of([key]))
    memory.write(column([1]), rows_of([100]))  # key 1 is young again
    memory.write(column([9]), rows_of([9]))
    assert memory.evictions == 1
    assert memory.find(2) is None
    assert memory.find(1)[0][0] == 100
    assert memory.find(9)[0][0] == 9


def test_more_new_keys_than_a_bucket_holds_keep_the_newest():
    memory = ContextualMemory(8, TOP_K)
    memory.write(column(list(range(1, 12))), rows_of(list(range(1, 12))))
    assert [key for key in range(1, 12) if memory.find(key)] == list(range(4, 12))
    assert memory.evictions == 3


@given(st.integers(1, 5000), st.sampled_from([64, 512]))
def test_seeding_fills_at_most_half(count, entries):
    memory = ContextualMemory(entries, TOP_K)
    keys = list(range(1, count + 1))
    memory.write(column(keys), rows_of(keys), seeding=True)
    assert len(memory) <= memory.capacity // 2
    assert len(memory) + memory.evictions == count


@given(st.lists(st.integers(-1, MAX_VOCABULARY - 1), min_size=3, max_size=3), st.integers(1, 3))
def test_a_key_exists_only_if_all_its_tokens_do(tokens, length):
    before, previous, last = (np.array([token], np.int32) for token in tokens)
    key = int(keys_of(contexts(last, previous, before), (length,))[0, 0])
    used = tokens[3 - length :]
    if min(used) < 0:
        assert key == 0
    else:
        expected = 0
        for token in used:
            expected = expected << ID_BITS | (token + 1)
        assert key == expected


def test_keys_of_different_lengths_never_collide():
    one = np.arange(3, dtype=np.int32)
    grid = np.array(np.meshgrid(one, one, one)).reshape(3, -1)
    keys = keys_of(contexts(*grid), (1, 2, 3))
    per_length = [set(keys[:, index].tolist()) for index in range(3)]
    assert [len(part) for part in per_length] == [3, 9, 27]
    assert len(set.union(*per_length)) == 39


def test_concentration_is_one_minus_relative_entropy():
    probs = np.array([[0.4, 0.2, 0.2, 0.2], [0.1, 0.1, 0.1, 0.1], [0.7, 0, 0, 0], [0, 0, 0, 0]])
    share = np.array([0.4, 0.2, 0.2, 0.2])
    expected = 1 + (share * np.log(share)).sum() / np.log(4)
    assert concentration(probs.astype(np.float32)) == pytest.approx([expected, 0, 1, 0], abs=1e-6)


def test_persistent_memory_averages_over_its_window():
    memory = PersistentMemory(10, 2, window=2)
    first = Rows(np.array([[3, 4]], np.int32), np.array([[0.8, 0.2]], np.float32), np.ones(1))
    second = Rows(np.array([[4, 5]], np.int32), np.array([[0.6, 0.4]], np.float32), np.ones(1))
    key = np.array([8], np.int64)
    memory.write(key, first)
    assert memory.find(8)[:2] == ([3, 4], pytest.approx([0.8, 0.2], abs=1e-3))
    memory.write(key, second)
    ids, probs, _ = memory.find(8)
    # 3: 0.8 / 2; 4: (0.2 + 0.6) / 2; 5: 0.4 / 2 does not fit
    assert dict(zip(ids, probs, strict=True)) == pytest.approx({3: 0.4, 4: 0.4}, abs=1e-3)
    assert memory.count[7] == 2
    assert len(memory) == 1
    memory.clear()
    assert memory.find(8) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 90)), min_size=1, max_size=30))
def test_a_window_of_one_overwrites(writes):
    memory, expected = PersistentMemory(6, TOP_K, window=1), {}
    keys = np.array([token + 1 for token, _ in writes], np.int64)
    memory.write(keys, rows_of([mark for _, mark in writes]))
    expected.update(writes)
    for token in range(6):
        entry = memory.find(token + 1)
        assert (None if entry is None else entry[0][0]) == expected.get(token)


def test_merging_never_repeats_an_id():
    rng = np.random.default_rng(5)
    memory = PersistentMemory(4, 8)
    for _ in range(50):
        ids = np.array([rng.permutation(20)[:8] for _ in range(4)], np.int32)
        probs = -np.sort(-rng.dirichlet(np.ones(8), 4).astype(np.float32))
        memory.write(np.arange(1, 5), Rows(ids, probs, concentration(probs)))
        for key in range(1, 5):
            found, shares, _ = memory.find(key)
            kept = [token for token in found if token >= 0]
            assert len(set(kept)) == len(kept)
            assert shares == sorted(shares, reverse=True)
            assert sum(shares) <= 1.01
