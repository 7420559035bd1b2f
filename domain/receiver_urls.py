"""URLs of receivers: where messages of an installation may be sent, webhooks and callbacks of rollouts alike.

A user chooses the URL, so it must not lead into the network of the installation: public hosts over HTTPS alone. The addresses that a
host name resolves to are checked again when a message is sent (`managers.common.api_calls.egress`).
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from domain.apis import Reach
from domain.errors import InvalidRequest

MOST_URL_CHARACTERS: Final = 500


def check_url(url: str, *, loopback: bool, pointer: str = "/url") -> None:
    """Raise InvalidRequest for a URL that messages may not be sent to.

    ``loopback`` allows this machine's own addresses, and plain HTTP to them. A host name is checked
    again by its addresses when a message is sent. ``pointer``: the member that has the URL.
    """
    if len(url) > MOST_URL_CHARACTERS or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidRequest(
            f"give at most {MOST_URL_CHARACTERS} plain characters", pointer=pointer
        )
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InvalidRequest("this is not a URL", pointer=pointer) from None
    if not host or parts.username or parts.password or parts.fragment:
        raise InvalidRequest(
            "give https://host/path, without a user or a fragment", pointer=pointer
        )
    own = reach_of(url, loopback=loopback) is Reach.LOOPBACK
    if parts.scheme != "https" and not (own and parts.scheme == "http"):
        raise InvalidRequest("give an address that begins with https://", pointer=pointer)
    try:
        public = own or ip_address(host).is_global
    except ValueError:
        public = own or host != "localhost"
    if not public:
        raise InvalidRequest("this address is not public", pointer=pointer)


def reach_of(url: str, *, loopback: bool) -> Reach:
    """Return the reach of addresses that the host of ``url`` may resolve to."""
    own = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
    return Reach.LOOPBACK if loopback and own else Reach.PUBLIC
