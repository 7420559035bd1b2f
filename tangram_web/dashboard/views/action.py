"""One action: what it runs, how it ended, what it printed, why it waits, and the actions before and after it."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from domain.action import ActionState
from domain.command_text import command_block, command_text, variables
from domain.request_text import DeclaredFile, declared_files
from domain.rewards import EXIT_CODE, PYTEST, runner_of
from tangram_web.accounts.access import included_roles
from tangram_web.dashboard import selectors
from tangram_web.dashboard.costs import cost_of_action
from tangram_web.dashboard.scheduler_selectors import why_waiting
from tangram_web.dashboard.timeline import phases_of
from tangram_web.lib.exit_codes import meaning_of
from tangram_web.live.access import Sight
from tangram_web.records.models import ActionRecord
from tangram_web.records.selectors import view_of

#: Most characters of the command in the heading.
_HEADING: Final = 200
_WITH_RUNNER: Final = 'Submit it with the reward {"from": "exit_code", "runner": "pytest"}.'
_WITH_REPORT: Final = 'Have the runner write a JUnit report, and submit it with {"from": "junit", "path": "report.xml"}.'

#: Use of a declared file → how the page says it.
_USES: Final = {
    "given": "given with the request",
    "read": "read for the reward",
    "begins": "the environment begins with it",
}


def action(request: HttpRequest, sight: Sight, action_id: str) -> dict[str, Any] | HttpResponse:
    """Show an action from its row; ask the scheduler why it waits while it is queued."""
    record = selectors.action_record(sight, action_id)
    if record is None:
        missing = {"action_id": action_id}
        return render(request, "dashboard/no_action.html", missing, status=404)
    waiting, problem = (None, "")
    if record.state == ActionState.QUEUED:
        waiting, problem = why_waiting(sight, record)
    now = timezone.now()
    raw = msgspec.json.format(msgspec.json.encode(view_of(record)), indent=2).decode()
    return {
        "action": record,
        "heading": command_text(record.spec, _HEADING),
        "command": command_block(record.spec),
        "variables": list(variables(record.spec)),
        "meaning": meaning_of(record.exit_code),
        "neighbours": [(each, command_text(each.spec)) for each in selectors.neighbours_of(record)],
        "phases": phases_of(record, now),
        "so_far": (now - record.submitted_at).total_seconds(),
        "waiting": waiting,
        "problem": problem,
        "raw": raw,
        "costs": cost_of_action(record),
        "files": _files(record),
        "unproven": (runner := _unproven_runner(record)),
        "cure": _WITH_RUNNER if runner == PYTEST else _WITH_REPORT,
        "powers": included_roles(request.user, record.project),
    }


def _files(record: ActionRecord) -> list[tuple[DeclaredFile, str, str]]:
    """Return the files that an action declares, each with its use, and the command that copies it from its environment."""
    return [
        (each, _USES[each.use], _copying(record, each.path) if each.use == "read" else "")
        for each in declared_files(record.spec)
    ]


def _copying(record: ActionRecord, path: str) -> str:
    if not record.trajectory:
        return ""
    project = [] if record.project == "default" else ["--project", record.project]
    return shlex.join(
        ["tangram", "cp", *project, f"{record.trajectory}:{path}", PurePosixPath(path).name]
    )


def _unproven_runner(record: ActionRecord) -> str:
    """Return the test runner whose exit code alone is the reward; empty when there is none."""
    rule = record.spec.get("reward") or {}
    if rule.get("from") != EXIT_CODE or rule.get("runner"):
        return ""
    return runner_of((record.spec.get("exec") or {}).get("command") or ())
