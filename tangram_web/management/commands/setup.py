"""``manage.py setup``: bring the database up to date, and let somebody in.

Safe to repeat: what is there stays. Prints one JSON object that says how to log in and submit.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from domain.principals import Principal, Scope
from tangram_web.audit.services import SYSTEM
from tangram_web.dashboard.services import entry_link
from tangram_web.pools.selectors import principal_of
from tangram_web.pools.services import ensure_defaults, publish_current, token_create

#: What a trainer and the CLI on this machine do. Whoever can read its file owns this Tangram anyway:
#: the link that logs in as administrator is printed beside it.
LOCAL_SCOPES = (Scope.READ, Scope.SUBMIT, Scope.OPERATE, Scope.CONFIG)


class Command(BaseCommand):
    """Prepare the database, the defaults, an administrator and a token."""

    help = "Migrate when needed, and make the default project, an administrator and a token."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the address that clients will use."""
        parser.add_argument("--url", default="http://127.0.0.1:8000", help="where web will serve")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it, and print how to log in and submit."""
        migrate_when_needed()
        ensure_defaults()
        publish_current()
        url = options["url"]
        user = ensure_administrator()
        access = {
            "url": url,
            "user": user.get_username(),
            "login_url": f"{url}{entry_link(user)}",
            "token": ensure_token(Path(settings.TANGRAM_HOME) / "client.json", url),
        }
        self.stdout.write(json.dumps(access))


def migrate_when_needed() -> None:
    """Apply the migrations that the database has not had; looking costs far less than applying."""
    executor = MigrationExecutor(connection)
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        call_command("migrate", interactive=False, verbosity=0)


def ensure_administrator() -> AbstractBaseUser:
    """Return an administrator: the first there is, else ``admin``, who enters by link alone."""
    users = get_user_model()._default_manager
    found: AbstractBaseUser | None = users.filter(is_superuser=True, is_active=True).first()
    if found is not None:
        return found
    made: AbstractBaseUser = users.create_superuser("admin", password=None)
    return made


def ensure_token(client_file: Path, url: str) -> str:
    """Return the token that this machine's clients use; make one when there is none that works."""
    token = _read_token(client_file)
    principal = principal_of(token) if token is not None else None
    if token is None or principal is None or not _suffices(principal):
        _, token = token_create(
            actor=SYSTEM, name="local client", scopes=LOCAL_SCOPES, project=None
        )
    _write_private(client_file, json.dumps({"url": url, "token": token}))
    return token


def _suffices(principal: Principal) -> bool:
    """Say whether a token is as wide as one made today; configuration is every project's."""
    return principal.project is None and all(map(principal.may, LOCAL_SCOPES))


def _read_token(client_file: Path) -> str | None:
    try:
        token = json.loads(client_file.read_text())["token"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return token if isinstance(token, str) else None


def _write_private(path: Path, text: str) -> None:
    # Replaced in one step: a reader sees the old file or the new one, and nobody else any.
    draft = path.with_name(f"{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        file.write(text)
    draft.replace(path)
