"""Console of the start: a line for each step with the seconds since the start, and the welcome text."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO
from urllib.parse import urlsplit

from domain.confinement import PLAIN, SANDBOX_CURE
from tangram_web.supervisor.data_folder import DataFolder
from tangram_web.supervisor.options import Options
from tangram_web.supervisor.redis_server import EmbeddedRedis, ExternalRedis

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Console:
    """Writes finished steps; on a terminal, also the step in progress."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._began = clock()
        self._is_terminal = out.isatty()
        self._turns = 0

    def step(self, text: str) -> None:
        """Write a finished step."""
        self._write(f"{self._elapsed()}  {text}\n")

    def waiting(self, text: str) -> None:
        """Write the step in progress, in a line that the next one replaces."""
        if self._is_terminal:
            self._turns += 1
            spinner = _SPINNER[self._turns % len(_SPINNER)]
            self._write(f"{self._elapsed()}  {spinner} {text}")

    def say(self, text: str) -> None:
        """Write text as it is."""
        self._write(f"{text}\n")

    def _elapsed(self) -> str:
        return f"{self._clock() - self._began:6.1f} s"

    def _write(self, text: str) -> None:
        self._out.write(f"\r\033[K{text}" if self._is_terminal else text)
        self._out.flush()


_INDENT = " " * 12
_BODY = (
    '{"task": "hello", "kind": "exec", "cost": {"cpu": 1}, "exec": {"command": ["uname", "-a"]}}'
)


def welcome(
    access: Mapping[str, str],
    home: DataFolder,
    redis: EmbeddedRedis | ExternalRedis,
    nodes: Sequence[Mapping[str, Any]],
    options: Options,
) -> str:
    """Return address, token, a first request to try, and the choices of the start."""
    demo = "8 generated trajectories, replayed forever at three times their speed (--no-demo disables it)"
    return f"""
  Open      {access["login_url"]}
            (logs in as {access["user"]}, once; for another link restart, or run manage.py setup)
  Token     {access["token"]}
            (also in {home.path / "client.json"}, which ./tangram reads)
  Try       curl -s '{access["url"]}/api/v1/actions?wait=10' \\
              -H 'Authorization: Bearer {access["token"]}' \\
              -H 'Content-Type: application/json' \\
              -d '{_BODY}'

  Redis     {redis.description}
  Database  {describe_database(os.environ.get("DATABASE_URL"), home)}
{_of_nodes(nodes, redis, options)}
  Demo      {demo if options.demo else "none"}
  Logs      {home.logs}/*.log

  Ctrl-C ends everything.
"""


def describe_database(url: str | None, home: DataFolder) -> str:
    """Return the database in use, without its password."""
    if not url:
        return f"SQLite in {home.database}"
    parts = urlsplit(url)
    return f"{parts.scheme} at {parts.hostname or ''}{parts.path}"


def _of_nodes(
    nodes: Sequence[Mapping[str, Any]], redis: EmbeddedRedis | ExternalRedis, options: Options
) -> str:
    """Return the nodes of this machine and how their commands are isolated, or how other machines become nodes."""
    if options.nodes:
        return f"  Nodes     {describe_nodes(nodes)}\n  Commands  {describe_isolation(nodes)}"
    lines = ["none on this machine (--nodes 0): docs/clusters.md has those of a cluster"]
    if isinstance(redis, EmbeddedRedis):
        lines.append(
            "nodes of other machines cannot reach the embedded Redis: set TANGRAM_REDIS_URL"
        )
    return "  Nodes     " + f"\n{_INDENT}".join(lines)


def describe_nodes(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Return the resources of each node, as it reports them."""
    return f"\n{_INDENT}".join(map(_describe_node, nodes)) or "none has joined yet"


def _describe_node(node: Mapping[str, Any]) -> str:
    cpu = node["resources"].get("cpu", {"capacity": 0})
    label = ", oversubscribed" if cpu.get("oversubscribed") else ""
    kept = f", {cpu['kept']} more kept for Tangram" if cpu.get("kept") else ""
    return f"{node['name']}: {cpu['capacity']:g} cores{kept}{label}"


def describe_isolation(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Return how commands of actions are isolated, as the nodes report it."""
    found = {str(node["isolation"]) for node in nodes}
    if found == {"bwrap"}:
        return "each in a sandbox (bubblewrap), pinned to the cores it was granted"
    refused = next((str(node["hindrance"]) for node in nodes if node.get("hindrance")), None)
    if refused:
        return f"none starts: {refused}"
    if PLAIN in found:
        pools = ", ".join(sorted({str(n["pool"]) for n in nodes if n["isolation"] == PLAIN}))
        return (
            "plain processes of this user, NOT isolated: run nothing here that you do not trust"
            f"\n{_INDENT}(pool {pools} has sandbox: off; to change it, {SANDBOX_CURE},"
            f"\n{_INDENT}then set sandbox: required for the pool)"
        )
    return ", ".join(sorted(found)) or "no node has reported its isolation yet"
