"""``python -m tangram_web.healthcheck``: the container health check of a worker.

A process that hangs or is still starting exists as well, so the check reads the worker's heartbeat in
Redis. It runs every few seconds and is therefore cheap: 0.04 s of CPU. Importing Django takes a second
and the Redis client a quarter of one, so the three Redis commands are implemented here.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Mapping
from typing import BinaryIO, Final
from urllib.parse import parse_qs, unquote, urlsplit

from domain.redis_keys import Keys

#: Largest age of a heartbeat; the same as for `/readyz`.
WITHIN_SECONDS: Final = 10.0
_TIMEOUT_SECONDS: Final = 3.0


#: Roles whose workers have names of their own → the variable that names one; the default is its host.
_NAMED_BY: Final = {"node": "TANGRAM_NODE", "rollout": "TANGRAM_ROLLOUT_WORKER"}


def is_alive(rows: Mapping[str, str], role: str, host: str, named: str, now: float) -> bool:
    """Return whether the worker of ``role`` on this host has a fresh heartbeat.

    ``named``: name of a node or a rollout worker; ``rows``: the hash `Keys.workers`; ``now``: seconds since
    the epoch, as in the rows.
    """
    own = f"{role}@{named}" if role in _NAMED_BY else f"{role}@{host}:"
    return any(
        (name == own or (own.endswith(":") and name.startswith(own)))
        and now - json.loads(body)["at"] <= WITHIN_SECONDS
        for name, body in rows.items()
    )


def read_hash(url: str, key: str) -> dict[str, str]:
    """Return a hash of the Redis at ``url``. Raises OSError, and ValueError for an error reply."""
    parts = urlsplit(url)
    commands = [["HGETALL", key]]
    if database := parts.path.strip("/") if parts.scheme != "unix" else "":
        commands.insert(0, ["SELECT", database])
    if parts.password:
        given = (parts.username, parts.password) if parts.username else (parts.password,)
        commands.insert(0, ["AUTH", *map(unquote, given)])
    with _connect(url) as connection, connection.makefile("rb") as answers:
        connection.sendall(b"".join(map(_packed, commands)))
        flat = [_reply(answers) for _ in commands][-1]
    assert isinstance(flat, list)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_TIMEOUT_SECONDS)
        connection.connect(parts.path)
        return connection
    host = parts.hostname or "localhost"
    connection = socket.create_connection((host, parts.port or 6379), _TIMEOUT_SECONDS)
    if parts.scheme == "rediss":
        return _tls_context(parts.query).wrap_socket(connection, server_hostname=host)
    return connection


def _tls_context(query: str) -> ssl.SSLContext:
    """Return a context with the files that a URL names, as redis-py reads them."""
    given = {name: values[-1] for name, values in parse_qs(query).items()}
    context = ssl.create_default_context(cafile=given.get("ssl_ca_certs"))
    if "ssl_certfile" in given:
        context.load_cert_chain(given["ssl_certfile"], given.get("ssl_keyfile"))
    if given.get("ssl_check_hostname", "").lower() in {"false", "0", "no"}:
        context.check_hostname = False
    if given.get("ssl_cert_reqs", "").lower() in {"none", "cert_none"}:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _packed(words: list[str]) -> bytes:
    parts = [word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


def _reply(answers: BinaryIO) -> str | list[str]:
    """Read one reply of the protocol RESP2: a line, a string or a list of strings."""
    line = answers.readline().rstrip(b"\r\n").decode()
    kind, rest = line[:1], line[1:]
    if kind == "$":
        return answers.read(int(rest) + 2)[:-2].decode()
    if kind == "*":
        return [str(_reply(answers)) for _ in range(int(rest))]
    if kind != "+":
        raise ValueError(rest or "it closed the connection")
    return rest


def main() -> int:
    """Return 0 for a fresh heartbeat, else print the reason and return 1."""
    role, host = os.environ.get("TANGRAM_ROLE", ""), socket.gethostname()
    named = os.environ.get(_NAMED_BY.get(role, "")) or host
    keys = Keys(os.environ.get("TANGRAM_KEY_PREFIX") or Keys().prefix)
    try:
        rows = read_hash(os.environ.get("TANGRAM_REDIS_URL", ""), keys.workers)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"Redis does not answer: {error}\n")
        return 1
    if is_alive(rows, role, host, named, time.time()):
        return 0
    sys.stderr.write(f"no {role or 'worker (TANGRAM_ROLE is empty)'} sends heartbeats here\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
