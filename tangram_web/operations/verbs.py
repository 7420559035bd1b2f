"""What a verb is: whom it asks, what it would touch, how it is done, said in the shell and undone.

Rules
1. A page shows the effect before anything happens, counted by the server as of then.
2. A heavy verb is confirmed by typing the name of its target; others by one button.
3. A verb is done in one transaction with its audit row; telling the scheduler comes last in it.
4. What is gone when somebody confirms is `Gone`: nothing happens and nothing is written.
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
#: What becomes of the rest when something is paused.
GOES_ON: Final = "What runs goes on; nothing that waits is granted, nor is what comes."


class Gone(Conflict):
    """The target is over, or not there any more."""


@dataclass(frozen=True)
class Effect:
    """What a verb would touch."""

    #: What is counted → how many.
    counts: dict[str, int]
    #: One sentence for people: what becomes of it.
    says: str
    #: What somebody should know before confirming.
    warning: str = ""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Something that verbs are done to."""

    kind: str
    name: str
    #: Whose it is; empty for what all projects share.
    project: str = ""
    #: Values as they are now, for the form and the words.
    now: Values = field(default_factory=dict)


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
    #: The verb that takes it back; with the values that take it back.
    undo: str = ""
    form: type[forms.Form] = forms.Form


def said(*words: str) -> str:
    """Return a line for the shell; each word is quoted where it must be."""
    return shlex.join(words)
