"""Run again: the request of an action as JSON, which a person may change and submit as a new action.

The account submits within the project of the action, with the checks of the API. What is masked or cut is not submitted.
"""

from __future__ import annotations

import secrets
from time import monotonic, sleep
from typing import Any, Final

import msgspec
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from domain.command_text import command_text
from domain.errors import Unavailable
from domain.principals import Principal, Scope
from domain.request_text import RequestDetails, masked_members, request_details
from tangram_web.accounts.access import require
from tangram_web.accounts.models import Role
from tangram_web.audit.services import record as record_verb
from tangram_web.dashboard import selectors
from tangram_web.lib import submissions
from tangram_web.lib.requests import request_id_of
from tangram_web.lib.submissions import PageSubmission
from tangram_web.live.access import sight_of
from tangram_web.records.models import ActionRecord

#: Most characters of the command in the heading.
_HEADING: Final = 120
#: Characters of a trajectory's name that the name of a new one begins with.
_KEPT_CHARACTERS: Final = 100
#: The page of the new action waits for its row, at most so long.
_ROW_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 0.05
_KEY_CHARACTERS: Final = 64

Problems = list[tuple[str, str]]


def rerun(request: HttpRequest, action_id: str) -> HttpResponse:
    """Show the request of an action, and submit what a person made of it."""
    sight = sight_of(request.user)
    record = None if sight is None else selectors.action_record(sight, action_id)
    if record is None:
        raise Http404(f"there is no action {action_id!r}")
    require(request.user, record.project, Role.SUBMITTER)
    details = request_details(record.spec, record.submitted_by)
    if request.method != "POST" or details.body is None:
        return _shown(request, record, details)
    body, problems = _read(request)
    if problems:
        return _shown(request, record, details, problems, 422)
    return _submitted(request, record, details, body)


def _read(request: HttpRequest) -> tuple[dict[str, Any], Problems]:
    """Return the body that a form gives, and what is wrong with it by JSON Pointer."""
    try:
        body = msgspec.json.decode(request.POST.get("text", ""))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return {}, [("", f"this is not JSON: {error}")]
    if not isinstance(body, dict):
        return {}, [("", "give one JSON object")]
    if request.POST.get("place") == "new":
        body["trajectory"] = request.POST.get("trajectory", "").strip()
    hidden = [
        (each, "it is masked: write its value, or leave it out") for each in masked_members(body)
    ]
    return body, hidden


def _submitted(
    request: HttpRequest, record: ActionRecord, details: RequestDetails, body: dict[str, Any]
) -> HttpResponse:
    name, project = request.user.get_username(), record.project
    caller = Principal(name, project, frozenset({Scope.READ, Scope.SUBMIT}))
    key = request.POST.get("key", "")[:_KEY_CHARACTERS]
    key = f"rerun/{key if key.isalnum() and key.isascii() else secrets.token_hex(8)}"
    asked = PageSubmission(msgspec.json.encode(body), caller, key, request_id_of(request))
    try:
        answer = submissions.submit(asked)
    except Unavailable as error:
        return _shown(request, record, details, [("", f"{error}")], 503)
    found = answer.document
    if not answer.accepted:
        given = [
            (each.get("pointer", ""), each.get("detail", "")) for each in found.get("errors") or ()
        ]
        problems = given or [("", str(found.get("detail", "")))]
        return _shown(request, record, details, problems, answer.status)
    record_verb(
        request, "submit", f"action/{found['id']}", None, {"like": record.pk}, project=project
    )
    _wait_for_row(found["id"])
    return redirect("dashboard:action", found["id"])


def _wait_for_row(action_id: str) -> None:
    """Rows follow the journal a moment later."""
    until = monotonic() + _ROW_SECONDS
    while not ActionRecord.objects.filter(pk=action_id).exists() and monotonic() < until:
        sleep(_POLL_SECONDS)


def _shown(
    request: HttpRequest, record: ActionRecord, details: RequestDetails, problems: Problems | None = None,
    status: int = 200,
) -> HttpResponse:  # fmt: skip
    given = request.POST
    text = (
        ""
        if details.body is None
        else msgspec.json.format(msgspec.json.encode(details.body), indent=2).decode()
    )
    fresh = (
        f"{record.trajectory[:_KEPT_CHARACTERS]}-again-{secrets.token_hex(3)}"
        if record.trajectory
        else ""
    )
    context = {
        "action": record,
        "heading": command_text(record.spec, _HEADING) or record.kind,
        "details": details,
        "text": given.get("text", text),
        "trajectory": given.get("trajectory", fresh),
        "place": given.get("place", "new" if fresh else "same"),
        "key": given.get("key", secrets.token_hex(16)),
        "problems": problems or [],
    }
    return render(request, "dashboard/rerun.html", context, status=status)
