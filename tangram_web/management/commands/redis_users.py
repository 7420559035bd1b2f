"""``manage.py redis_users``: users of Redis for each part and each node, as an aclfile and files of passwords."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from domain.errors import InvalidRequest
from domain.redis_access import RedisRole, acl_line, check_name, user_name
from domain.redis_grants import grants_of
from domain.redis_keys import Keys
from tangram_web.lib import bus
from tangram_web.management.errors import one_line_errors

ACLFILE = "users.acl"
_PASSWORD = ".password"


class Command(BaseCommand):
    """Write the aclfile of this installation, and a password of each user."""

    help = (
        "Write users.acl, for the setting aclfile of Redis, and a file with the password of each user. Passwords and nodes that"
        " the folder has are kept."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the folder and the nodes."""
        parser.add_argument(
            "folder", type=Path, help="is made if it is missing; only its owner can read it"
        )
        parser.add_argument(
            "--node", action="append", default=[], metavar="NAME",
            help="a node worker (TANGRAM_NODE); can be repeated",
        )  # fmt: skip
        parser.add_argument(
            "--remove-node",
            action="append",
            default=[],
            metavar="NAME",
            help="a node that has no user any more",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Write the files and print the users."""
        folder, keys = options["folder"], bus.keys()
        try:
            with one_line_errors(but=InvalidRequest):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                for node in options["remove_node"]:
                    check_name(node, "/node")
                    _password_file(folder, user_name(keys, RedisRole.NODE, node)).unlink(
                        missing_ok=True
                    )
                nodes = sorted(
                    {*_known_nodes(folder, keys), *options["node"]} - {*options["remove_node"]}
                )
                names = write_users(folder, keys, nodes)
        except InvalidRequest as error:
            name = "TANGRAM_KEY_PREFIX" if error.pointer == "/prefix" else "--node"
            raise CommandError(f"{name}: {error}") from error
        self.stdout.write("\n".join(names))
        self.stderr.write(
            f"Give {folder / ACLFILE} to Redis (aclfile, then ACL LOAD) and each part its own"
            " TANGRAM_REDIS_URL=redis://USER:PASSWORD@HOST:PORT/0; passwords are in USER.password."
        )


def write_users(folder: Path, keys: Keys, nodes: list[str]) -> list[str]:
    """Write the aclfile and missing passwords; return the names of the users. Raises InvalidRequest, OSError."""
    users: list[tuple[RedisRole, str]] = [
        (role, "") for role in RedisRole if role is not RedisRole.NODE
    ]
    users += [(RedisRole.NODE, node) for node in nodes]
    granted = {user_name(keys, role, node): grants_of(role, keys, node) for role, node in users}
    lines = [acl_line(name, _password(folder, name), grants) for name, grants in granted.items()]
    draft = folder / f"{ACLFILE}.new"
    draft.unlink(missing_ok=True)
    # Without a password of its own the default user could do everything.
    _write_private(draft, "\n".join(["user default off", *lines, ""]))
    draft.replace(folder / ACLFILE)
    return list(granted)


def _known_nodes(folder: Path, keys: Keys) -> list[str]:
    prefix = user_name(keys, RedisRole.NODE) + "-"
    names = (path.name.removesuffix(_PASSWORD) for path in folder.glob(f"{prefix}*{_PASSWORD}"))
    return [name.removeprefix(prefix) for name in names]


def _password_file(folder: Path, user: str) -> Path:
    return folder / f"{user}{_PASSWORD}"


def _password(folder: Path, user: str) -> str:
    """Return the password of a user; the first call makes it."""
    path = _password_file(folder, user)
    if not path.exists():
        _write_private(path, secrets.token_urlsafe(32) + "\n")
    return path.read_text().strip()


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
