"""Weighing of predictions found under several keys for the same state.

Longer keys are more specific, concentrated predictions more reliable. Pure functions on plain
lists, since a lookup meets at most four entries of eight ids and is done for every tree node.
"""

from __future__ import annotations

from typing import NamedTuple

from recap.memory import NO_TOKEN, Entry

SPECIFICITY = (0.2, 1.0, 3.0, 9.0)
"""Weight of a prediction by kind: from the shared memory, which averages over other images, then
found under the request's own keys of one, two and three tokens."""

WEIGHT_FLOOR = 1e-4
"""Keeps the weights of entirely flat predictions from all being zero."""


class Ranked(NamedTuple):
    """Distinct candidates by falling fused probability, as parallel lists."""

    tokens: list[int]
    q: list[float]


def weights(rule: str, kinds: list[int], entries: list[Entry]) -> list[float]:
    """Weights of the hits at one lookup, summing to 1.

    Args:
        rule: ``entropy``: specificity times concentration times the top probability (the
            paper's entropy-confidence weighting); ``backoff``: the longest key alone;
            ``uniform``: all alike.
        kinds: Key length of each hit, 0 for the shared memory; most specific first; not empty.
        entries: The hits.
    """
    if len(entries) == 1:
        return [1.0]
    if rule == "backoff":
        return [1.0] + [0.0] * (len(entries) - 1)
    if rule == "uniform":
        return [1.0 / len(entries)] * len(entries)
    raw = [
        SPECIFICITY[kind] * entry[2] * entry[1][0] + WEIGHT_FLOOR
        for kind, entry in zip(kinds, entries, strict=True)
    ]
    total = sum(raw)
    return [weight / total for weight in raw]


def fuse(shares: list[float], entries: list[Entry], limit: int) -> Ranked:
    """The weighted mean q(x) of stored probabilities, best first.

    Args:
        shares: Weight of each hit, summing to 1; a hit of weight 0 adds no ids.
        entries: The hits.
        limit: Most candidates.
    """
    if len(entries) == 1 or shares[0] == 1.0:
        ids, probs, _ = entries[0]
        if NO_TOKEN not in ids:
            return Ranked(ids[:limit], probs[:limit])
    fused: dict[int, float] = {}
    for share, (ids, probs, _) in zip(shares, entries, strict=True):
        if share == 0.0:
            continue
        for token, prob in zip(ids, probs, strict=True):
            fused[token] = fused.get(token, 0.0) + share * prob
    fused.pop(NO_TOKEN, None)
    tokens = sorted(fused, key=fused.__getitem__, reverse=True)[:limit]
    return Ranked(tokens, [fused[token] for token in tokens])
