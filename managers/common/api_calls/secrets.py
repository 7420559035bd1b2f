"""Secrets of APIs, read on the node by name, sent in one header, masked everywhere else."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from domain.errors import NotFound

_ENVIRONMENT: Final = "TANGRAM_API_SECRET_"
_VISIBLE: Final = re.compile(r"[\x21-\x7e]{1,4096}")
_MASK: Final = "[secret]"


def variable_of(name: str) -> str:
    """Return the environment variable of a secret: ``key-1`` is TANGRAM_API_SECRET_KEY_1."""
    return _ENVIRONMENT + name.upper().replace("-", "_")


class ApiSecrets:
    """A node's secrets: files of one directory, and environment variables."""

    def __init__(self, directory: str = "", environment: Mapping[str, str] | None = None) -> None:
        self._directory = Path(directory) if directory else None
        self._environment = os.environ if environment is None else environment

    def find(self, name: str) -> str:
        """Return the value, read at each call so that it may be rotated. Raises NotFound."""
        value = self._environment.get(variable_of(name), "")
        if self._directory is not None:
            try:
                value = (self._directory / name).read_text().strip()
            except (OSError, UnicodeDecodeError):
                pass
        if not value:
            raise NotFound(f"this node has no secret {name!r}: set {variable_of(name)} or a file")
        if not _VISIBLE.fullmatch(value):
            raise NotFound(
                f"the secret {name!r} of this node is not one word of visible characters"
            )
        return value


class SecretMask:
    """Masks ``secret`` in a stream of bytes, also where chunks cut it in two."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that are safe to show; a possible beginning of the secret is held back."""
        if not self._secret:
            return data
        text = (self._held + data).replace(self._secret, _MASK.encode())
        longest = min(len(text), len(self._secret) - 1)
        held = next((n for n in range(longest, 0, -1) if self._secret.startswith(text[-n:])), 0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def rest(self) -> bytes:
        """Return the bytes held back, at the end of the stream."""
        held, self._held = self._held, b""
        return held


def masked(text: str, secret: str) -> str:
    """Return ``text`` with ``secret`` masked: an API may echo what it receives."""
    return text.replace(secret, _MASK) if secret else text
