"""Repeats in a request's own text: what followed the last time these tokens stood here.

A suffix automaton, grown token by token: the longest suffix that occurred before, whatever its
length, is known at every moment, and stepping along a draft costs a dictionary lookup. The inside
is lists and dictionaries: as flat arrays with a hash table of transitions, uncompiled, it took five
times as long per token. Nothing here knows about probabilities; the drafter does.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple


class Match(NamedTuple):
    """A place in the automaton: the state, and how many tokens of the text match there."""

    state: int
    length: int


NO_MATCH = Match(0, 0)


class Continuation(NamedTuple):
    """A token that has followed a match.

    Attributes:
        token: The id.
        length: How many tokens before it matched.
        choices: How many different tokens have followed that match.
    """

    token: int
    length: int
    choices: int


class SuffixIndex:
    """Suffix automaton of one request's text.

    States are numbers; per state the arrays hold the transitions, the suffix link, the longest
    length and the newest position at which the state's strings end.
    """

    RECENCY_HOPS = 32
    """Suffix links refreshed per token. Bounds the cost on degenerate repeats, where only the order
    of candidates at very short matches would be stale."""

    HOPS = 64
    """Suffix links followed by one `advance` or `continuations`. In ordinary text a match has a
    handful of them, in a token repeated n times it has n: a looping answer would make every step
    slower than the one before, for continuations that nobody needs."""

    WIDEST = 16
    """Continuations of one state that are compared by recency: those that appeared last. Common
    tokens have hundreds."""

    def __init__(self) -> None:
        self.length = 0
        """Tokens taken so far, separators included."""
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._longest = [0]
        self._newest = [-1]
        self._last = 0
        self._separated = False

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens; a negative one separates: no match reaches across it."""
        for token in tokens:
            self.length += 1
            if token >= 0:
                self._append(token)
                self._separated = False
            elif not self._separated:
                # Unique, so that nothing matches across it; one is enough for a whole run.
                self._append(-self.length)
                self._separated = True

    def match(self) -> Match:
        """The longest suffix of the text that also ends earlier in it."""
        state = self._link[self._last]
        return Match(state, self._longest[state]) if state > 0 else NO_MATCH

    def advance(self, match: Match, token: int) -> Match:
        """The longest match after one more token that is not in the text itself.

        Beyond `HOPS` shorter suffixes it is the token alone.
        """
        state, length = match
        for _ in range(self.HOPS):
            if token in self._next[state]:
                return Match(self._next[state][token], length + 1)
            state = self._link[state]
            if state < 0:
                return NO_MATCH
            length = self._longest[state]
        return Match(self._next[0][token], 1) if token in self._next[0] else NO_MATCH

    def continuations(self, match: Match, limit: int) -> list[Continuation]:
        """Up to `limit` distinct tokens that followed: longest match first, then the newest."""
        found: list[Continuation] = []
        seen: set[int] = set()
        state, length = match
        for _ in range(self.HOPS):
            if state <= 0:
                break
            following = self._next[state]
            for token in self._newest_first(following):
                if token < 0 or token in seen:
                    continue
                found.append(Continuation(token, length, len(following)))
                if len(found) == limit:
                    return found
                seen.add(token)
            state = self._link[state]
            length = self._longest[state]
        return found

    def _newest_first(self, following: dict[int, int]) -> Iterable[int]:
        if len(following) < 2:
            return following
        newest = self._newest
        pool = islice(reversed(following), self.WIDEST)
        return sorted(pool, key=lambda token: newest[following[token]], reverse=True)

    def _append(self, token: int) -> None:
        current = self._state(self._longest[self._last] + 1, {}, 0)
        state = self._last
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = current
            state = self._link[state]
        if state >= 0:
            self._link[current] = self._exact(state, token)
        self._last = current
        self._touch(current)

    def _exact(self, state: int, token: int) -> int:
        """The state of exactly the strings of `state` followed by `token`; split off if needed."""
        target = self._next[state][token]
        if self._longest[target] == self._longest[state] + 1:
            return target
        clone = self._state(self._longest[state] + 1, dict(self._next[target]), self._link[target])
        self._newest[clone] = self._newest[target]
        while state >= 0 and self._next[state].get(token) == target:
            self._next[state][token] = clone
            state = self._link[state]
        self._link[target] = clone
        return clone

    def _state(self, longest: int, following: dict[int, int], link: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._longest.append(longest)
        self._newest.append(self.length)
        return len(self._next) - 1

    def _touch(self, state: int) -> None:
        for _ in range(self.RECENCY_HOPS):
            if state <= 0:
                return
            self._newest[state] = self.length
            state = self._link[state]
