"""Joining of a node by a token, before the settings of its worker are read.

Rules
1. With ``TANGRAM_JOIN`` (the https address of a web process) a node worker needs no address of Redis: its first start exchanges a join
   token (``TANGRAM_JOIN_TOKEN``, or the content of ``TANGRAM_JOIN_TOKEN_FILE``) for one, with a user of its own.
2. The machine makes the password and sends its hash. It is on disk before it is sent, so a start that was interrupted, or missed the
   answer, repeats the same request, and gets the same answer.
3. What it got is in ``joined.json`` in the node's folder, which its owner alone can read. Later starts need neither token nor server.
4. Another token than the one that it joined by makes it join again, as after a revocation.
5. A server that does not answer is asked again; a refusal ends the start with the cure.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import socket
from collections.abc import Callable, MutableMapping
from pathlib import Path
from time import sleep
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from managers.common.start_log import sync_directory

log = logging.getLogger(__name__)

FILE: Final = "joined.json"
CA_FILE: Final = "redis-ca.pem"
#: Before the first repetition, and the longest pause.
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
#: Answers after which the same request may succeed.
_RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})


class CannotJoin(Exception):
    """The node cannot join; the text has the cure."""


def join(
    environment: MutableMapping[str, str],
    *,
    transport: Any = None,
    pause: Callable[[float], None] = sleep,
) -> None:
    """Set the settings of a node that joins, or has joined. Nothing without ``TANGRAM_JOIN``. Raises CannotJoin, OSError.

    ``transport``: of httpx.
    """
    server = environment.get("TANGRAM_JOIN", "").rstrip("/")
    if not server:
        return
    if environment.get("TANGRAM_REDIS_URL"):
        raise CannotJoin("TANGRAM_JOIN and TANGRAM_REDIS_URL are both set: remove one of them")
    node = environment.get("TANGRAM_NODE") or socket.gethostname()
    if Path(node).name != node:
        raise CannotJoin(f"TANGRAM_NODE={node!r} cannot be the name of a node")
    home = Path(environment.get("TANGRAM_HOME") or "~/.local/share/tangram").expanduser()
    folder = home / "nodes" / node
    token = _token(environment)
    if not token and not (folder / FILE).exists():
        raise CannotJoin(
            f"node {node} has not joined yet: set TANGRAM_JOIN_TOKEN to a token of an admin (tangram node token create)"
        )
    joined = _joined(folder, token)
    if joined.get("admission") is None:
        joined["admission"] = _exchange(
            server, node, token, joined["password"], environment.get("TANGRAM_NODE_POOL", ""),
            transport=transport, pause=pause,
        )  # fmt: skip
        _store(folder, CA_FILE, joined["admission"]["redis"]["ca"])
        _store(folder, FILE, json.dumps(joined))
        log.warning("node %s has joined %s", node, server)
    environment.update(_settings(joined, folder))


def _joined(folder: Path, token: str) -> dict[str, Any]:
    """Return what is known of this node: with ``admission`` if it has joined by this token."""
    digest, path = hashlib.sha256(token.encode()).hexdigest(), folder / FILE
    if path.exists():
        known: dict[str, Any] = json.loads(path.read_text())
        if not token or known["token_sha256"] == digest:
            return known
    fresh = {"token_sha256": digest, "password": secrets.token_urlsafe(32), "admission": None}
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _store(folder, FILE, json.dumps(fresh))
    return fresh


def _exchange(
    server: str, node: str, token: str, password: str, pool: str, *, transport: Any,
    pause: Callable[[float], None],
) -> dict[str, Any]:  # fmt: skip
    """Return the answer of the server, once there is one. Raises CannotJoin."""
    import httpx  # takes a tenth of a second, of every start but the first

    parts = urlsplit(server)
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        raise CannotJoin(
            "TANGRAM_JOIN must begin with https://: a token must not cross a network in clear"
        )
    if not token:
        raise CannotJoin("the first start did not end: set TANGRAM_JOIN_TOKEN again")
    request = {"password_sha256": hashlib.sha256(password.encode()).hexdigest(), "pool": pool}
    url = f"{server}/api/v1/nodes/{quote(node, safe='')}/join"
    seconds = FIRST_PAUSE_SECONDS
    with httpx.Client(transport=transport, timeout=30.0) as client:
        while True:
            try:
                answer = client.post(
                    url, json=request, headers={"Authorization": f"Bearer {token}"}
                )
            except httpx.TransportError as error:
                why, least = f"{server} does not answer: {error}", 0.0
            else:
                if answer.status_code == 200:
                    admission: dict[str, Any] = answer.json()
                    return admission
                why = f"{server} answers {answer.status_code}: {_detail(answer)}"
                if answer.status_code not in _RETRIED:
                    raise CannotJoin(why)
                given = answer.headers.get("Retry-After", "")
                least = float(given) if given.isdigit() else 0.0
            log.warning("node %s has not joined yet: %s", node, why)
            pause(max(seconds, least))
            seconds = min(LONGEST_PAUSE_SECONDS, 2 * seconds)


def _settings(joined: dict[str, Any], folder: Path) -> dict[str, str]:
    """Return the settings of a worker that has joined."""
    admission = joined["admission"]
    parts = urlsplit(admission["redis"]["url"])
    options = dict(parse_qsl(parts.query))
    if parts.scheme == "rediss":
        options.setdefault("ssl_cert_reqs", "required")
        if admission["redis"]["ca"]:
            options["ssl_ca_certs"] = str(folder / CA_FILE)
    access = f"{admission['user']}:{quote(joined['password'], safe='')}"
    url = parts._replace(netloc=f"{access}@{parts.netloc}", query=urlencode(options))
    found = {
        "TANGRAM_REDIS_URL": urlunsplit(url), "TANGRAM_KEY_PREFIX": admission["key_prefix"],
        "TANGRAM_NODE": admission["node"], "TANGRAM_NODE_POOL": admission["pool"],
        "TANGRAM_NODE_ISOLATION": admission["isolation"],
    }  # fmt: skip
    return {name: value for name, value in found.items() if value}


def _token(environment: MutableMapping[str, str]) -> str:
    path = environment.get("TANGRAM_JOIN_TOKEN_FILE", "")
    if path and Path(path).exists():  # it may be deleted once the node has joined
        return Path(path).read_text().strip()
    return environment.get("TANGRAM_JOIN_TOKEN", "").strip()


def _detail(answer: Any) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return str(answer.text[:200])


def _store(folder: Path, name: str, text: str) -> None:
    """Replace a private file: a crash leaves the old one or the new one."""
    draft = folder / f"{name}.new"
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / name)
    sync_directory(folder)
