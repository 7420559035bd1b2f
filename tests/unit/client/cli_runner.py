"""Runs the command line against an in-memory server."""

from __future__ import annotations

from click.testing import CliRunner, Result

from tangram_client.cli import verbs
from tangram_client.cli.shell import Shell
from tangram_client.testing import FakeServer


def tangram(
    server: FakeServer, *arguments: str, token: str | None = None, stdin: str = ""
) -> Result:
    """Run ``tangram ARGUMENTS`` as if ``server`` were the one that is configured."""
    shell = Shell(transport=server.transport, clock=server.clock)
    env = {"TANGRAM_URL": server.url, "TANGRAM_TOKEN": token or server.token, "NO_COLOR": "1"}
    return CliRunner(env=env).invoke(verbs, arguments, obj=shell, input=stdin)
