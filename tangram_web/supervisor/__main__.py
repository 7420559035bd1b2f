"""``python -m tangram_web.supervisor``, the program of ``./tangram up``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from domain.errors import TangramError
from tangram_web.supervisor.console import Console
from tangram_web.supervisor.options import Options, parse
from tangram_web.supervisor.up import up


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run until ended, and return the exit code."""
    return run(parse(arguments))


def run(options: Options) -> int:
    """Run until ended, and return the exit code."""
    try:
        asyncio.run(up(options, Console(sys.stdout)))
    except TangramError as error:
        sys.stderr.write(f"tangram: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
