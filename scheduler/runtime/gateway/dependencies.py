"""What the gateway needs of the world behind it; composition roots pass it in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from contract.responses import ActionResponse, CompletionsResponse
from scheduler.runtime.gateway.authentication import Authenticate


class FindCompletions(Protocol):
    """Read a page of the log of finished actions."""

    def __call__(
        self, project: str | None, after: int, limit: int
    ) -> Awaitable[CompletionsResponse]: ...


@dataclass(frozen=True)
class Backing:
    """Rows and tokens, as coroutines."""

    authenticate: Authenticate
    #: An action's row, whatever its project; None when there is none.
    action_view: Callable[[str], Awaitable[ActionResponse | None]]
    completions: FindCompletions
    #: Name of a check → what is wrong, empty when nothing is.
    checks: Callable[[], Awaitable[dict[str, str]]]
    #: Who leads, and how far everybody is behind; for people, so without a fixed form.
    facts: Callable[[], Awaitable[dict[str, Any]]]
