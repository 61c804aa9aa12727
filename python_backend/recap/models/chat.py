"""The tokenizer side of a checkpoint: chat template, ids to text, text to ids.

Client text is text: what a client writes is tokenized with every added token disabled, so that a
typed ``<|im_end|>`` is a string of ordinary characters. For all other text the ids are what
transformers gives for the whole rendered template, merges across the border between template and
client text included. Needs neither weights nor an image processor; the decoder process uses it
for `decode` alone.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
import tokenizers
import transformers

from recap.errors import InvalidRequestError, SettingsError
from recap.models.base import read_json
from recap.models.messages import Turn


class ChatTokenizer:
    """Tokenizer and chat template of one checkpoint; made by `load_tokenizer`. Thread-safe."""

    def __init__(self, tokenizer: Any, template: str) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._backend: tokenizers.Tokenizer = tokenizer.backend_tokenizer
        added = tokenizer.added_tokens_decoder
        self._added_ids = {token.content: index for index, token in added.items()}
        self._added_pattern = _pattern(added.values())
        # A copy, because `encode_special_tokens` of the original is state that transformers' own
        # calls set and reset, and because it leaves added tokens that are not special active.
        self._plain = _without_added_tokens(self._backend)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids: special tokens skipped, nothing tidied up."""
        return self._backend.decode(ids, skip_special_tokens=True)

    def token(self, index: int) -> str:
        """The string of an added token."""
        return self._tokenizer.convert_ids_to_tokens(index)

    def encode_text(self, text: str) -> list[int]:
        """Ids of client text; no added token is ever among them."""
        return self._plain.encode(text, add_special_tokens=False).ids

    def encode_chat(self, turns: list[Turn]) -> list[int]:
        """Ids of a chat with the template applied and the assistant's turn opened.

        Args:
            turns: Roles and contents; an image part is left to the template, which writes one
                placeholder for it.

        Raises:
            InvalidRequestError: The template refuses the chat.
        """
        hidden = _HiddenTexts(turns)
        rendered = self._render(hidden.turns)
        ids: list[int] = []
        for piece, added_id in self._split(rendered):
            if added_id is None:
                ids += self.encode_text(hidden.restore(piece))
            else:
                ids.append(added_id)
        return ids

    def encode_template_text(self, text: str) -> list[int]:
        """Ids of text of ours, in which added tokens count as such."""
        return [
            index
            for piece, added_id in self._split(text)
            for index in (self.encode_text(piece) if added_id is None else (added_id,))
        ]

    def check(self) -> None:
        """Holds the split tokenization against the library's own, once, at start-up.

        Raises:
            SettingsError: Text tokenizes differently here, or can spell an added token.
        """
        added = list(self._added_ids.items())
        leaks = [content for content, index in added if index in self.encode_text(content)]
        content = [{"type": "image"}, {"type": "text", "text": " What is\n\nthis?"}]
        turns: list[Turn] = [{"role": "user", "content": content}]
        try:
            rendered = self._render(turns)
        except InvalidRequestError as error:
            raise SettingsError(f"model.checkpoint: unusable chat template: {error.rule}") from None
        expected = self._tokenizer(rendered, add_special_tokens=False)["input_ids"]
        if leaks or self.encode_chat(turns) != expected:
            raise SettingsError(
                "model.checkpoint: the tokenizer cannot be used safely: "
                + (f"text spells the tokens {leaks}" if leaks else "pieces tokenize differently")
            )

    def _render(self, turns: list[Turn]) -> str:
        try:
            return self._tokenizer.apply_chat_template(
                turns, chat_template=self._template, tokenize=False, add_generation_prompt=True
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise InvalidRequestError(
                "messages", f"refused by the model's chat template: {error}"
            ) from None

    def _split(self, rendered: str) -> Iterator[tuple[str, int | None]]:
        """Pieces of a rendered template; each with its id if it is an added token, else None."""
        start = 0
        for match in self._added_pattern.finditer(rendered):
            if match.start() > start:
                yield rendered[start : match.start()], None
            assert match.lastindex is not None, "every alternative is a group"
            yield match[0], self._added_ids[match[match.lastindex]]
            start = match.end()
        if start < len(rendered):
            yield rendered[start:], None


class _HiddenTexts:
    """A chat whose texts are replaced by marks that nobody can type.

    The space around a text stays, since templates trim. What a template asks of a text beyond that
    (does it contain ``</think>``?) is answered as if the text were one plain word.
    """

    def __init__(self, turns: list[Turn]) -> None:
        # 128 random bits per call; letters and digits survive any filter of a template.
        self._mark = f"x{secrets.token_hex(16)}x"
        self._pattern = re.compile(rf"{self._mark}(\d+)x")
        self._texts: list[str] = []
        self.turns = [{**turn, "content": self._content(turn["content"])} for turn in turns]

    def restore(self, piece: str) -> str:
        return self._pattern.sub(lambda match: self._texts[int(match[1])], piece)

    def _content(self, content: str | list[dict[str, str]]) -> str | list[dict[str, str]]:
        if isinstance(content, str):
            return self._hide(content)
        return [
            {**part, "text": self._hide(part["text"])} if "text" in part else part
            for part in content
        ]

    def _hide(self, text: str) -> str:
        core = text.strip()
        if not core:
            return text
        start = text.index(core)
        self._texts.append(core)
        mark = f"{self._mark}{len(self._texts) - 1}x"
        return f"{text[:start]}{mark}{text[start + len(core) :]}"


def load_tokenizer(checkpoint: Path) -> ChatTokenizer:
    """Loads the tokenizer side of a checkpoint directory.

    Raises:
        SettingsError: A file is missing or of a kind that cannot be used.
    """
    read_json(checkpoint / "config.json")  # transformers' own complaint is a page long
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    except Exception as error:  # what the library raises differs by version and file
        raise SettingsError(f"model.checkpoint: no usable tokenizer: {error}") from error
    if not getattr(tokenizer, "is_fast", False):
        raise SettingsError("model.checkpoint: needs a fast tokenizer (tokenizer.json)")
    chat = ChatTokenizer(tokenizer, _template(checkpoint, tokenizer))
    chat.check()
    return chat


def _template(checkpoint: Path, tokenizer: Any) -> str:
    """The chat template; older checkpoints of image models keep it apart from the tokenizer's."""
    if (checkpoint / "chat_template.jinja").is_file():
        return (checkpoint / "chat_template.jinja").read_text("utf-8")
    if (checkpoint / "chat_template.json").is_file():
        return read_json(checkpoint / "chat_template.json")["chat_template"]
    if not isinstance(tokenizer.chat_template, str):
        raise SettingsError("model.checkpoint: has no chat template (chat_template.jinja)")
    return tokenizer.chat_template


def _pattern(added: Iterable[Any]) -> re.Pattern[str]:
    """Matches added tokens as the library does: leftmost, longest, with the space they swallow."""
    by_length = sorted(added, key=lambda token: len(token.content), reverse=True)
    alternatives = "|".join(
        (r"\s*" if token.lstrip else "")
        + f"({re.escape(token.content)})"
        + (r"\s*" if token.rstrip else "")
        for token in by_length
    )
    return re.compile(alternatives or r"(?!)")


def _without_added_tokens(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    spec = json.loads(backend.to_str())
    spec.update(added_tokens=[], truncation=None, padding=None, post_processor=None)
    return tokenizers.Tokenizer.from_str(json.dumps(spec))
