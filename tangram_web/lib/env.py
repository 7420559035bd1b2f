"""Typed environment variables; a bad value stops the start with an error that names the variable."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})

#: Readers keep a snapshot while the writer commits. A crash loses no commit; commits lost in a power
#: cut are projected again from the journal.
_SQLITE_PRAGMAS = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-65536;"


def env_text(name: str, default: str) -> str:
    """Return the variable, or ``default`` when it is not set."""
    return os.environ.get(name, default)


def env_bool(name: str, *, default: bool) -> bool:
    """Return the variable as a boolean."""
    value = os.environ.get(name)
    if value is None:
        return default
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise ImproperlyConfigured(f"{name}={value!r} is neither yes nor no: give 1 or 0")


def env_choice(name: str, choices: Sequence[str], default: str = "") -> str:
    """Return the variable, one of ``choices``; case does not matter. The first is the default."""
    value = os.environ.get(name) or default or choices[0]
    for choice in choices:
        if value.lower() == choice.lower():
            return choice
    raise ImproperlyConfigured(f"{name}={value!r}: give one of {', '.join(choices)}")


def env_float(name: str, default: float, *, minimum: float = 0.0) -> float:
    """Return the variable as a number of at least ``minimum``."""
    value = os.environ.get(name)
    if not value:
        return default
    try:
        number = float(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name}={value!r} is not a number") from None
    if not minimum <= number < float("inf"):
        raise ImproperlyConfigured(f"{name}={value} is not a finite number of at least {minimum:g}")
    return number


def env_int(name: str, default: int, *, minimum: int = 0) -> int:
    """Return the variable as a whole number of at least ``minimum``."""
    number = env_float(name, default, minimum=minimum)
    if number != int(number):
        raise ImproperlyConfigured(f"{name}={number:g} is not a whole number")
    return int(number)


def env_list(name: str, default: list[str]) -> list[str]:
    """Return the variable split at commas, without empty parts."""
    value = os.environ.get(name)
    if value is None:
        return default
    return [part.strip() for part in value.split(",") if part.strip()]


def env_folders(name: str, default: list[Path]) -> list[str]:
    """Return the variable split at colons, as absolute paths; folders may be missing."""
    value = os.environ.get(name)
    given = default if not value else [Path(part) for part in value.split(":") if part]
    return [str(path.expanduser().absolute()) for path in given]


def env_prefixed(prefix: str, renamed: str) -> dict[str, str]:
    """Return all variables that begin with ``prefix``: ``A_B`` of prefix ``A_`` is ``renamed`` + b."""
    return {
        f"{renamed}{name.removeprefix(prefix).lower()}": value
        for name, value in sorted(os.environ.items())
        if name.startswith(prefix)
    }


def env_directory(name: str, default: Path) -> Path:
    """Return a private directory; it is created if it is missing."""
    path = Path(os.environ.get(name) or default).expanduser().absolute()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ImproperlyConfigured(f"{name}: cannot make {path}: {error.strerror}") from error
    return path


def embedded_redis_url(folder: Path) -> str:
    """Return the URL of the embedded server in ``folder``, with its password once `tangram up` has made it."""
    try:
        password = (folder / "password").read_text().strip()
    except OSError:
        password = ""
    access = f":{password}@" if password else ""
    return f"unix://{access}{folder / 'redis.sock'}"


def env_redis_url(name: str, default: str) -> str:
    """Return a URL that redis-py understands."""
    url = os.environ.get(name) or default
    if urlsplit(url).scheme not in {"redis", "rediss", "unix"}:
        raise ImproperlyConfigured(f"{name} must start with redis://, rediss:// or unix://")
    return url


def env_database(name: str, default: Path) -> dict[str, Any]:
    """Read ``sqlite:///path`` or ``postgresql://user:password@host:port/name?sslmode=require``."""
    url = os.environ.get(name)
    if not url:
        return _sqlite(str(default))
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ImproperlyConfigured(f"{name} is not a URL: {error}") from None
    if parts.scheme == "sqlite":
        path = unquote(parts.path.removeprefix("/")) if parts.path != "/" else ""
        if not path:
            raise ImproperlyConfigured(f"{name}: sqlite:/// needs a path, absolute with 4 slashes")
        return _sqlite(path)
    if parts.scheme not in {"postgres", "postgresql"} or parts.path in {"", "/"}:
        raise ImproperlyConfigured(f"{name} must be sqlite:///path or postgresql://host/name")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.removeprefix("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(port or ""),
        # A server that hangs must not block the start; options of the URL have priority.
        "OPTIONS": {"connect_timeout": "5", **dict(parse_qsl(parts.query))},
        "CONN_HEALTH_CHECKS": True,
    }


def _sqlite(path: str) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        # IMMEDIATE: a transaction takes the write lock at its start and cannot fail for it later.
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": _SQLITE_PRAGMAS,
        },
    }


def env_secret(name: str, keep_in: Path) -> str:
    """Return the variable, or a secret that is generated once and stored in ``keep_in``."""
    given = os.environ.get(name)
    if given:
        if len(given) < 32:
            raise ImproperlyConfigured(f"{name} is shorter than 32 characters")
        return given
    try:
        secret = keep_in.read_text(encoding="ascii").strip()
        make_private(keep_in)
    except FileNotFoundError:
        return make_secret(keep_in)
    except (OSError, UnicodeDecodeError) as error:
        raise ImproperlyConfigured(f"{name}: cannot read {keep_in}: {error}") from error
    if len(secret) < 32:
        raise ImproperlyConfigured(
            f"{keep_in} has less than 32 characters: restore it from a copy, or delete it to start with a"
            " new key (sessions end, and secrets of webhooks, services and APIs are set again)"
        )
    return secret


def private_lines(path: Path) -> list[str]:
    """Return the lines of a private file; none when it is missing."""
    try:
        lines = path.read_text(encoding="ascii").split()
        make_private(path)
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise ImproperlyConfigured(f"cannot read {path}: {error}") from error
    return lines


def make_private(path: Path) -> None:
    """Let only the owner read ``path`` (0600), where this account may change that."""
    if path.stat().st_mode & 0o077:
        with suppress(PermissionError):  # a mounted file of another owner stays as it is
            path.chmod(0o600)


def make_secret(path: Path) -> str:
    """Write a new secret; two processes that start together both use the first one."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    draft.touch(mode=0o600, exist_ok=False)
    draft.write_text(secrets.token_urlsafe(48), encoding="ascii")
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return path.read_text(encoding="ascii").strip()
