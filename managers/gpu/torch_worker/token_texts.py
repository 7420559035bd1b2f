"""Texts of token ids: the byte tokenizer, a folder's tokenizer, and text that grows token by token.

Rules
1. A model without a tokenizer, whose vocabulary has room, has the bytes of UTF-8 as ids, and after them two marks that begin and end
   a message of a chat (ChatML). A text of a client never becomes a mark.
2. A growing text has whole characters only: tokens that may begin one wait for its rest, at most three of them.
3. A stop string ends the text before it. What may be its beginning is withheld until it is clear.

Imports no torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_BROKEN = "\ufffd"
#: Most tokens that one character is divided into: the bytes of UTF-8.
_LONGEST_CHARACTER = 4


class ByteTokenizer:
    """Bytes as ids 0 to 255, then the marks of chats."""

    START = 256
    END = 257
    #: A smaller vocabulary cannot name each byte.
    SIZE = 258
    stop_ids: Sequence[int] = (END,)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids. A mark has none and ends a character; ids above the marks are no characters."""
        parts = [bytearray()]
        for each in ids:
            if each in (self.START, self.END):
                parts.append(bytearray())
            else:
                parts[-1].append(min(each, 0xFF))
        return "".join(part.decode(errors="replace") for part in parts)

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Any = None) -> list[int]:
        """Return the ids of a chat, up to the beginning of the answer."""
        ids: list[int] = []
        for message in messages:
            role, text = str(message.get("role", "")), text_of(message.get("content"))
            ids += [self.START, *self.encode(f"{role}\n{text}"), self.END, *self.encode("\n")]
        return [*ids, self.START, *self.encode("assistant\n")]


class FolderTokenizer:
    """Tokenizer of transformers, read from the model's folder."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        ends = [tokenizer.eos_token_id]
        with contextlib.suppress(AttributeError, KeyError, TypeError):
            ends.append(tokenizer.get_vocab().get("<|im_end|>"))
        self.stop_ids: Sequence[int] = tuple({each for each in ends if isinstance(each, int)})

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, with the marks that the tokenizer adds."""
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without marks."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Any = None) -> list[int]:
        """Return the ids of a chat by the tokenizer's template. Raises ValueError where there is none."""
        texts = [{**each, "content": text_of(each.get("content"))} for each in messages]
        try:
            ids: list[int] = self._tokenizer.apply_chat_template(
                texts, tools=tools or None, add_generation_prompt=True, tokenize=True
            )
        except ImportError as error:  # the interpreter has no jinja2
            raise ValueError(f"its chat template cannot be used: {error}") from error
        except Exception as error:  # a template raises what it likes
            raise ValueError(f"its chat template refuses the messages: {error}") from error
        return ids


def text_of(content: Any) -> str:
    """Return the text of a message, of parts of type ``text`` as well. Raises ValueError for others."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" for part in content
    ):
        return "".join(str(part.get("text", "")) for part in content)
    raise ValueError("messages: the content is a text, or a list of parts of type text")


class GrowingText:
    """The text of one answer while its tokens are sampled."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str]) -> None:
        self._decode = decode
        self._stops = stops
        self._ids: list[int] = []
        #: Tokens before `_read` have been decoded; those from `_begin` on are decoded again, for their context.
        self._begin = self._read = 0
        self._withheld = ""
        #: A stop string was found; the text ends before it.
        self.stopped = False

    def push(self, token: int) -> str:
        """Return the text that a further token makes final."""
        if self.stopped:
            return ""
        self._ids.append(token)
        self._withheld += self._decoded(whole=False)
        return self._cut(end=False)

    def end(self) -> str:
        """Return the rest of the text."""
        if self.stopped:
            return ""
        self._withheld += self._decoded(whole=True)
        return self._cut(end=True)

    def _decoded(self, *, whole: bool) -> str:
        """Return the text of the tokens that were not decoded yet; none while a character is unfinished."""
        before = self._decode(self._ids[self._begin : self._read])
        end = len(self._ids)
        text = self._decode(self._ids[self._begin :])
        if text.endswith(_BROKEN) and not whole:
            # The last tokens may be the beginning of a character, those before them are not.
            end = max(self._read, end - _LONGEST_CHARACTER + 1)
            text = self._decode(self._ids[self._begin : end])
        if end > self._read:
            self._begin, self._read = self._read, end
        return text[len(before) :]

    def _cut(self, *, end: bool) -> str:
        """Return what can be no part of a stop string."""
        text = self._withheld
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped, self._withheld = True, ""
            return text[: min(found)]
        kept = 0 if end else max((_begun(text, stop) for stop in self._stops), default=0)
        self._withheld = text[len(text) - kept :]
        return text[: len(text) - kept]


def _begun(text: str, stop: str) -> int:
    """Return how many characters at the end of ``text`` begin ``stop``."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if stop.startswith(text[-size:])), 0)
