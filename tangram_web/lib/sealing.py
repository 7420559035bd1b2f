"""Encryption of stored secrets under Django's ``SECRET_KEY``. Pure but for the settings.

Fernet (AES-128-CBC and HMAC-SHA256) with a key that HKDF derives from ``SECRET_KEY`` and the purpose.
Secrets sealed under a key in ``SECRET_KEY_FALLBACKS`` can be opened; `reseal` encrypts them under the
current key.
"""

from __future__ import annotations

import base64
from typing import Final

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

PREFIX: Final = "sealed:1:"
_KEY_BYTES: Final = 32


class Unsealable(Exception):
    """None of the known keys opens the secret."""


def seal(text: str, purpose: str) -> str:
    """Return ``text`` encrypted; an empty text stays empty."""
    return PREFIX + _keys(purpose)[0].encrypt(text.encode()).decode() if text else ""


def unseal(sealed: str, purpose: str) -> str:
    """Return the decrypted text; a text that is not sealed is returned as it is. Raises Unsealable."""
    return _opened(sealed, purpose)[0] if sealed.startswith(PREFIX) else sealed


def reseal(sealed: str, purpose: str) -> str:
    """Return ``sealed`` under the current key; unchanged if it is already. Raises Unsealable."""
    if not sealed.startswith(PREFIX):
        return seal(sealed, purpose)
    text, current = _opened(sealed, purpose)
    return sealed if current else seal(text, purpose)


def _opened(sealed: str, purpose: str) -> tuple[str, bool]:
    """Return the text, and whether the current key opened it."""
    for number, key in enumerate(_keys(purpose)):
        try:
            return key.decrypt(sealed.removeprefix(PREFIX)).decode(), number == 0
        except InvalidToken:
            continue
    raise Unsealable(f"no known key opens this {purpose}")


def _keys(purpose: str) -> list[Fernet]:
    """Return the current key, then the former ones."""
    return [_derived(key, purpose) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)]


def _derived(secret_key: str | bytes, purpose: str) -> Fernet:
    key = secret_key.encode() if isinstance(secret_key, str) else secret_key
    # The secret key is long and random, so HKDF needs no salt.
    about = f"tangram.sealing.{purpose}".encode()
    return Fernet(base64.urlsafe_b64encode(HKDF(SHA256(), _KEY_BYTES, None, about).derive(key)))
