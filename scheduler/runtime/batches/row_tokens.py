"""Tokens of the ranks of a batch: what a rank of a trainer shows to pull its rows, and nothing else.

Rules
1. A token names a batch, its project, a rank and the end of its life, and is authenticated by the secret of all web processes and
   rollout workers (`scheduler.runtime.redis.facade_records`). Neither Redis nor the manifest that is stored has it.
2. It pulls the rows that the batch gives to that rank; it has no scope of the API.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from binascii import Error as NotBase64
from typing import Final, NamedTuple

import msgspec

PREFIX: Final = "tgb_"


class RankToken(NamedTuple):
    """What a token pulls."""

    batch: str
    project: str
    rank: int
    #: Seconds since the epoch.
    expires_at: float


_decoder: Final = msgspec.json.Decoder(tuple[str, str, int, float])


class RowTokens:
    """Makes and checks tokens."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def token(self, batch: str, project: str, rank: int, expires_at: float) -> str:
        """Return the token of a rank."""
        members = msgspec.json.encode((batch, project, rank, expires_at))
        text = base64.urlsafe_b64encode(members).rstrip(b"=")
        return f"{PREFIX}{text.decode()}.{self._mac(text)}"

    def read(self, token: str) -> RankToken | None:
        """Return what a token pulls, also after its life; None for any other text."""
        text, dot, mac = token.removeprefix(PREFIX).partition(".")
        if not dot or not token.startswith(PREFIX) or not (text + mac).isascii():
            return None
        if not hmac.compare_digest(mac.encode(), self._mac(text.encode()).encode()):
            return None
        try:
            return RankToken(
                *_decoder.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            )
        except (msgspec.DecodeError, NotBase64):  # of another version
            return None

    def _mac(self, text: bytes) -> str:
        return hmac.new(self._secret, b"rows " + text, hashlib.sha256).hexdigest()[:40]
