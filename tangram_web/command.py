"""The command ``tangram`` of the whole distribution: the client's verbs, and ``up`` and ``sim``."""

from __future__ import annotations

import sys

import click

from tangram_client.cli import verbs

#: Both read their own arguments, ``--help`` included.
_PASSED_ON = {"ignore_unknown_options": True, "help_option_names": []}


@click.command(context_settings=_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def up(arguments: tuple[str, ...]) -> None:
    """Start a whole Tangram on this machine."""
    from tangram_web.supervisor.__main__ import main as start

    sys.exit(start(arguments))


@click.command(context_settings=_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def sim(arguments: tuple[str, ...]) -> None:
    """Simulate a workload under one policy or several, in virtual time."""
    from simulator.cli import main as simulate

    sys.argv = ["tangram sim", *arguments]
    simulate()


def main() -> None:
    """Run the command line."""
    verbs.add_command(up)
    verbs.add_command(sim)
    verbs(prog_name="tangram")
