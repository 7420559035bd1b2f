"""``manage.py up``: the same as ``./tangram up``, for who is inside the environment already."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from tangram_web.supervisor.__main__ import run
from tangram_web.supervisor.options import Options, add_arguments


class Command(BaseCommand):
    """Start a whole Tangram and keep it up until Ctrl-C."""

    help = "Start a whole Tangram here and keep it up until Ctrl-C."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Take what ./tangram up takes."""
        add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run it, and end with its exit code."""
        known = {name: options[name] for name in Options.__dataclass_fields__}
        sys.exit(run(Options(**known)))
