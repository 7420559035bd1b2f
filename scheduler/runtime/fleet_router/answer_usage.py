"""Usage of answers: the tokens that a worker counted, read from what passes to the client.

A stream is passed on in whole events, so that an error event may follow one that breaks off. The event with the usage is
left out where the router alone asked for it. A worker that reports no usage counts one token for each event.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from domain.fleets import TokenUsage

_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
_EVENT: Final = re.compile(rb"\r?\n\r?\n")
#: A longer event is passed on in parts.
_MOST_EVENT_BYTES: Final = 4 * 1024 * 1024


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None

    @property
    def tokens(self) -> TokenUsage:
        details = self.prompt_tokens_details
        cached = (details.cached_tokens or 0) if details is not None else 0
        return TokenUsage(
            max(0, self.prompt_tokens), max(0, self.completion_tokens or 0), max(0, cached)
        )


class _Meta(msgspec.Struct):
    """Of SGLang's own ``/generate``."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def usage(self) -> _Usage:
        return _Usage(self.prompt_tokens, self.completion_tokens, _Details(self.cached_tokens))


class _UsageMembers(msgspec.Struct):
    usage: _Usage | None = None
    meta_info: _Meta | None = None
    choices: list[msgspec.Raw] | None = None


_decode: Final = msgspec.json.Decoder(_UsageMembers).decode


def usage_of(content: bytes) -> TokenUsage | None:
    """Return the usage in a whole answer; None without one."""
    try:
        found = _decode(content)
    except msgspec.DecodeError:
        return None
    if found.usage is None and found.meta_info is not None:
        return found.meta_info.usage.tokens
    return None if found.usage is None else found.usage.tokens


class StreamUsage:
    """Reads the events of one stream on their way."""

    def __init__(self, *, hides: bool) -> None:
        self._hides = hides
        self._rest = b""
        self._reported: TokenUsage | None = None
        self.events = 0

    def feed(self, piece: bytes) -> bytes:
        """Return what is passed on: whole events."""
        if self._rest:
            piece = self._rest + piece
        cut = max(piece.rfind(b"\n\n") + 2, piece.rfind(b"\r\n\r\n") + 4)
        if cut < 4:
            cut = len(piece) if len(piece) > _MOST_EVENT_BYTES else 0
        ready, self._rest = piece[:cut], piece[cut:]
        self.events += ready.count(b"\n\n") + ready.count(b"\r\n\r\n")
        return ready if _USAGE.search(ready) is None else self._without_usage(ready)

    def end(self) -> bytes:
        """Return what is left of a stream that is whole."""
        ready, self._rest = self._rest, b""
        return ready

    def usage(self, prompt_tokens: int) -> TokenUsage:
        """Return what was reported, else an estimate; ``prompt_tokens``: of the prompt."""
        return self._reported or TokenUsage(prompt_tokens, self.events)

    def _without_usage(self, ready: bytes) -> bytes:
        """Take the usage out of events; return those that are passed on."""
        kept, begin = [], 0
        for end in [*(found.end() for found in _EVENT.finditer(ready)), len(ready)]:
            event, begin = ready[begin:end], end
            if not (event and self._is_hidden(event)):
                kept.append(event)
        return b"".join(kept)

    def _is_hidden(self, event: bytes) -> bool:
        """Keep the usage of an event; return whether it has nothing else, and was not asked for."""
        if _USAGE.search(event) is None:
            return False
        try:
            found = _decode(event.strip().removeprefix(b"data:"))
        except msgspec.DecodeError:
            return False
        if found.usage is None:
            return False
        self._reported = found.usage.tokens
        return self._hides and found.choices == []
