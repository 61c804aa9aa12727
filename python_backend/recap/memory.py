"""The two prediction memories: one that dies with its request, one that all requests share.

Both keep what the target predicted (top-K ids, their probabilities, how concentrated they are)
under the last tokens that led there, as flat arrays of fixed size. Nothing here knows how
predictions are weighed or what becomes of them. The drafters call it.

A *context* is the last three tokens packed into one integer, 21 bits each, as ``id + 1``, the last
in the lowest field. A field of 0 means "no token": the history starts later, or a token that may
be in no key stands there, and then all older fields are 0 too. The key of length n is the lowest n
fields and exists if the n-th is set; keys of different lengths never collide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ID_BITS = 21
MAX_VOCABULARY = (1 << ID_BITS) - 1
"""Largest vocabulary whose ids, plus one, fit a field of a key."""

CONTEXT_MASK = (1 << 3 * ID_BITS) - 1

NO_TOKEN = -1
"""In the ids of a row: nothing to propose at this rank."""

_MULTIPLIER = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: spreads keys that differ in few bits
_WORD_MASK = (1 << 64) - 1

Entry = tuple[list[int], list[float], float]
"""A stored prediction as plain lists: ids (-1: none), probabilities, concentration in 0..1."""


@dataclass(frozen=True)
class Rows:
    """Predictions ready to be stored.

    Attributes:
        ids: int32 [n, K], `NO_TOKEN` where nothing may be proposed.
        probs: float32 [n, K].
        concentration: float32 [n].
    """

    ids: NDArray[np.int32]
    probs: NDArray[np.float32]
    concentration: NDArray[np.float32]

    def take(self, index: NDArray[np.intp]) -> Rows:
        """The rows at `index`, in that order."""
        return Rows(self.ids[index], self.probs[index], self.concentration[index])


def concentration(probs: NDArray[np.float32]) -> NDArray[np.float32]:
    """How concentrated predictions are: 1 - H / ln K of the top-K renormalised to 1.

    Args:
        probs: float32 [n, K], not negative.

    Returns:
        float32 [n] in 0..1; 0 for a row without mass; 1 when K is 1.
    """
    if probs.shape[1] == 1:
        return (probs[:, 0] > 0).astype(np.float32)
    mass = probs.sum(axis=1, keepdims=True)
    share = probs / np.maximum(mass, np.float32(1e-30))
    surprise = share * np.log(np.maximum(share, np.float32(1e-30)))
    value = np.clip(1.0 + surprise.sum(axis=1) / math.log(probs.shape[1]), 0.0, 1.0)
    return np.where(mass[:, 0] > 0, value, 0.0).astype(np.float32)


def contexts(
    tokens: NDArray[np.int32], previous: NDArray[np.int32], before: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Packs contexts that end at `tokens`.

    Args:
        tokens: int32 [n]; -1 where the token may be in no key or does not exist.
        previous: int32 [n], the tokens before them.
        before: int32 [n], the tokens before those.

    Returns:
        int64 [n].
    """
    first, second, third = (part.astype(np.int64) + 1 for part in (tokens, previous, before))
    second *= first > 0
    third *= second > 0
    return (third << 2 * ID_BITS) | (second << ID_BITS) | first


def keys_of(packed: NDArray[np.int64], lengths: tuple[int, ...]) -> NDArray[np.int64]:
    """The keys at which contexts end: int64 [n, lengths], 0 where a context is too short."""
    shifts = np.array(lengths, np.int64) * ID_BITS
    keys = packed[:, None] & ((1 << shifts) - 1)
    return keys * (packed[:, None] >= 1 << (shifts - ID_BITS))


class ContextualMemory:
    """Predictions of one request under keys of one, two and three tokens.

    A hash table of buckets of `WAYS` entries. The newest write of a key wins; a full bucket
    replaces its oldest entry, which `evictions` counts. Seeding uses half of each bucket, so that
    a long prompt cannot crowd out what the answer teaches. Size and cost of a lookup are fixed.

    Args:
        entries: Most entries, all key lengths together; rounded down to a power of two.
        top_k: Predictions per entry.
    """

    WAYS = 8

    def __init__(self, entries: int, top_k: int) -> None:
        bucket_bits = max(0, (max(entries, self.WAYS) // self.WAYS).bit_length() - 1)
        self.capacity = self.WAYS << bucket_bits
        self.top_k = top_k
        self.evictions = 0
        self._shift = 64 - bucket_bits
        self._clock = 0
        self._keys = np.zeros(self.capacity, np.int64)
        self._stamps = np.zeros(self.capacity, np.int64)
        self._ids = np.zeros((self.capacity, top_k), np.int32)
        self._probs = np.zeros((self.capacity, top_k), np.float32)
        self._concentration = np.zeros(self.capacity, np.float32)
        # Scalar reads through a memoryview cost a fifth of those through an array.
        self._key_view = self._keys.data
        self._id_view = self._ids.reshape(-1).data
        self._prob_view = self._probs.reshape(-1).data
        self._concentration_view = self._concentration.data

    def __len__(self) -> int:
        """Entries in use."""
        return int(np.count_nonzero(self._keys))

    def find(self, key: int) -> Entry | None:
        """The newest prediction under a key, or None."""
        # A shift by all 64 bits (one bucket) is 0 for Python integers, as wanted.
        base = ((key * _MULTIPLIER & _WORD_MASK) >> self._shift) * self.WAYS
        bucket = self._key_view[base : base + self.WAYS].tolist()
        if key not in bucket:
            return None
        slot = base + bucket.index(key)
        start, stop = slot * self.top_k, (slot + 1) * self.top_k
        ids: list[int] = self._id_view[start:stop].tolist()
        probs: list[float] = self._prob_view[start:stop].tolist()  # type: ignore[assignment]
        return ids, probs, self._concentration_view[slot]

    def write(self, keys: NDArray[np.int64], rows: Rows, *, seeding: bool = False) -> None:
        """Stores each prediction under its keys; among equal keys the last row wins.

        Args:
            keys: int64 [n, lengths]; 0 is no key.
            rows: n predictions, oldest first.
            seeding: Use only the seeding half of each bucket.
        """
        flat = keys.ravel()
        index = _last_of_each(flat)
        if not len(index):
            return
        keys, index = flat[index], index // keys.shape[1]
        slots = self._place(keys, self.WAYS // 2 if seeding else self.WAYS)
        kept = slots >= 0
        slots, index = slots[kept], index[kept]
        self._keys[slots] = keys[kept]
        self._ids[slots] = rows.ids[index]
        self._probs[slots] = rows.probs[index]
        self._concentration[slots] = rows.concentration[index]

    def _place(self, keys: NDArray[np.int64], ways: int) -> NDArray[np.intp]:
        """Chooses and stamps slots for distinct keys, oldest first; -1: no place.

        A slot may be given to a key that is there already and to a newer one; assigned in order,
        the newer stays, as if the keys had come one by one.
        """
        base = self._bases(keys)
        bucket = base[:, None] + np.arange(self.WAYS)
        match = self._keys[bucket] == keys[:, None]
        known = match.any(axis=1)
        slots = np.full(len(keys), -1, np.intp)
        slots[known] = base[known] + match[known].argmax(axis=1)
        stamps = self._clock + 1 + np.arange(len(keys))
        self._clock += len(keys)
        self._stamps[slots[known]] = stamps[known]
        fresh = np.flatnonzero(~known)
        if len(fresh):
            slots[fresh] = self._oldest(bucket[fresh, :ways])
            placed = slots >= 0
            self._stamps[slots[placed]] = stamps[placed]
        return slots

    def _oldest(self, buckets: NDArray[np.intp]) -> NDArray[np.intp]:
        """For new keys, oldest first, the oldest slot of each one's bucket; several may share it.

        Args:
            buckets: intp [n, ways], the slots each key may take.
        """
        ways = buckets.shape[1]
        order = np.argsort(buckets[:, 0], kind="stable")
        home = buckets[order, 0]
        last = np.searchsorted(home, home, side="right") - 1
        # The newest key of a bucket takes its oldest slot, the next one the next; beyond `ways`
        # new keys the older ones have no place.
        rank = last - np.arange(len(home))
        chosen, rank = order[rank < ways], rank[rank < ways]
        oldest_first = np.argsort(self._stamps[buckets[chosen]], axis=1, kind="stable")
        slots = np.full(len(buckets), -1, np.intp)
        slots[chosen] = buckets[chosen, oldest_first[np.arange(len(chosen)), rank]]
        self.evictions += len(order) - len(chosen)
        self.evictions += int(np.count_nonzero(self._keys[slots[chosen]]))
        return slots

    def _bases(self, keys: NDArray[np.int64]) -> NDArray[np.intp]:
        if self._shift == 64:
            return np.zeros(len(keys), np.intp)
        mixed = keys.astype(np.uint64) * np.uint64(_MULTIPLIER)
        return (mixed >> np.uint64(self._shift)).astype(np.intp) * self.WAYS


class PersistentMemory:
    """What was predicted after each token of the vocabulary, averaged over the newest passes.

    Kept across requests, and so across images: an average keeps alternatives that overwriting
    would lose to the last image. It can change how fast text is made, never which text. The
    arrays are dense and fixed.

    Args:
        vocabulary: Number of token ids.
        top_k: Predictions per token.
        window: Passes an average looks back; 1 overwrites.

    Attributes:
        ids: int32 [V, K], by falling probability.
        probs: float16 [V, K].
        concentration: float16 [V].
        count: int32 [V], writes so far; 0 means nothing is known.
    """

    def __init__(self, vocabulary: int, top_k: int, window: int = 8) -> None:
        self.ids = np.full((vocabulary, top_k), NO_TOKEN, np.int32)
        self.probs = np.zeros((vocabulary, top_k), np.float16)
        self.concentration = np.zeros(vocabulary, np.float16)
        self.count = np.zeros(vocabulary, np.int32)
        self.window = window

    def __len__(self) -> int:
        """Tokens after which something is known."""
        return int(np.count_nonzero(self.count))

    def find(self, key: int) -> Entry | None:
        """The newest prediction under a one-token key (token id + 1), or None."""
        token = key - 1
        if not self.count[token]:
            return None
        return (
            self.ids[token].tolist(),
            self.probs[token].tolist(),
            float(self.concentration[token]),
        )

    def write(self, keys: NDArray[np.int64], rows: Rows) -> None:
        """Takes one prediction per one-token key into the averages.

        Args:
            keys: int64 [n], 0: skipped; of equal keys only the last counts.
            rows: n predictions.
        """
        index = _last_of_each(keys)
        tokens = keys[index] - 1
        # A counter at its limit stays there; wrapping to 0 would read as "unknown".
        count = np.minimum(self.count[tokens], np.iinfo(np.int32).max - 1) + 1
        share = (1.0 / np.minimum(count, self.window)).astype(np.float32)[:, None]
        ids, probs = _merge(
            (self.ids[tokens], self.probs[tokens] * (1 - share)),
            (rows.ids[index], rows.probs[index] * share),
        )
        self.ids[tokens], self.probs[tokens] = ids, probs
        self.concentration[tokens] = concentration(probs)
        self.count[tokens] = count

    def clear(self) -> None:
        """Forgets everything."""
        self.count[:] = 0


def _last_of_each(keys: NDArray[np.int64]) -> NDArray[np.intp]:
    """Ascending positions of the last occurrence of every distinct key other than 0."""
    _, from_back = np.unique(keys[::-1], return_index=True)
    index = np.sort(len(keys) - 1 - from_back)
    return index[keys[index] != 0]


Weighted = tuple[NDArray[np.int32], NDArray[np.float32]]
"""int32 [n, K] ids, distinct in a row but for `NO_TOKEN`, and float32 [n, K] shares of each."""


def _merge(old: Weighted, new: Weighted) -> Weighted:
    """Row-wise sum of two sparse distributions, cut to the K largest shares."""
    same = (old[0][:, :, None] == new[0][:, None, :]) & (new[1] > 0)[:, None, :]
    joined = old[1] + np.where(same, new[1][:, None, :], np.float32(0)).sum(axis=2)
    alone = np.where(same.any(axis=1), np.float32(0), new[1])
    ids = np.concatenate([old[0], new[0]], axis=1)
    shares = np.concatenate([joined, alone], axis=1)
    best = np.argsort(-shares, axis=1, kind="stable")[:, : old[0].shape[1]]
    shares = np.take_along_axis(shares, best, axis=1)
    ids = np.where(shares > 0, np.take_along_axis(ids, best, axis=1), np.int32(NO_TOKEN))
    return ids, shares
