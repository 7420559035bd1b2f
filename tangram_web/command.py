"""The command ``tangram`` of the whole distribution: the client's verbs, ``up``, ``sim``, ``trace``, ``dispatch`` and ``selector profile``."""

from __future__ import annotations

import sys

import click

from tangram_client.cli import verbs
from tangram_client.cli.selector import selector

#: Each reads its own arguments, ``--help`` included.
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


@click.command(context_settings=_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def trace(arguments: tuple[str, ...]) -> None:
    """Convert, describe and sample traces, of other systems, too."""
    from simulator.trace_cli import verbs as trace_verbs

    trace_verbs.main(list(arguments), prog_name="tangram trace")


@click.command(context_settings=_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def dispatch(arguments: tuple[str, ...]) -> None:
    """Plan the transfer of a batch between ranks: bytes and predicted seconds."""
    from dispatcher.cli import main as plan

    sys.exit(plan(arguments))


@click.command(context_settings=_PASSED_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def profile(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Measure the degrees of a selector's service: speed, memory, out of memory."""
    from tangram_web.selector_profile import profile as measure

    measure.main(
        list(arguments), "tangram selector profile", standalone_mode=False, obj=context.obj
    )


def main() -> None:
    """Run the command line."""
    selector.add_command(profile)
    verbs.add_command(up)
    verbs.add_command(sim)
    verbs.add_command(trace)
    verbs.add_command(dispatch)
    verbs(prog_name="tangram")


if __name__ == "__main__":
    main()
