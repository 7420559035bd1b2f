"""Rows as the pages show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.http import QueryDict

from domain.action import ActionState, Outcome
from tangram_web.records.models import ActionRecord

PAGE: Final = 50
#: Filters by the names they have in the address.
FILTERS: Final = ("state", "outcome", "task", "trajectory", "project")


@dataclass(frozen=True)
class ActionPage:
    """Some actions, newest first, and where to go on."""

    rows: list[ActionRecord]
    filters: dict[str, str]
    #: Query strings of the following and of the first page; empty when there is none.
    older: str
    newest: str
    #: A value that no action can have.
    mistake: str = ""

    @property
    def filtered(self) -> bool:
        return bool(self.filters)


def action_page(query: QueryDict) -> ActionPage:
    """Return the page of actions that an address asks for.

    Ids sort by time of submission, so the cursor is an id: pages stay put while actions arrive.
    """
    filters = {name: value for name in FILTERS if (value := query.get(name, "").strip())}
    before = query.get("before", "")
    mistake = _mistake(filters | ({"before": before} if before else {}))
    rows = [] if mistake else list(_matching(filters, before)[: PAGE + 1])
    older = ""
    if len(rows) > PAGE:
        rows = rows[:PAGE]
        older = urlencode(filters | {"before": rows[-1].id})
    newest = urlencode(filters) or "newest" if before else ""
    return ActionPage(rows, filters, older, newest, mistake)


def action_record(action_id: str) -> ActionRecord | None:
    """Return an action's row, or None."""
    return ActionRecord.objects.filter(pk=action_id).first() if _readable(action_id) else None


def _matching(filters: dict[str, str], before: str) -> QuerySet[ActionRecord]:
    rows = ActionRecord.objects.filter(**filters).order_by("-id")
    if before:
        rows = rows.filter(id__lt=before)
    # Results can be large, and the list does not show them.
    return rows.defer("result", "spec", "metadata")


def _mistake(filters: dict[str, str]) -> str:
    for name, value in filters.items():
        if not _readable(value):
            return f"{value!r} is no {name}"
    for name, values in (("state", ActionState), ("outcome", Outcome)):
        given = filters.get(name)
        if given is not None and given not in set(values):
            return f"{given!r} is no {name}: take one of {', '.join(values)}"
    return ""


def _readable(text: str) -> bool:
    """Say whether a text column can be compared with ``text``: PostgreSQL refuses U+0000."""
    return "\0" not in text
