"""Signatures of the Standard Webhooks specification, version 1. Pure.

The signed text is ``{id}.{timestamp}.{body}``; the algorithm is HMAC-SHA256; the key is the base64
text after ``whsec_``. During a rotation the header has one signature for each secret, separated by
spaces, so that a receiver can use either secret.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

PREFIX: Final = "whsec_"
#: The specification requires 24 to 64.
SECRET_BYTES: Final = 32


def new_secret() -> str:
    """Return a new secret."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return ``v1,<base64>``; ``timestamp`` is in seconds since the epoch."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, sha256).digest()).decode()


def signed_headers(
    known: Iterable[str], message_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """Return the headers of one attempt, with a signature for each of the ``known`` secrets."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(
            signature(secret, message_id, timestamp, body) for secret in known
        ),
    }
