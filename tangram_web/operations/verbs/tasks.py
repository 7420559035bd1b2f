"""Verbs on actions and tasks."""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpRequest

from domain.events import ActionCancelRequested, TaskCancelRequested, TaskPaused, TaskPrioritised
from domain.ids import ActionId
from tangram_web.accounts.models import Role
from tangram_web.operations import forms
from tangram_web.operations.audited_events import record_and_send
from tangram_web.operations.live_counts import live, only
from tangram_web.operations.verb import PAUSED, Effect, Target, Values, Verb, shell_line


def _names(target: Target) -> dict[str, Any]:
    return {"project": target.project, "task": target.name.partition("/")[2]}


def _of_action(target: Target, _: Values) -> Effect:
    state = target.now["state"]
    alone = f"The action is {state}. It ends as cancelled, without a reward."
    return Effect(only(state), alone)


def _cancel_action(request: HttpRequest, target: Target, values: Values) -> None:
    reason = values["reason"] or f"cancelled by {request.user.get_username()}"
    event = ActionCancelRequested(
        action_id=ActionId(target.name), project=target.project, reason=reason
    )
    record_and_send(
        request, "cancel", target, {"state": target.now["state"]}, {"reason": reason}, event
    )


def _cancel_line(target: Target, values: Values) -> str:
    because = ["--reason", values["reason"]] if values.get("reason") else []
    return shell_line("tangram", "cancel", target.name, *because)


def _of_task(says: str) -> Any:
    return lambda target, _: Effect(live(**_names(target)), says)


def _pause_task(request: HttpRequest, target: Target, *, paused: bool) -> None:
    before = {"paused": target.now["paused"]}
    if before["paused"] != paused:
        verb, event = "pause" if paused else "resume", TaskPaused(**_names(target), paused=paused)
        record_and_send(request, verb, target, before, {"paused": paused}, event)


def _prioritise(request: HttpRequest, target: Target, values: Values) -> None:
    before, after = {"priority": target.now["priority"]}, {"priority": values["priority"]}
    if before != after:
        event = TaskPrioritised(**_names(target), **after)
        record_and_send(request, "prioritise", target, before, after, event)


def _cancel_task(request: HttpRequest, target: Target, values: Values) -> None:
    reason = values["reason"] or f"task cancelled by {request.user.get_username()}"
    touched = live(**_names(target))
    event = TaskCancelRequested(**_names(target), reason=reason)
    record_and_send(request, "cancel", target, touched, {"reason": reason}, event)


def _task_line(*words: str) -> Any:
    def line(target: Target, values: Values) -> str:
        project, _, name = target.name.partition("/")
        given = [str(values["priority"])] if values.get("priority") is not None else []
        return shell_line("tangram", "task", *words, name, *given, "--project", project)

    return line


ON_TASKS: Final = (
    Verb(kind="action", name="cancel", title="Cancel", role=Role.SUBMITTER, effect=_of_action,
         do=_cancel_action, form=forms.ReasonForm, line=_cancel_line),
    Verb(kind="task", name="pause", title="Pause", role=Role.OPERATOR, undo="resume",
         effect=_of_task(PAUSED), line=_task_line("pause"),
         do=lambda r, t, v: _pause_task(r, t, paused=True)),
    Verb(kind="task", name="resume", title="Resume", role=Role.OPERATOR, undo="pause",
         effect=_of_task("Waiting actions are granted again, in their order."),
         do=lambda r, t, v: _pause_task(r, t, paused=False), line=_task_line("resume")),
    Verb(kind="task", name="priority", title="Change priority", role=Role.OPERATOR,
         undo="priority", form=forms.PriorityForm, do=_prioritise, line=_task_line("priority"),
         effect=_of_task("Waiting actions move to another place in their queues; no action is ended.")),
    Verb(kind="task", name="cancel", title="Cancel all actions", role=Role.OPERATOR, heavy=True,
         form=forms.ReasonForm, do=_cancel_task, line=_task_line("cancel"),
         effect=_of_task("All these actions end as cancelled. Actions submitted later are accepted.")),
)  # fmt: skip
