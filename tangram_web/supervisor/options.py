"""Options of `./tangram up`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tangram_web.supervisor.data_folder import DEFAULT_HOME


@dataclass(frozen=True)
class Options:
    """Options of one start."""

    home: Path = DEFAULT_HOME
    host: str = "127.0.0.1"
    #: None: 8000, or the next free one.
    port: int | None = None
    #: Cores that each node declares; None: those of the machine, divided among the nodes.
    cpus: int | None = None
    #: Node workers of this machine; 0: others run the actions, as those of a cluster.
    nodes: int = 1
    #: Web processes, which share the port.
    webs: int = 1
    demo: bool = True
    #: One worker process hosts all parts, for a small machine; False: one process for each part.
    together: bool = False
    #: Disk that is kept for Redis and the database; 0: none; None: a twentieth, at most 64 MiB.
    reserve_bytes: int | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to ``parser``."""
    home = Path(os.environ.get("TANGRAM_HOME") or DEFAULT_HOME)
    parser.add_argument(
        "--home", type=Path, default=home, help="folder for all data (default: %(default)s)"
    )
    parser.add_argument("--host", default=Options.host, help="address to serve on (%(default)s)")
    parser.add_argument("--port", type=int, help="port (default: 8000, or the next free one)")
    parser.add_argument(
        "--cpus",
        type=positive,
        help="cores each node declares; more than exist are labelled oversubscribed",
    )
    parser.add_argument(
        "--nodes",
        type=_count,
        default=1,
        help="node workers (%(default)s); 0: only other machines run actions (docs/clusters.md)",
    )
    parser.add_argument(
        "--webs", type=positive, default=1, help="web processes on the port (%(default)s)"
    )
    parser.add_argument(
        "--reserve-bytes",
        type=int,
        default=os.environ.get("TANGRAM_RESERVE_BYTES") or None,
        help="disk kept for Redis and the database (a twentieth of it, at most 64 MiB; 0: none)",
    )
    parser.add_argument(
        "--together",
        action="store_true",
        help="one worker process for all parts: less memory, fewer actions a second",
    )
    parser.add_argument(
        "--no-demo", dest="demo", action="store_false", help="start without the demo load"
    )


def _count(text: str) -> int:
    """Parse a count that may be none."""
    return 0 if text.strip() == "0" else positive(text)


def positive(text: str) -> int:
    """Parse a count of at least one."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Parse the command line of `./tangram up`."""
    parser = argparse.ArgumentParser(
        prog="./tangram up",
        description="Start a whole Tangram on this machine and run it until Ctrl-C.",
        epilog="Environment: TANGRAM_HOME, TANGRAM_REDIS_URL, DATABASE_URL (docs/architecture.md).",
    )
    add_arguments(parser)
    return Options(**vars(parser.parse_args(arguments)))
