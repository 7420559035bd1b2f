"""Verb: an operation on a target, with its role, form, effect, shell line and inverse.

Rules
1. The page shows the effect before the operation, counted by the server at that moment.
2. A heavy verb is confirmed by typing the name of its target; other verbs by one button.
3. An operation and its audit entry are one transaction; its events are sent last in it.
4. If the target has ended before the confirmation, `TargetGone` is raised and nothing changes.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django import forms
from django.http import HttpRequest

from domain.errors import Conflict
from tangram_web.accounts.models import Role

Values = Mapping[str, Any]
#: Effect of a pause.
PAUSED: Final = "Running actions continue; no waiting or new action is granted."


class TargetGone(Conflict):
    """The target has ended or was deleted."""


@dataclass(frozen=True)
class Effect:
    """The consequences of a verb."""

    #: Name → count, as shown on the page.
    counts: dict[str, int]
    #: One sentence that describes the effect.
    says: str
    #: A consequence to check before confirming.
    warning: str = ""


@dataclass(frozen=True, kw_only=True)
class Target:
    """An object that verbs operate on."""

    kind: str
    name: str
    #: Its project; empty for objects that all projects share.
    project: str = ""
    #: Its current values, for the form and the effect.
    now: Values = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """Its name on pages; of several objects their number."""
        return str(self.now.get("title", self.name))


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One verb for one kind of target."""

    kind: str
    name: str
    title: str
    role: Role
    effect: Callable[[Target, Values], Effect]
    do: Callable[[HttpRequest, Target, Values], None]
    line: Callable[[Target, Values], str]
    heavy: bool = False
    #: Name of the inverse verb.
    undo: str = ""
    form: type[forms.Form] = forms.Form


def shell_line(*words: str) -> str:
    """Return ``words`` as a shell command, quoted where necessary."""
    return shlex.join(words)
