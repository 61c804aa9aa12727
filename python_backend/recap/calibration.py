"""How often proposals of a kind are accepted, learnt while decoding.

The search needs P(child accepted | parent accepted). Stored probabilities are not that: across
images and prefixes they are over-confident. So every proposal falls in a bin, verified proposals
are counted per bin, and the estimate is the mean of a Beta posterior whose prior is a
simple guess. A new deployment starts from the priors and leaves them behind as counts grow.

Three tables: one for proposals of the memories (by kind of memory, fused probability and rank),
one for the suffix index (by match length, order, choices and depth), and one for tokens that both
propose (by the coarse bins of both), whose prior is the better of the two estimates. Nothing here
knows tokens or trees.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

MEMORY_KINDS = 4
"""Persistent one-token memory, then contextual keys of one, two and three tokens."""

CONFIDENCE_EDGES = (0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.995)
CONFIDENCE_BINS = len(CONFIDENCE_EDGES) + 1
RANKS = 8
DEPTHS = 4
SUFFIX_LENGTHS = 7
SUFFIX_ORDERS = 3
SUFFIX_CHOICES = 2

MEMORY_BINS = MEMORY_KINDS * CONFIDENCE_BINS * RANKS
SUFFIX_BINS = SUFFIX_LENGTHS * SUFFIX_ORDERS * SUFFIX_CHOICES * DEPTHS
JOINT_BINS = MEMORY_KINDS * CONFIDENCE_BINS * SUFFIX_LENGTHS * SUFFIX_ORDERS

HIT_MASS = (0.70, 0.67, 0.59, 0.49, 0.38, 0.39, 0.36, 0.33, 0.30, 0.27)
"""Share of stored probability that turns out true, by depth; the last holds beyond. The score's
factor when nothing is learnt."""

FIRST_TRUST = (0.6, 0.7, 0.8, 0.9)
"""Prior share of a fused probability that turns out true at depth 1, by kind of memory."""

DEEPER_TRUST = (0.6, 0.6, 0.7, 0.8)
"""The same below depth 1, where the key itself holds drafts."""

SUFFIX_PRIOR = (0.15, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Prior acceptance of the first continuation of a match, by bucket of its length."""

RANK_PRIOR = tuple(0.5 / (rank + 1) ** 1.5 for rank in range(RANKS))
"""Prior acceptance by rank alone. Matters where a stored distribution is sharp but stems from
another image: its lower ranks have no probability left, and would never be tried."""

_DEPTH_BUCKET = (0, 0, 1, 2, 2)  # depths 1 | 2 | 3, 4 | deeper
_LENGTH_BUCKET = (0, 0, 1, 2, 3, 4, 4, 4, 5, 5, 5, 5)  # 1 | 2 | 3 | 4 | 5-7 | 8-11 | longer


def depth_bucket(depth: int) -> int:
    """Bucket of a node's depth (1 and up), 0..3."""
    return _DEPTH_BUCKET[depth] if depth < len(_DEPTH_BUCKET) else DEPTHS - 1


def length_bucket(length: int) -> int:
    """Bucket of a suffix match's length (1 and up), 0..6."""
    return _LENGTH_BUCKET[length] if length < len(_LENGTH_BUCKET) else SUFFIX_LENGTHS - 1


class BetaCounts:
    """Accepted and proposed counts per bin, with a prior worth `strength` proposals.

    Counts halve once a bin holds `MEMORY` proposals, so that the estimate follows a workload that
    changes.
    """

    MEMORY = 4096.0

    def __init__(self, bins: int, strength: float) -> None:
        self.proposed = [0.0] * bins
        self.accepted = [0.0] * bins
        self.strength = strength

    def rate(self, index: int, prior: float) -> float:
        """Posterior mean of the acceptance rate; the prior itself without counts."""
        return (self.accepted[index] + self.strength * prior) / (
            self.proposed[index] + self.strength
        )

    def add(self, index: int, accepted: bool) -> None:
        """Counts one verified proposal."""
        self.proposed[index] += 1.0
        self.accepted[index] += accepted
        if self.proposed[index] >= self.MEMORY:
            self.proposed[index] /= 2.0
            self.accepted[index] /= 2.0


class Estimate(NamedTuple):
    """An acceptance probability and the bin that will hear whether it came true."""

    rate: float
    bin: int


class Estimates(NamedTuple):
    """The same for several proposals, as parallel lists."""

    rates: list[float]
    bins: list[int]


class Calibration:
    """Acceptance estimates of one drafter, shared by its requests: they are about proposals.

    A bin is ``memory part * (SUFFIX_BINS + 1) + suffix part``, each part 0 where that side did not
    propose the token; it fits 16 bits. 0 is no bin.

    Args:
        learning: False: the priors alone, with `HIT_MASS` for the memories, and `observe` does
            nothing.
        strength: Worth of a prior, in proposals; twice that for tokens both sides propose.
    """

    def __init__(self, learning: bool = True, strength: float = 8.0) -> None:
        self.learning = learning
        self.memory_counts = BetaCounts(MEMORY_BINS, strength)
        self.suffix_counts = BetaCounts(SUFFIX_BINS, strength)
        self.joint_counts = BetaCounts(JOINT_BINS, 2.0 * strength)

    def memory(self, kind: int, depth: int, ranked: list[float]) -> Estimates:
        """Estimates for the fused candidates of one lookup.

        Args:
            kind: 0: persistent; 1, 2, 3: length of the longest contextual key that hit.
            depth: Depth of the children.
            ranked: Fused probabilities q, falling.
        """
        if not self.learning:
            factor = HIT_MASS[min(depth, len(HIT_MASS)) - 1]
            return Estimates([factor * q for q in ranked], [0] * len(ranked))
        counts = self.memory_counts
        proposed, accepted, strength = counts.proposed, counts.accepted, counts.strength
        trust = (FIRST_TRUST if depth == 1 else DEEPER_TRUST)[kind]
        believed, doubted = strength * trust, strength * (1.0 - trust)
        base = kind * CONFIDENCE_BINS
        rates, bins = [], []
        for order, q in enumerate(ranked):
            rank = order if order < RANKS else RANKS - 1
            index = (base + bisect_right(CONFIDENCE_EDGES, q)) * RANKS + rank
            prior = believed * q + doubted * RANK_PRIOR[rank]
            rates.append((accepted[index] + prior) / (proposed[index] + strength))
            bins.append((index + 1) * (SUFFIX_BINS + 1))
        return Estimates(rates, bins)

    def suffix(self, length: int, order: int, choices: int, depth: int) -> Estimate:
        """Estimate for a continuation of a repeat.

        Args:
            length: Tokens that match before it.
            order: 0 for the best continuation at this node, then 1, 2.
            choices: Different tokens that followed the match.
            depth: Depth of the child.
        """
        bucket = length_bucket(length)
        several = choices > 1
        prior = SUFFIX_PRIOR[bucket] / (1 + order) / (1.5 if several else 1.0)
        if not self.learning:
            return Estimate(prior, 0)
        index = (bucket * SUFFIX_ORDERS + min(order, SUFFIX_ORDERS - 1)) * SUFFIX_CHOICES + several
        index = index * DEPTHS + depth_bucket(depth)
        return Estimate(self.suffix_counts.rate(index, prior), index + 1)

    def both(self, memory: Estimate, suffix: Estimate) -> Estimate:
        """Estimate for a token that the memories and the suffix index both propose."""
        better = max(memory.rate, suffix.rate)
        if not self.learning:
            return Estimate(better, 0)
        code = memory.bin + suffix.bin
        return Estimate(self.joint_counts.rate(_joint(code), better), code)

    def observe(self, code: int, accepted: bool) -> None:
        """Counts a proposal whose parent was accepted.

        Args:
            code: The estimate's bin.
            accepted: Whether the proposal was.
        """
        if not self.learning or code == 0:
            return
        memory, suffix = divmod(code, SUFFIX_BINS + 1)
        if memory:
            self.memory_counts.add(memory - 1, accepted)
        if suffix:
            self.suffix_counts.add(suffix - 1, accepted)
        if memory and suffix:
            self.joint_counts.add(_joint(code), accepted)


def _joint(code: int) -> int:
    """Joint bin of a code with both parts: the memory's kind and confidence, length and order."""
    memory, suffix = divmod(code, SUFFIX_BINS + 1)
    coarse_memory = (memory - 1) // RANKS
    coarse_suffix = (suffix - 1) // (SUFFIX_CHOICES * DEPTHS)
    return coarse_memory * SUFFIX_LENGTHS * SUFFIX_ORDERS + coarse_suffix
