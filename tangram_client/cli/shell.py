"""Context of every command: connection, output format, and errors as exit codes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click
import httpx

from tangram_client.aio import AsyncClient
from tangram_client.client import Client
from tangram_client.clock import Clock, SystemClock
from tangram_client.context import ClientContext, find_context
from tangram_client.errors import (
    ConflictError,
    Forbidden,
    NotFoundError,
    TangramClientError,
    Unauthorized,
    Unreachable,
)
from tangram_client.retry import RetryPolicy

F = TypeVar("F", bound=Callable[..., Any])

FORMATS: Final = ("table", "wide", "json", "yaml", "name")
#: Commands are interactive: an unreachable server is reported soon.
PATIENCE: Final = RetryPolicy(attempts=3, total_seconds=5.0)

#: What the audit of the server tells the command line by.
AGENT: Final = "tangram-cli"

_EXIT_CODES: Final[dict[type[TangramClientError], int]] = {
    NotFoundError: 3,
    ConflictError: 4,
    Unreachable: 5,
}
_CURES: Final[dict[type[TangramClientError], str]] = {
    Unreachable: "start one with ./tangram up, or name another with --url or TANGRAM_URL; "
    "`tangram doctor` looks closer",
    Unauthorized: "give a token with --token or TANGRAM_TOKEN; ./tangram up prints one",
    Forbidden: "use a token with a wider scope",
}


@dataclass
class Shell:
    """Connection and output options of a command."""

    url: str | None = None
    token: str | None = None
    project: str | None = None
    format: str = "table"
    #: Set by tests.
    transport: httpx.MockTransport | None = None
    clock: Clock | None = None

    @property
    def context(self) -> ClientContext:
        """Return where to; a URL that cannot be meant is a usage error."""
        try:
            return find_context(self.url, self.token)
        except ValueError as error:
            raise click.UsageError(str(error)) from None

    @property
    def time(self) -> Clock:
        return self.clock or SystemClock()

    def client(self, retry: RetryPolicy = PATIENCE) -> Client:
        return Client(**self._options(retry))

    def async_client(self, retry: RetryPolicy | None = None) -> AsyncClient:
        return AsyncClient(**self._options(retry))

    def _options(self, retry: RetryPolicy | None) -> dict[str, Any]:
        context = self.context
        return {
            "url": context.url,
            "token": context.token,
            "project": self.project,
            "retry": retry,
            "clock": self.clock,
            "transport": self.transport,
            "agent": AGENT,
        }


pass_shell = click.make_pass_decorator(Shell, ensure=True)


class Number(click.FloatRange):
    """A number that is one: no NaN, and not without end."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def connected(function: F) -> F:
    """Add the options of the connection and of the output; they may stand before the verb too."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def _into_shell(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None and parameter.name is not None:
        setattr(context.ensure_object(Shell), parameter.name, value)


def _shell_option(*names: str, **more: Any) -> Callable[[F], F]:
    return click.option(*names, expose_value=False, callback=_into_shell, **more)


_OPTIONS: Final[list[Callable[[Any], Any]]] = [
    _shell_option("--url", metavar="URL", help="Where Tangram is [TANGRAM_URL, client.json]."),
    _shell_option("--token", metavar="TOKEN", help="Bearer token [TANGRAM_TOKEN, client.json]."),
    _shell_option("--project", metavar="NAME", help="Project of what is created."),
    _shell_option("--output", "-o", "format", type=click.Choice(FORMATS), help="[table]"),
]


class Verbs(click.Group):
    """The group of all verbs: errors of the client become one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TangramClientError as error:
            complain(error)
            ctx.exit(exit_code(error))


def exit_code(error: TangramClientError) -> int:
    """Return 3 not found, 4 conflict, 5 unreachable, else 1."""
    return _EXIT_CODES.get(type(error), 1)


def complain(error: TangramClientError) -> None:
    """Say what went wrong, and what helps."""
    click.secho(f"tangram: {error}", fg="red", err=True)
    cure = _CURES.get(type(error))
    if cure:
        click.echo(f"  {cure}", err=True)


def say(text: str) -> None:
    """Talk to the person, beside the data."""
    click.echo(text, err=True)
