"""``manage.py backup FOLDER``: save the database and Redis while everything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import redis
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from domain.errors import TangramError
from tangram_web.backup import database_part, folder, redis_part
from tangram_web.lib import bus


class Command(BaseCommand):
    """Save everything that a Tangram could not make again."""

    help = "Save the database and what Redis holds to a new folder, while everything runs."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take where to."""
        parser.add_argument("folder", type=Path, help="a folder that is empty or not there yet")

    def handle(self, *args: Any, **options: Any) -> None:
        """Save the database, then Redis (the order matters: see the package)."""
        try:
            place = folder.make(options["folder"])
            kind = database_part.save(place / folder.DATABASE)
            count = redis_part.save(bus.redis_client(), bus.keys(), place / folder.REDIS)
            manifest = folder.seal(
                place, prefix=settings.TANGRAM_KEY_PREFIX, database=kind, redis_keys=count
            )
        except (TangramError, OSError, redis.RedisError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{place}: {kind} and {count} keys of Redis, as of {manifest.at}")
