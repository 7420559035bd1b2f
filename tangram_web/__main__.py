"""``python -m tangram_web`` runs a management command, as ``manage.py`` does, in an installation without it."""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line


def main() -> None:
    """Run the management command that the arguments name."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tangram_web.settings")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
