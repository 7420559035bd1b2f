"""Verbs on selectors of parallelism: a pin of a degree, and its end.

Selectors belong to all projects, so their verbs need the role in every project. A pin is live state of the scheduler, no configuration.
"""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.http import HttpRequest

from contract.selector_status import SelectorView
from domain.errors import Conflict, NotFound
from domain.selector_events import SelectorPinned
from domain.selectors import parse_parallelism
from tangram_web.accounts.models import Role
from tangram_web.lib import scheduler_client
from tangram_web.operations.audited_events import record_and_send
from tangram_web.operations.forms import TargetForm
from tangram_web.operations.verb import Effect, Target, Values, Verb, shell_line
from tangram_web.pools.models import SelectorRow


def selector_target(name: str) -> Target:
    """Return a selector as it is now. Raises NotFound, Unavailable."""
    declared = "\0" not in name and SelectorRow.objects.filter(pk=name).exists()
    found = scheduler_client.selectors(name).selectors if declared else []
    if not found:
        raise NotFound(f"there is no selector {name!r}")
    return Target(kind="selector", name=name, now=_facts(found[0]))


def _facts(found: SelectorView) -> Values:
    return {
        "degrees": [str(each) for each in found.degrees],
        "pin": "" if found.pin is None else str(found.pin),
        "current": str(found.stages[0].parallelism or found.degrees[0]),
        "stages": len(found.stages),
    }


class DegreeForm(TargetForm):
    """The degree that a selector is pinned to."""

    degree = forms.ChoiceField(label="Degree")
    force = forms.BooleanField(
        required=False, help_text="use it although it would run out of memory"
    )

    def begin(self, target: Target) -> None:
        """Offer the degrees of the selector; the present one is chosen."""
        self.initial.setdefault("degree", target.now["pin"] or target.now["current"])
        self.initial["degree"] = self._choose(
            "degree", {each: each for each in target.now["degrees"]}
        )


def _of_pin(target: Target, _: Values) -> Effect:
    says = (
        "All stages get this degree from their next load on, and waiting calls of a steered service at once. Running calls"
        " continue as they are."
    )
    return Effect({"stages": target.now["stages"]}, says)


def _pin(request: HttpRequest, target: Target, values: Values) -> None:
    degree, forced = parse_parallelism(values["degree"]), bool(values["force"])
    judged = scheduler_client.selectors(target.name, pin=degree, forced=forced)
    if judged.problem:
        raise Conflict(judged.detail)
    before = {"degree": target.now["pin"], "forced": False}
    after = {"degree": str(degree), "forced": forced}
    event = SelectorPinned(selector=target.name, parallelism=degree, forced=forced)
    record_and_send(request, "pin", target, before, after, event)


def _of_unpin(target: Target, _: Values) -> Effect:
    return Effect({"stages": target.now["stages"]}, "Degrees are selected by the load again.")


def _unpin(request: HttpRequest, target: Target, _: Values) -> None:
    if not target.now["pin"]:
        raise Conflict("the selector is not pinned")
    before = {"degree": target.now["pin"]}
    event = SelectorPinned(selector=target.name)
    record_and_send(request, "unpin", target, before, {"degree": ""}, event)


def _pin_line(target: Target, values: Values) -> str:
    force: list[Any] = ["--force"] if values.get("force") else []
    degree = values.get("degree") or target.now["current"]
    return shell_line("tangram", "selector", "pin", target.name, degree, *force)


ON_SELECTORS: Final = (
    Verb(kind="selector", name="pin", title="Pin", role=Role.OPERATOR, undo="unpin", effect=_of_pin, do=_pin,
         form=DegreeForm, line=_pin_line),
    Verb(kind="selector", name="unpin", title="Unpin", role=Role.OPERATOR, undo="pin", effect=_of_unpin, do=_unpin,
         line=lambda target, _: shell_line("tangram", "selector", "unpin", target.name)),
)  # fmt: skip
