"""`doctor`: is everything there that an action needs? Each finding comes with its cure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import click
from rich.markup import escape
from rich.table import Table

import tangram_client
from tangram_client._calls import checks, probe
from tangram_client._core import ApiResponse
from tangram_client.cli.cluster_doctor import examine_cluster
from tangram_client.cli.output import put_data, show
from tangram_client.cli.shell import Shell, connected, pass_shell
from tangram_client.client import Client
from tangram_client.clock import Clock
from tangram_client.errors import (
    Forbidden,
    NotFoundError,
    Refused,
    TangramClientError,
    Unauthorized,
    Unreachable,
)
from tangram_client.retry import RetryPolicy
from tangram_client.system_status import StatusSummary

LAG_SECONDS = 1.0
#: The ``Date`` header has whole seconds, and the answer takes its time.
SKEW_SECONDS = 3.0
_MEMBERS = ("check", "state", "detail", "cure")
MARKS = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]FAIL[/]"}


@dataclass(frozen=True)
class Finding:
    """One check: ``state`` is ok, warn or fail."""

    check: str
    state: str
    detail: str
    cure: str = ""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, as -o json does.")
@click.option("--cluster", is_flag=True, help="Check the machines of the cluster instead.")
@connected
@pass_shell
def doctor(shell: Shell, /, *, as_json: bool, cluster: bool) -> None:
    """Check address, token, versions, leader, nodes, lag, clocks, and the server's installation.

    With --cluster: clocks, versions, doors, disks, control groups and user namespaces of nodes, and the engines of node
    groups. Ends with 1 where there is a fault.
    """
    form = "json" if as_json else shell.format
    if cluster:
        with shell.client() as client:
            examine_cluster(client, form)
        return
    context = shell.context
    findings = [Finding("url", "ok", f"{context.url} ({context.source})")]
    code = 0
    with shell.client(RetryPolicy(attempts=1)) as client:
        try:
            findings += examine(client, shell.time, has_token=context.token is not None)
        except Unreachable as error:
            cure = "start it with ./tangram up, or correct --url / TANGRAM_URL; is a proxy between?"
            findings.append(Finding("reach", "fail", str(error), cure))
            code = 5
    _put(findings, form)
    if code or any(finding.state == "fail" for finding in findings):
        raise SystemExit(code or 1)


def examine(client: Client, clock: Clock, *, has_token: bool) -> Iterator[Finding]:
    """Yield findings in the order in which things depend on each other."""
    alive = client.send(probe("/livez"))
    yield Finding("reach", "ok", "answers /livez")
    yield _clock(alive)
    yield _ready(client)
    asked_at = clock.now()
    try:
        standing = StatusSummary.of(client.status())
    except Unauthorized as error:
        given = "the token is not known" if has_token else "no token"
        cure = "take the one that ./tangram up prints: --token, TANGRAM_TOKEN or client.json"
        yield Finding("token", "fail", f"{given}: {error}", cure)
        return
    except Forbidden as error:
        yield Finding("token", "fail", str(error), "ask for a token with the scope read")
        return
    except TangramClientError as error:
        yield Finding("status", "fail", str(error), "look into the log of the web process")
        return
    yield Finding("token", "ok", "accepted")
    yield _lag(clock.now() - asked_at)
    seen = [check(standing) for check in CHECKS]
    yield from seen
    yield from _installation(client, {finding.check for finding in seen})


def _installation(client: Client, seen: set[str]) -> Iterator[Finding]:
    """Yield what the server finds: database, Redis, disk, pools, the protection of each node.

    ``seen``: names of checks that need no second line while nothing is wrong.
    """
    try:
        found = client.send(checks())["findings"]
    except Forbidden as error:
        cure = "take a token that is not bound to a project, or run manage.py doctor on the server"
        yield Finding("checks", "warn", str(error), cure)
    except NotFoundError:
        return  # a server of an earlier version
    except TangramClientError as error:
        yield Finding("checks", "fail", str(error), "look into the log of the web process")
    else:
        for each in found:
            finding = Finding(*(str(each.get(name, "")) for name in _MEMBERS))
            if finding.state != "ok" or finding.check not in seen:
                yield finding


def _ready(client: Client) -> Finding:
    try:
        client.send(probe("/readyz"))
    except Refused as error:
        checks = error.problem.body.get("checks") or {}
        wrong = [f"{name}: {text}" for name, text in checks.items() if text != "ok"]
        cure = "wait some seconds after a start; then look into the logs of what is named here"
        return Finding("ready", "fail", "; ".join(wrong) or str(error), cure)
    return Finding("ready", "ok", "answers /readyz")


def _clock(alive: ApiResponse) -> Finding:
    try:
        there = parsedate_to_datetime(alive.headers.get("date", ""))
    except ValueError:
        return Finding("clock", "warn", "the server sends no Date", "")
    skew = abs((datetime.now(UTC) - there).total_seconds())
    if skew <= SKEW_SECONDS:
        return Finding("clock", "ok", f"within {SKEW_SECONDS:g} s of the server's")
    cure = "synchronise both machines (NTP): times on pages and reports will not agree"
    return Finding("clock", "warn", f"{skew:.0f} s away from the server's", cure)


def _lag(seconds: float) -> Finding:
    # The leader answers from its inbox, behind everything that waits there.
    if seconds <= LAG_SECONDS:
        return Finding("lag", "ok", f"the loop answered within {seconds * 1000:.0f} ms")
    cure = "it does not keep up: look for a busy machine or a slow disk under Redis"
    return Finding("lag", "warn", f"the loop took {seconds:.1f} s to answer", cure)


def _version(standing: StatusSummary) -> Finding:
    ours, theirs = tangram_client.__version__, standing.version
    if not theirs:
        return Finding("version", "ok", f"client {ours}; the server does not say its own")
    if ours.split(".")[:2] == theirs.split(".")[:2]:
        return Finding("version", "ok", f"client {ours}, server {theirs}")
    cure = "bring both to the same minor version"
    return Finding("version", "warn", f"client {ours}, server {theirs}", cure)


def _leader(standing: StatusSummary) -> Finding:
    if standing.leader:
        return Finding("leader", "ok", standing.leader)
    cure = "start a loop (./tangram up does); a standby takes over within seconds"
    return Finding(
        "leader", "fail", "no scheduler leads: actions are accepted, none is granted", cure
    )


def _nodes(standing: StatusSummary) -> Finding:
    alive = [node for node in standing.nodes if node.alive]
    lost = [node.name for node in standing.nodes if not node.alive]
    if not alive:
        return Finding("nodes", "fail", "no node is alive", "start a node worker, or ./tangram up")
    kept = sum(node.cores_kept for node in alive)
    beside = f" and {kept} kept for Tangram" if kept else ", none kept for Tangram"
    counts = f"{len(alive)} alive, {standing.cores_total:g} cores{beside}"
    if lost:
        return Finding("nodes", "warn", f"{counts}; silent: {', '.join(lost)}", "restart these")
    return Finding("nodes", "ok", counts)


def _redis(standing: StatusSummary) -> Finding:
    judged, detail, cure = standing.redis
    if not judged:
        return Finding("redis", "ok", "the server does not say its version")
    return Finding("redis", "ok" if judged == "current" else "warn", detail, cure)


CHECKS: tuple[Callable[[StatusSummary], Finding], ...] = (_version, _leader, _redis, _nodes)


def _put(findings: list[Finding], form: str) -> None:
    if form in {"json", "yaml"}:
        put_data([asdict(finding) for finding in findings], form)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in findings:
        table.add_row(MARKS[finding.state], finding.check, escape(finding.detail))
        if finding.cure and finding.state != "ok":
            table.add_row("", "", f"[dim]→ {escape(finding.cure)}[/]")
    show(table)
