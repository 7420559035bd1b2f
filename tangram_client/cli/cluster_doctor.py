"""`doctor --cluster`: the faults of a cluster, each with its cure, as the server finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
from rich.markup import escape
from rich.table import Table

from tangram_client._calls import cluster_checks
from tangram_client.cli.output import put_data, show
from tangram_client.client import Client
from tangram_client.errors import NotFoundError, TangramClientError

#: Severity → heading, style.
_HEADINGS: Final = {
    "fault": ("Faults", "red"),
    "note": ("Notes", "yellow"),
    "unknown": ("Not known", "magenta"),
}
_FAULT: Final = "fault"


def examine_cluster(client: Client, form: str) -> None:
    """Print what the server finds in its cluster. Ends with 1 where there is a fault."""
    try:
        answer = client.send(cluster_checks())
    except NotFoundError:
        raise TangramClientError(
            "the server is of an earlier version, which has no checks of its cluster: upgrade it"
        ) from None
    findings: list[dict[str, str]] = answer["findings"]
    if form in {"json", "yaml"}:
        put_data(findings, form)
    else:
        _put(findings, answer["examined"])
    if any(finding["severity"] == _FAULT for finding in findings):
        raise SystemExit(1)


def _put(findings: Sequence[Mapping[str, str]], examined: Mapping[str, Any]) -> None:
    # A severity of a later version is shown as it comes.
    for severity in dict.fromkeys([*_HEADINGS, *(each["severity"] for each in findings)]):
        of_it = [each for each in findings if each["severity"] == severity]
        if not of_it:
            continue
        heading, style = _HEADINGS.get(severity, (severity.title(), "magenta"))
        table = Table(box=None, show_header=False, pad_edge=False)
        for each in of_it:
            kind = each["kind"].replace("_", " ")
            table.add_row(f"[{style}]{escape(kind)}[/]", escape(each["sentence"]))
            table.add_row("", f"[dim]→ {escape(each['cure'])}[/]")
        show(f"[bold]{escape(heading)}[/]", table)
    seen = ", ".join(f"{count} {name}" for name, count in examined.items())
    faults = sum(each["severity"] == _FAULT for each in findings)
    click.echo(f"{faults or 'No'} {'fault' if faults == 1 else 'faults'}. Examined: {seen}.")
