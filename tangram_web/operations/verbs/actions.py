"""Verbs on several actions at once, which a person selected in a list.

Rules
1. A target is the ids of up to `MOST` actions; those that have ended are left out, and counted.
2. The role is needed in the project of each of them, and each project has an audit entry of its own.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from django.db import transaction
from django.http import HttpRequest

from domain.action import ActionState
from domain.errors import NotFound
from domain.events import ActionCancelRequested
from domain.ids import ActionId
from tangram_web.accounts.models import Role
from tangram_web.audit.services import record
from tangram_web.lib.scheduler_client import send_commands
from tangram_web.operations import forms
from tangram_web.operations.live_counts import only
from tangram_web.operations.verb import Effect, Target, TargetGone, Values, Verb, shell_line
from tangram_web.records.models import ActionRecord

#: Actions of one target.
MOST: Final = 1000
#: Actions that the shell command names.
_NAMED: Final = 20


def actions_target(name: str) -> Target:
    """Return the actions whose ids ``name`` lists. Raises NotFound, TargetGone."""
    ids = list(dict.fromkeys(filter(None, name.split(","))))
    if len(ids) > MOST:
        raise NotFound(f"a verb applies to at most {MOST:,} actions; {len(ids):,} are selected")
    rows = ActionRecord.objects.filter(pk__in=ids).values_list("pk", "project", "state")
    found = sorted(rows)
    if not found:
        raise NotFound("there are no such actions")
    live = [row for row in found if row[2] != ActionState.FINISHED]
    if not live:
        raise TargetGone(f"all {len(found):,} actions have finished")
    projects: dict[str, list[str]] = {}
    for each, project, _ in live:
        projects.setdefault(project, []).append(each)
    now = {
        "title": f"{len(live):,} selected",
        "projects": projects,
        "states": Counter(state for *_, state in live),
        "ended": len(found) - len(live),
    }
    return Target(
        kind="actions",
        name=name,
        project=next(iter(projects)) if len(projects) == 1 else "",
        now=now,
    )


def _effect(target: Target, _: Values) -> Effect:
    counts: Counter[str] = Counter()
    for state, number in target.now["states"].items():
        for word, one in only(state).items():
            counts[word] += one * number
    ended = target.now["ended"]
    left_out = (
        f"{ended:,} of the selected actions have ended; nothing is done to them" if ended else ""
    )
    return Effect(dict(counts), "All these actions end as cancelled, without a reward.", left_out)


def _cancel(request: HttpRequest, target: Target, values: Values) -> None:
    reason = values["reason"] or f"cancelled by {request.user.get_username()}"
    events: list[Any] = []
    with transaction.atomic():
        for project, ids in target.now["projects"].items():
            after = {"reason": reason, "actions": ids}
            record(request, "cancel", f"actions/{len(ids)} selected", None, after, project=project)
            events += [
                ActionCancelRequested(action_id=ActionId(each), project=project, reason=reason)
                for each in ids
            ]
        send_commands(*events)


def _line(target: Target, values: Values) -> str:
    ids = [each for part in target.now["projects"].values() for each in part]
    because = ["--reason", values["reason"]] if values.get("reason") else []
    lines = [shell_line("tangram", "cancel", each, *because) for each in ids[:_NAMED]]
    more = f" # and {len(ids) - _NAMED:,} more" if len(ids) > _NAMED else ""
    return " && ".join(lines) + more


ON_ACTIONS: Final = (
    Verb(kind="actions", name="cancel", title="Cancel", role=Role.SUBMITTER, effect=_effect,
         do=_cancel, form=forms.ReasonForm, line=_line),
)  # fmt: skip
