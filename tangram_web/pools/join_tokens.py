"""Join tokens: what an admin gives to a new machine, which exchanges it for a Redis user of its own.

Rules
1. A token is shown once and stored as a hash. It expires after an hour and works once, unless its creator says otherwise.
2. A use is one statement of the database, so of machines that race for the last one, one wins. A use without an admission is
   given back.
3. The machine makes its password itself and sends the hash: no answer has a secret. A machine that missed the answer sends the
   same again, and gets the same answer, though the token is used up.
4. A token sets pool and isolation of a node. It opens nothing else, neither the API nor Redis.
5. Each change and each admission is in the audit.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from domain.errors import Conflict, Gone, InvalidRequest, NotFound, TangramError
from domain.redis_access import RedisRole, check_name, user_name
from tangram_web.audit.services import Actor, record
from tangram_web.lib import bus
from tangram_web.pools import node_access
from tangram_web.pools.models import JoinToken, Pool

PREFIX: Final = "tgj_"
DEFAULT_SECONDS: Final = 3600
MOST_SECONDS: Final = 30 * 86_400
MOST_USES: Final = 10_000
#: Settings of ``TANGRAM_NODE_ISOLATION``.
ISOLATIONS: Final = ("auto", "bwrap", "apptainer", "process")
_SCHEMES: Final = frozenset({"redis", "rediss"})
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
#: Members of an address that name files of this machine.
_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True, kw_only=True)
class NodeRedis:
    """How a node reaches Redis."""

    #: Without user and password.
    url: str
    #: Certificates that sign that of Redis, as PEM; empty: those of the machine.
    ca: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeAdmission:
    """What a machine gets for a token."""

    node: str
    pool: str
    isolation: str
    key_prefix: str
    redis: NodeRedis
    #: Its user of Redis.
    user: str


def join_token_create(
    *,
    actor: Actor,
    node: str = "",
    prefix: str = "",
    pool: str = "",
    isolation: str = "",
    seconds: int = DEFAULT_SECONDS,
    uses: int = 1,
) -> tuple[JoinToken, str]:
    """Create a token for a node, for names with a prefix, or for any; the second value is the token itself.

    Raises InvalidRequest, Conflict where nodes can have no users of Redis of their own.
    """
    if node and prefix:
        raise InvalidRequest("give a node or a prefix", pointer="/prefix")
    if node and uses != 1:
        raise InvalidRequest("a token for one node has one use: give a prefix", pointer="/uses")
    for name, pointer in ((node, "/node"), (prefix, "/prefix")):
        if name:
            check_name(name, pointer)
    if pool and not Pool.objects.filter(name=pool).exists():
        raise InvalidRequest(f"there is no pool {pool!r}", pointer="/pool")
    node_access.require_users()
    redis_of_nodes()
    raw = PREFIX + secrets.token_urlsafe(32)
    with transaction.atomic():
        token = JoinToken.objects.create(
            digest=_digest(raw), node=node or prefix, is_prefix=bool(prefix), pool=pool,
            isolation=isolation, uses=uses, created_by=actor.name,
            expires_at=timezone.now() + timedelta(seconds=seconds),
        )  # fmt: skip
        record(actor, "create", f"join-token/{token.public_id}", None, _described(token))
    return token, raw


def join_token_revoke(*, actor: Actor, public_id: str) -> None:
    """Revoke a token; nodes that joined by it stay. Idempotent. Raises NotFound."""
    with transaction.atomic():
        now = timezone.now()
        if JoinToken.objects.filter(public_id=public_id, revoked_at=None).update(revoked_at=now):
            record(actor, "revoke", f"join-token/{public_id}")
        elif not JoinToken.objects.filter(public_id=public_id).exists():
            raise NotFound(f"there is no join token {public_id!r}")


def token_of(raw: str) -> JoinToken | None:
    """Return the token, also one that is of no use any more; None when it is unknown."""
    if not raw.startswith(PREFIX) or not raw.isascii() or len(raw) > 200:
        return None
    return JoinToken.objects.filter(digest=_digest(raw)).first()


def join(token: JoinToken, *, node: str, pool: str, digest: str, actor: Actor) -> NodeAdmission:
    """Admit a machine as ``node``, with the SHA-256 of the password that it made.

    Raises InvalidRequest for a name that is not the token's, Gone for a token that is of no use any more, Conflict for a name that
    is taken, Unavailable without a keeper of node access: the last three cost no use.
    """
    check_name(node, "/node")
    if not (node.startswith(token.node) if token.is_prefix else node == (token.node or node)):
        must = f"begin with {token.node}" if token.is_prefix else f"be {token.node}"
        raise InvalidRequest(
            f"this token is not for node {node}, whose name must {must}: set TANGRAM_NODE",
            pointer="/node",
        )
    address = redis_of_nodes()
    admission = NodeAdmission(
        node=node, pool=token.pool or pool, isolation=token.isolation, key_prefix=settings.TANGRAM_KEY_PREFIX,
        redis=address, user=user_name(bus.keys(), RedisRole.NODE, node),
    )  # fmt: skip
    if node_access.is_admitted(node, digest):
        return admission
    by = {"token": token.public_id, "pool": admission.pool}
    with transaction.atomic():
        _use(token)
        record(actor, "join", f"node/{node}", None, by)
    try:
        node_access.admit(node, digest)
    except TangramError as error:
        with transaction.atomic():
            JoinToken.objects.filter(pk=token.pk).update(used=F("used") - 1)
            record(actor, "join-failed", f"node/{node}", by, {"error": str(error)})
        raise
    return admission


def node_revoke(*, actor: Actor, node: str) -> bool:
    """Revoke a node; return whether its user of Redis is deleted yet. Raises Conflict, Unavailable: nothing changed."""
    with transaction.atomic():
        record(actor, "revoke", f"node/{node}")
        version = node_access.fence(node)
    return node_access.is_deleted(node, version)


def why_useless(token: JoinToken, now: datetime) -> str:
    """Return why a token is of no use any more; empty: it is."""
    if token.revoked_at is not None:
        return "was revoked"
    if token.expires_at <= now:
        return "has expired"
    return "has been used" if token.used >= token.uses else ""


def redis_of_nodes() -> NodeRedis:
    """Return how nodes reach Redis. Raises Conflict where the settings do not say it."""
    given = settings.TANGRAM_JOIN_REDIS_URL
    parts = urlsplit(given or settings.TANGRAM_REDIS_URL)
    if parts.scheme not in _SCHEMES or (not given and parts.hostname in _LOOPBACK):
        raise Conflict(
            "other machines do not reach Redis by the address of this web process: set TANGRAM_JOIN_REDIS_URL, without a user, as in"
            " rediss://redis.example:6379/0?ssl_cert_reqs=required",
            code="no_redis_address",
        )
    options: dict[str, str] = dict(parse_qsl(parts.query))
    # A certificate of this part is not for nodes; what the operator names for nodes lies on their machines.
    files = {
        name: options.pop(name) for name in (_FILES[:1] if given else _FILES) if name in options
    }
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2], query=urlencode(options))
    ca = files.get("ssl_ca_certs")
    try:
        return NodeRedis(url=urlunsplit(plain), ca=Path(ca).read_text() if ca else "")
    except (OSError, UnicodeDecodeError) as error:
        raise Conflict(
            f"the certificates for Redis cannot be read ({error}): set ssl_ca_certs of TANGRAM_JOIN_REDIS_URL to a file of this machine",
            code="no_redis_address",
        ) from error


def _use(token: JoinToken) -> None:
    """Count a use (rule 2). Raises Gone."""
    now = timezone.now()
    live = JoinToken.objects.filter(
        pk=token.pk, revoked_at=None, expires_at__gt=now, used__lt=F("uses")
    )
    if not live.update(used=F("used") + 1):
        token.refresh_from_db()
        why = why_useless(token, now) or "has been used"
        raise Gone(
            f"the join token {why}: have an admin create another one (tangram node token create)"
        )


def _described(token: JoinToken) -> dict[str, Any]:
    name = {"prefix" if token.is_prefix else "node": token.node} if token.node else {}
    return name | {
        "pool": token.pool, "isolation": token.isolation, "uses": token.uses,
        "expires_at": token.expires_at.isoformat(timespec="seconds"),
    }  # fmt: skip


def _digest(raw: str) -> str:
    return hashlib.sha256(raw.encode()).hexdigest()
