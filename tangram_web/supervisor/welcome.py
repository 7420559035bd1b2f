"""The text that greets whoever started Tangram."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from tangram_web.supervisor.home import Home
from tangram_web.supervisor.options import Options
from tangram_web.supervisor.redis_server import EmbeddedRedis, ExternalRedis

_BODY = (
    '{"task": "hello", "kind": "exec", "cost": {"cpu": 1}, "exec": {"command": ["uname", "-a"]}}'
)


def welcome(
    access: Mapping[str, str], home: Home, redis: EmbeddedRedis | ExternalRedis, options: Options
) -> str:
    """Return address, token, a first request to try, and what was chosen."""
    demo = "8 generated trajectories, played for ever (--no-demo leaves it out)"
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
  Commands  {describe_isolation(sandbox_program(home))}
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


def sandbox_program(home: Home) -> str | None:
    """Return the sandbox that commands will run in, if there is one and it works here."""
    # Imported here: it costs a tenth of a second, which is better spent while children start.
    from managers.cpu.process.sandbox import find_sandbox

    sandbox = find_sandbox(home.path, ())
    return None if sandbox is None else sandbox.program


def describe_isolation(sandbox: str | None) -> str:
    """Say how far commands of actions are kept apart from this machine."""
    if sandbox:
        return f"in a sandbox each ({sandbox}), pinned to the cores they were granted"
    return (
        "plain processes of this user, NOT isolated: run nothing here that you do not trust"
        " (apt-get install bubblewrap)"
    )
