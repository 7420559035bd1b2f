"""Addresses of backends of language models: checked, and in the form in which they are stored.

An address has no ``/v1`` and no slash at its end, whatever the client stated. What passes, every HTTP client can parse.
"""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

from domain.errors import InvalidRequest

_HOST: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_.])?")
_DOTTED: Final = re.compile(r"[0-9.]+")
_PATH: Final = re.compile(r"[!-~]*")
#: As `contract.rollout_requests.BackendName`.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,199}")

#: Networks of the servers that a project adds to pools of its own.
_OWN_NETWORKS: Final = tuple(
    map(ip_network, ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128"))
)


def base_address(stated: str) -> str:
    """Return an address without ``/v1`` and without a slash at its end, as backends are stored. Raises InvalidRequest.

    What it returns, every HTTP client can parse.
    """
    try:
        parts = urlsplit(stated.strip())
        sound = parts.port != 0 and _is_sound(parts)
    except ValueError:
        sound = False
    if not sound:
        raise InvalidRequest(
            f"the address {stated[:200]!r} is no http:// address: give http://HOST:PORT",
            pointer="/address",
            code="bad_address",
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidRequest(
            "an address of a backend has no user, query or fragment", pointer="/address"
        )
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _is_sound(parts: SplitResult) -> bool:
    """Return whether scheme, host and path can be used. Raises ValueError for a bad host."""
    host = parts.hostname or ""
    if "[" in parts.netloc or _DOTTED.fullmatch(host):
        ip_address(host)
        named = "%" not in host
    else:
        named = _HOST.fullmatch(host) is not None
    return parts.scheme in {"http", "https"} and named and _PATH.fullmatch(parts.path) is not None


def name_of(address: str) -> str:
    """Return a name for a backend without one: host and port of its address. Raises InvalidRequest."""
    name = made_name(urlsplit(address).netloc)
    if not _NAME.fullmatch(name):
        raise InvalidRequest("give the backend a name", pointer="/name")
    return name


def is_made_name(name: str, address: str) -> bool:
    """Return whether the name of a backend is made of its address, as `name_of` makes it."""
    host = urlsplit(address).netloc
    return name in {host, made_name(host)}


def made_name(host: str) -> str:
    """Return host and port of an address as a name: without brackets, and with a digit first."""
    name = host.replace("[", "").replace("]", "")
    return f"0{name}" if name.startswith(":") else name  # as ::1


def check_own_address(address: str) -> None:
    """Raise InvalidRequest for a base address that a project may not have its rollout workers ask.

    They are beside Tangram's own parts: of what they reach, metadata services of clouds trust every caller.
    """
    host = urlsplit(address).hostname or ""
    try:
        found = ip_address(host)
    except ValueError:
        permitted = host == "localhost"
    else:
        permitted = any(found in network for network in _OWN_NETWORKS)
    if not permitted:
        raise InvalidRequest(
            "a pool of a project's own has addresses by number in 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 and on"
            " the loopback; others are added with a token that is not bound to a project",
            pointer="/address",
        )
