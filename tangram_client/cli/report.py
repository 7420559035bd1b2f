"""`report`: what the actions of a task took, how elastic they were, what they cost, and how they differ from another task's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from tangram_client._calls import task_report
from tangram_client.cli.output import put_data, rows, seconds_text, show
from tangram_client.cli.shell import Shell, connected, pass_shell, say


@click.command()
@click.argument("task")
@click.option("--with", "other", metavar="TASK", help="Compare with another task of the project.")
@connected
@pass_shell
def report(shell: Shell, /, task: str, *, other: str | None) -> None:
    """Report on TASK: times by phase and family, units granted, outcomes, costs; -o json has all of it."""
    with shell.client() as client:
        found = client.send(task_report(task, shell.project, other))
    if shell.format in {"json", "yaml"}:
        put_data(found, shell.format)
    elif shell.format == "name":
        click.echo(found["task"])
    else:
        _show(found)


def _show(found: Mapping[str, Any]) -> None:
    say(
        f"{found['finished']} of {found['actions']} actions finished; times of the latest {found['read']}"
    )
    times = [
        (each["phase"], *(seconds_text(each[name]) for name in ("mean", "p50", "p95", "p99")))
        for each in found["phases"]
    ]
    show(rows(("PHASE", "MEAN", "P50", "P95", "P99"), times))
    families = [
        (each["family"], str(each["actions"]), str(each["failed"]), seconds_text(each["act_mean"]),
         f"{100 * each['share']:.1f} %")
        for each in found["families"]
    ]  # fmt: skip
    show(rows(("FAMILY", "ACTIONS", "FAILED", "MEAN ACT", "SHARE"), families))
    if found["granted"]:
        granted = [
            (each["resource"], each["feasible"], f"{each['granted']:g}", str(each["actions"]),
             seconds_text(each["execution_mean"]))
            for each in found["granted"]
        ]  # fmt: skip
        show(rows(("RESOURCE", "FEASIBLE", "GRANTED", "ACTIONS", "MEAN EXECUTION"), granted))
    costs = [
        (each["name"], f"{each['granted']:.1f}", f"{each['reserved']:.1f}",
         "–" if each["saving"] is None else f"{100 * each['saving']:.0f} %")
        for each in found["costs"]
    ]  # fmt: skip
    if costs:
        show(rows(("COST", "GRANTED", "RESERVATION", "SAVED"), costs))
    if found["comparison"]:
        _show_comparison(found["comparison"])


def _show_comparison(found: Mapping[str, Any]) -> None:
    say(found["verdict"])
    lines = [
        (each["name"], each["unit"], f"{each['a']:.3f}", f"{each['b']:.3f}", _interval(each), each["finding"])
        for each in found["measures"]
    ]  # fmt: skip
    names = (found["a"]["name"].upper(), found["b"]["name"].upper())
    show(rows(("MEASURE", "UNIT", *names, "DIFFERENCE", "FINDING"), lines))


def _interval(measure: Mapping[str, Any]) -> str:
    if measure["low"] is None:
        return f"{measure['difference']:.3f}"
    return f"{measure['difference']:.3f} ({measure['low']:.3f} to {measure['high']:.3f})"
