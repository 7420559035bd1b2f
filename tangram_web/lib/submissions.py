"""Submissions of pages: actions that a signed-in account submits, with the checks of ``POST /api/v1/actions``.

The gateway admits actions, and apps do not import it: the composition root of the web process installs what passes a body to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from domain.errors import Unavailable
from domain.principals import Principal

#: Door of actions that come from pages.
CONSOLE: Final = "console"


class PageSubmission(NamedTuple):
    """A request to submit an action."""

    #: JSON, as in the API.
    body: bytes
    principal: Principal
    #: Idempotency key: the same form sent twice submits once.
    key: str
    request_id: str


class SubmissionAnswer(NamedTuple):
    """The answer of the API: a receipt, or a problem."""

    status: int
    document: dict[str, Any]

    @property
    def accepted(self) -> bool:
        """Whether there is an action now."""
        return self.status < 300


Submit = Callable[[PageSubmission], SubmissionAnswer]


def _nothing(_: PageSubmission) -> SubmissionAnswer:
    raise Unavailable("this process serves no API, so it takes no submissions")


_submit: Submit = _nothing


def install(submit: Submit) -> None:
    """Let pages of this process submit through ``submit``."""
    global _submit
    _submit = submit


def submit(asked: PageSubmission) -> SubmissionAnswer:
    """Submit an action. Raises Unavailable."""
    return _submit(asked)
