"""Token ids to text, step by step.

A stream of token ids becomes a stream of text deltas that never hold half a character. Knows no
tokenizer: the caller hands in a decode function. Numpy-free and cheap: the decoder loop calls it
once per request and step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What decoders write for bytes that are no character, or not one yet."""

_PENDING_CHARACTERS = 3
"""A UTF-8 character lacks its last byte with at most 3 bytes there; decoders write one replacement
character for them (byte-level BPE) or one per byte (byte fallback)."""

_MOST_TOKENS = 32
"""A longer window is cut. Above the tokens of a step, so that a step of byte-fallback tokens that
ends inside a character is seen whole."""

_CONTEXT_TOKENS = 4
"""Tokens that a cut leaves: a character spans at most 4 tokens, so that one of the next few places
is a character border."""

_CUT_ATTEMPTS = 8


class IncrementalDetokenizer:
    """Turns the tokens of one sequence into text deltas.

    The deltas joined, `flush` included, are `decode` of all tokens. A delta holds no replacement
    character that later tokens could turn into a real one: replacement characters at the end are
    held back until other text follows, or they are too many to be one unfinished character.

    Only the last few tokens are decoded at each push, and never from the middle of a character or
    without a visible token before: decoders drop the leading space of whatever they see first.

    One kind of decoder defeats any streaming: byte fallback (SentencePiece) rewrites finished
    characters when the text ends inside a character that follows them directly. Text already sent
    stands then, and the unfinished character ends as replacement characters.

    Args:
        decode: Token ids to text; skips special tokens or not, but must not tidy up spaces.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []  # the last tokens; cut at a character border
        self._sent = ""  # what of the window's text has been handed out

    def push(self, tokens: Iterable[int]) -> str:
        """Takes the next tokens and returns the text that they complete, possibly none."""
        self._window.extend(tokens)
        text = self._decode(self._window)
        delta = ""
        # Where text does not go on from what was sent, a byte-fallback decoder is inside a
        # character; the next tokens mend it.
        if text.startswith(self._sent):
            full = len(self._window) > _MOST_TOKENS
            settled = _without_pending(text, _PENDING_CHARACTERS if full else len(text))
            delta = settled[len(self._sent) :]
            self._sent += delta
            if full:
                self._cut(text)
        return delta

    def flush(self) -> str:
        """Ends the stream: returns what is held back, as the decoder writes it."""
        text = self._decode(self._window)
        delta = text[len(self._sent) :]
        self._window, self._sent = [], ""
        return delta

    def _cut(self, text: str) -> None:
        """Drops the oldest tokens of a window whose text is `text`, where that changes nothing."""
        last = len(self._window) - _CONTEXT_TOKENS
        for cut in range(last, max(0, last - _CUT_ATTEMPTS), -1):
            head, tail = self._decode(self._window[:cut]), self._decode(self._window[cut:])
            held = len(text) - len(self._sent)
            # Inside a character both sides show replacement characters for it and together are
            # longer than the whole. The tail must show something, so that the space which a
            # decoder drops at the start is not the next token's.
            gap = text[len(head) : len(text) - len(tail)]
            joins = text.startswith(head) and text.endswith(tail) and not gap.strip()
            if tail and joins and len(head) + len(tail) <= len(text) and held <= len(tail):
                self._window = self._window[cut:]
                self._sent = tail[: len(tail) - held]
                return
        # A window full of skipped special tokens has no place to cut. Doubled, since a token for a
        # space alone shows nothing when it comes first.
        self._window = [token for token in self._window if self._decode([token, token])]


def _without_pending(text: str, most: int) -> str:
    """`text` without the replacement characters at its end, at most `most` of them."""
    pending = len(text) - len(text.rstrip(REPLACEMENT))
    return text[: len(text) - min(pending, most)]
