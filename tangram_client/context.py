"""Address and token of a Tangram: given, from the environment, or stored by `tangram up`.

Order: what the caller gives · ``TANGRAM_URL`` and ``TANGRAM_TOKEN`` · ``client.json`` in
``TANGRAM_HOME`` (default ``~/.local/share/tangram``), which holds ``{"url": …, "token": …}``.
The token of the file goes only to the URL of the file. Several web processes of one Tangram are URLs with commas between.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class ClientContext:
    """One Tangram to talk to."""

    url: str
    token: str | None
    #: For people: where the URL comes from.
    source: str
    #: Further web processes of the same Tangram.
    others: tuple[str, ...] = ()

    @property
    def urls(self) -> tuple[str, ...]:
        """All web processes, in the order in which they are tried."""
        return (self.url, *self.others)


def find_context(
    url: str | Sequence[str] | None = None,
    token: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> ClientContext:
    """Return the Tangram to talk to. Raises ValueError for a URL, token or file that cannot be meant."""
    env = os.environ if environ is None else environ
    path = context_path(env)
    stored = _stored(path)
    chosen, source = _first(
        (url if url is None or isinstance(url, str) else ",".join(url), "given"),
        (env.get("TANGRAM_URL"), "TANGRAM_URL"),
        (stored.get("url"), str(path)),
        (DEFAULT_URL, "default"),
    )
    first, *others = dict.fromkeys(map(checked_url, _listed(chosen)))
    token = token or env.get("TANGRAM_TOKEN")
    if not token and {first, *others} <= set(
        map(checked_url, _listed(stored.get("url", DEFAULT_URL)))
    ):
        token = stored.get("token")
    return ClientContext(first, checked_token(token) if token else None, source, tuple(others))


def context_path(environ: Mapping[str, str]) -> Path:
    """Return where ``client.json`` is looked for."""
    home = environ.get("TANGRAM_HOME") or "~/.local/share/tangram"
    return Path(home).expanduser() / "client.json"


def _listed(urls: str) -> list[str]:
    """Return the URLs of a list with commas; what names none is left for `checked_url` to refuse."""
    return [each for each in map(str.strip, urls.split(",")) if each] or [urls]


def checked_url(url: str) -> str:
    """Return ``url`` without a trailing slash. Raises ValueError when it is not http(s)."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"{url!r} is not a URL: write it like {DEFAULT_URL}")
    return url.rstrip("/")


def checked_token(token: str) -> str:
    """Return ``token`` without the line break that it has in a file. Raises ValueError for no token."""
    plain = token.strip()
    if not (plain.isascii() and plain.isprintable()):
        raise ValueError("the token has characters in it that no token has: copy it once more")
    return plain


def is_loopback(url: str) -> bool:
    """Say whether ``url`` stays on this machine, where no proxy belongs in between."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _first(*candidates: tuple[str | None, str]) -> tuple[str, str]:
    return next((value, source) for value, source in candidates if value)


def _stored(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}): delete it or start Tangram") from None
    if not isinstance(content, dict):
        raise ValueError(f'{path} must hold {{"url": …, "token": …}}')
    return content
