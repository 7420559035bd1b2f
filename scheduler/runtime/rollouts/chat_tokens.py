"""Tokens of the agents of rollouts: what an environment gets to call its rollout's model, and nothing else.

    tokens = ChatTokens(await FacadeRecords(client, keys, SECRET_OF).secret())
    tokens.token("nightly", "rol_…-run")      # for the environment
    tokens.holder(shown)                      # in a web process

Rules
1. A token names a project and a trajectory, and is authenticated by the secret of all web processes and workers. Neither Redis nor
   a log has it: a handler puts it into a file of the environment, and no member of an action names it.
2. It serves the chat completions of that trajectory alone, and while RUN of its rollout lasts: the worker answers none after
   that. What runs in an environment may read it; it has no scope of the API.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final, NamedTuple

import msgspec

PREFIX: Final = "tgc_"
#: Name under which the secret is asked for (`scheduler.runtime.redis.facade_records`).
SECRET_OF: Final = "rollouts"


class ChatHolder(NamedTuple):
    """The trajectory that a token is of."""

    project: str
    trajectory: str


_holders: Final = msgspec.json.Decoder(tuple[str, str])


class ChatTokens:
    """Makes and checks tokens."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def token(self, project: str, trajectory: str) -> str:
        """Return the token of a trajectory."""
        text = base64.urlsafe_b64encode(msgspec.json.encode((project, trajectory))).rstrip(b"=")
        return f"{PREFIX}{text.decode()}.{self._mac(text)}"

    def holder(self, token: str) -> ChatHolder | None:
        """Return the trajectory of a token; None for any other text."""
        text, dot, mac = token.removeprefix(PREFIX).partition(".")
        if not dot or not token.startswith(PREFIX):
            return None
        if not hmac.compare_digest(mac.encode(), self._mac(text.encode()).encode()):
            return None
        return ChatHolder(*_holders.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))))

    def _mac(self, text: bytes) -> str:
        return hmac.new(self._secret, b"chat " + text, hashlib.sha256).hexdigest()[:40]


def is_chat_token(token: str) -> bool:
    """Whether a text has the form of such a token."""
    return token.startswith(PREFIX)
