"""Users of Redis: a role of Tangram, or one node, as the rules of ``ACL SETUSER`` (Redis 7, Valkey 7.2 or newer).

A *grant* is commands together with the keys and channels that they may name. It becomes one selector of a user, so a command
that one grant names is of no use with the keys of another. A user of several roles has the grants of all. Which role has which
grants: `domain.redis_grants`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from domain.errors import InvalidRequest
from domain.redis_keys import Keys


class RedisRole(StrEnum):
    """A part of Tangram with a user of its own."""

    WEB = "web"
    LOOP = "loop"
    NODE = "node"
    PROJECTOR = "projector"
    JOBS = "jobs"
    ROLLOUT = "rollout"
    FLEETS = "fleets"
    GROUPS = "groups"
    #: The keeper of node access, which makes users of nodes and of nothing else.
    ACCESS = "access"
    MONITORING = "monitoring"
    #: Commands of an operator: setup, backup, restore, letters, keys; and the making of users.
    ADMIN = "admin"


@dataclass(frozen=True, kw_only=True)
class RedisGrant:
    """Commands, and what they may name: patterns of keys and channels."""

    #: With a minus in front: except it.
    commands: tuple[str, ...]
    #: Keys that are read and written.
    both: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()


#: Of every user, with no key.
_CONNECTION: Final = (
    "auth", "hello", "ping", "select", "echo", "quit", "reset", "client", "time", "multi", "exec", "discard", "unwatch",
    "wait",
)  # fmt: skip
#: Of connections of others, and of the keys that others change. What names the own connection differs between versions.
_REFUSED: Final = (
    "client|kill", "client|list", "client|pause", "client|unpause", "client|unblock", "client|no-evict",
    "client|tracking", "client|caching",
)  # fmt: skip
#: None of these characters is part of a pattern, or between the parts of a key.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def check_name(name: str, pointer: str) -> None:
    """Check a prefix or a name of a node, which becomes part of patterns. Raises InvalidRequest."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name!r} cannot have a user of Redis: use letters, digits and . _ - only, with a letter or a digit first",
            pointer=pointer,
        )


def user_name(keys: Keys, role: RedisRole, node: str = "") -> str:
    """Return the name of the user of a role, or of a node."""
    return f"{keys.prefix}-{role}" + (f"-{node}" if node else "")


def rules_of(grants: Iterable[RedisGrant]) -> list[str]:
    """Return the arguments of ``ACL SETUSER`` that give a user these grants and nothing else."""
    connection = [f"+{command}" for command in _CONNECTION] + [f"-{each}" for each in _REFUSED]
    nothing = ["resetkeys", "resetchannels", "clearselectors", "-@all"]
    return [*nothing, *connection, *map(_selector, grants)]


def password_rule(password: str) -> str:
    """Return the rule that accepts a password: Redis keeps its hash."""
    return "#" + hashlib.sha256(password.encode()).hexdigest()


def user_rules(digest: str, grants: Iterable[RedisGrant]) -> list[str]:
    """Return the arguments of ``ACL SETUSER`` after the name, for a user with the SHA-256 ``digest`` of its password."""
    return ["reset", "on", f"#{digest}", *rules_of(grants)]


def acl_line(name: str, password: str, grants: Iterable[RedisGrant]) -> str:
    """Return the line of an aclfile for one user."""
    return " ".join(["user", name, "on", password_rule(password), *rules_of(grants)])


def _selector(grant: RedisGrant) -> str:
    parts = ["resetchannels", "-@all"]
    parts += [each if each.startswith("-") else f"+{each}" for each in grant.commands]
    parts += [f"~{key}" for key in grant.both]
    parts += [f"%R~{key}" for key in grant.read]
    parts += [f"%W~{key}" for key in grant.write]
    parts += [f"&{channel}" for channel in grant.channels]
    return f"({' '.join(parts)})"
