"""``manage.py up``: ``./tangram up`` inside an environment that has the packages."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from tangram_web.supervisor.__main__ import run
from tangram_web.supervisor.options import Options, add_arguments


class Command(BaseCommand):
    """Start all parts on this machine and supervise them until Ctrl-C."""

    help = "Start all parts on this machine and supervise them until Ctrl-C."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options of ./tangram up."""
        add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until ended, and exit with the same code."""
        known = {name: options[name] for name in Options.__dataclass_fields__}
        sys.exit(run(Options(**known)))
