"""Requests of the control API of sandboxes: its bodies and its routes."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from contract.routes import Route
from domain.principals import Scope

#: Longest life of a sandbox.
MOST_SECONDS: Final = 31_536_000

Seconds = Annotated[int, Meta(ge=0, le=MOST_SECONDS)]


class Network(msgspec.Struct):
    """Rules of a sandbox's network, of which the door of its ports is served."""

    allow_public: bool | None = msgspec.field(default=None, name="allowPublicTraffic")


class AutoResume(msgspec.Struct):
    """Whether requests to a paused sandbox resume it."""

    enabled: bool = False


class NewSandbox(msgspec.Struct, rename="camel"):
    """A sandbox to create."""

    template_id: Annotated[str, Meta(min_length=1, max_length=128)] = msgspec.field(
        name="templateID"
    )
    timeout: Seconds = 300
    metadata: dict[str, str] | None = None
    env_vars: dict[str, str] | None = None
    network: Network | None = None
    auto_pause: bool | None = None
    auto_resume: AutoResume | None = None
    volume_mounts: list[Any] | None = None


class Timeout(msgspec.Struct):
    """A new end of a sandbox, from now on."""

    timeout: Seconds = 300


class Fork(msgspec.Struct):
    """Forks of a sandbox."""

    timeout: Seconds | None = None
    count: Annotated[int, Meta(ge=1, le=100)] = 1


class NewSnapshot(msgspec.Struct):
    """A snapshot of a sandbox."""

    name: str | None = None


def route(method: str, path: str, operation: str, summary: str, scope: Scope | None) -> Route:
    return Route(
        method=method,
        path=f"/e2b{path}",
        operation=f"e2b_{operation}",
        summary=summary,
        scope=scope,
        responses={200: {"type": "object"}},
    )


def _routes() -> tuple[Route, ...]:
    read, submit = Scope.READ, Scope.SUBMIT
    one = "/sandboxes/{id}"
    versions = ("", "/v2")
    return (
        *(route("POST", f"{v}/sandboxes", "create", "Create", submit) for v in versions),
        *(route("GET", f"{v}/sandboxes", "list", "List", read) for v in versions),
        route("GET", "/sandboxes/metrics", "metrics_of_all", "Metrics of several", read),
        *(route("POST", f"{v}{one}/connect", "connect", "Connect", submit) for v in versions),
        route("GET", one, "show", "Details", submit),
        route("DELETE", one, "kill", "End", submit),
        route("POST", f"{one}/timeout", "timeout", "Move its end", submit),
        route("POST", f"{one}/refreshes", "refresh", "Move its end further away", submit),
        route("POST", f"{one}/resume", "resume", "Resume", submit),
        route("POST", f"{one}/pause", "pause", "Pause", submit),
        route("POST", f"{one}/fork", "fork", "Fork", submit),
        route("PUT", f"{one}/network", "network", "Change its network", submit),
        route("GET", f"{one}/metrics", "metrics", "Metrics", read),
        route("GET", f"{one}/logs", "logs", "Logs", read),
        route("GET", f"/v2{one}/logs", "logs", "Logs", read),
        route("POST", f"{one}/snapshots", "snapshot", "Keep its files", submit),
        route("GET", "/snapshots", "snapshots", "List snapshots", read),
    )


ROUTES: Final = _routes()
