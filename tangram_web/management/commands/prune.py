"""``manage.py prune``: delete rows of what ended long ago, now instead of when retention is due."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from tangram_web.management.errors import one_line_errors
from tangram_web.records.retention import count_old, cutoff, prune


class Command(BaseCommand):
    """Delete finished actions and trajectories older than some days."""

    help = "Delete finished actions and trajectories that are older than --days."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the age."""
        parser.add_argument(
            "--days", type=float, default=settings.TANGRAM_RETENTION_DAYS,
            help="keep rows that ended within this many days (default: TANGRAM_RETENTION_DAYS)",
        )  # fmt: skip
        parser.add_argument(
            "--dry-run", action="store_true", help="only print what would be deleted"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Delete rows, or print how many would be deleted."""
        days = options["days"]
        if not 0 < days < 36_500:
            raise CommandError("--days: give a number above 0")
        before = cutoff(days)
        would = " would be" if options["dry_run"] else ""
        with one_line_errors():
            actions, trajectories = count_old(before) if options["dry_run"] else prune(before)
        self.stdout.write(f"{actions} actions and {trajectories} trajectories{would} deleted")
