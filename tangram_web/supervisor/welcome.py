"""The text that greets whoever started Tangram."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from tangram_web.supervisor.home import Home
from tangram_web.supervisor.options import Options
from tangram_web.supervisor.redis_server import EmbeddedRedis, ExternalRedis

_INDENT = " " * 12
_BODY = (
    '{"task": "hello", "kind": "exec", "cost": {"cpu": 1}, "exec": {"command": ["uname", "-a"]}}'
)


def welcome(
    access: Mapping[str, str],
    home: Home,
    redis: EmbeddedRedis | ExternalRedis,
    nodes: Sequence[Mapping[str, Any]],
    options: Options,
) -> str:
    """Return address, token, a first request to try, and what was chosen."""
    demo = "8 generated trajectories, played for ever at three times their speed (--no-demo leaves it out)"
    return f"""
  Open      {access["login_url"]}
            (logs in as {access["user"]}, once; another link: start again, or manage.py setup)
  Token     {access["token"]}
            (also in {home.path / "client.json"}, where ./tangram finds it)
  Try       curl -s '{access["url"]}/api/v1/actions?wait=10' \\
              -H 'Authorization: Bearer {access["token"]}' \\
              -H 'Content-Type: application/json' \\
              -d '{_BODY}'

  Redis     {redis.description}
  Database  {describe_database(os.environ.get("DATABASE_URL"), home)}
  Nodes     {describe_nodes(nodes)}
  Commands  {describe_isolation(nodes)}
  Demo      {demo if options.demo else "none"}
  Logs      {home.logs}/*.log

  Ctrl-C ends everything.
"""


def describe_database(url: str | None, home: Home) -> str:
    """Say which database is used, without its password."""
    if not url:
        return f"SQLite in {home.database}"
    parts = urlsplit(url)
    return f"{parts.scheme} at {parts.hostname or ''}{parts.path}"


def describe_nodes(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Say what each node brings, in its own words."""
    return f"\n{_INDENT}".join(map(_describe_node, nodes)) or "none has joined yet"


def _describe_node(node: Mapping[str, Any]) -> str:
    cpu = node["resources"].get("cpu", {"capacity": 0})
    label = ", oversubscribed" if cpu.get("oversubscribed") else ""
    return f"{node['name']}: {cpu['capacity']:g} cores{label}"


def describe_isolation(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Say how far commands of actions are kept apart from this machine, as the nodes found out."""
    found = {str(node["isolation"]) for node in nodes}
    if found == {"bwrap"}:
        return "each in a sandbox (bubblewrap), pinned to the cores it was granted"
    if "process" in found:
        return (
            "plain processes of this user, NOT isolated: run nothing here that you do not trust"
            f"\n{_INDENT}(apt-get install bubblewrap)"
        )
    return ", ".join(sorted(found)) or "no node says yet how it isolates them"
