"""What verbs ask besides their target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django import forms

from domain.errors import InvalidRequest
from domain.policies import parse_policy
from domain.resources import MAX_UNITS
from tangram_web.operations.verbs import Target
from tangram_web.pools.models import Project

#: What a share says, as `domain.manifest.ShareSpec` has it.
PARTS: Final = ("nominal_units", "borrow_units", "lend_units")


class Reason(forms.Form):
    """Why, for people."""

    reason = forms.CharField(max_length=200, required=False, strip=True)

    def clean_reason(self) -> str:
        """Refuse what no column holds."""
        reason: str = self.cleaned_data["reason"]
        if not reason.isprintable():
            raise forms.ValidationError("printable characters only")
        return reason


class Drain(Reason):
    """What becomes of what runs on a node."""

    running = forms.ChoiceField(
        label="What runs there",
        choices=[("goes on", "goes on until it ends"), ("ends", "is ended now")],
        initial="goes on",
    )


class Priority(forms.Form):
    """Which priority."""

    priority = forms.IntegerField(
        min_value=-1_000_000, max_value=1_000_000, required=False,
        help_text="higher is served first; empty: each action at its own",
    )  # fmt: skip


class Policy(forms.Form):
    """Which policy."""

    policy = forms.CharField(max_length=128, help_text="as in paper, minimum, fixed(4), malleable")

    def clean_policy(self) -> str:
        """Refuse an unknown one, and name the known."""
        policy: str = self.cleaned_data["policy"]
        try:
            parse_policy(policy)
        except InvalidRequest as error:
            raise forms.ValidationError(str(error)) from error
        return policy


class Limit(forms.Form):
    """How many units may be held at once."""

    limit_units = forms.IntegerField(
        label="Units", min_value=0, max_value=MAX_UNITS, help_text="0 stops all grants of it"
    )


class Size(forms.Form):
    """How many nodes of a pool take work."""

    nodes = forms.IntegerField(label="Nodes that take work", min_value=0, max_value=100_000)


class OfTarget(forms.Form):
    """A form whose choices follow its target."""

    def __init__(self, *given: Any, target: Target, **options: Any) -> None:
        super().__init__(*given, **options)
        self.begin(target)

    def begin(self, target: Target) -> None:
        """Fill choices and what stands there at first; nothing, unless a form has choices."""

    def _choose(self, name: str, choices: Mapping[str, str]) -> str:
        """Fill the choices of a field; return the one that stands there at first."""
        self.fields[name].choices = list(choices.items())  # type: ignore[attr-defined]
        wished = str(self.initial.get(name, ""))
        return wished if wished in choices else next(iter(choices), "")


def period_of(quota: Mapping[str, Any]) -> str:
    """Return the period of a quota in words; no two quotas of a resource have the same."""
    seconds = quota.get("window_seconds")
    return f"{seconds:g} s" if seconds else f"a day in {quota.get('zone') or 'UTC'}"


class Quota(OfTarget):
    """Another number of units for one of the quotas there are."""

    period = forms.ChoiceField(label="In any")
    units = forms.FloatField(min_value=0.001, max_value=MAX_UNITS)

    def begin(self, target: Target) -> None:
        """Show the first quota, or the one that was asked for."""
        quotas = {period_of(each): each for each in target.now.get("quotas", ())}
        chosen = self._choose("period", {name: name for name in quotas})
        if not quotas:
            self.fields["period"].help_text = "it has no quota; its configuration can have one"
        elif "units" not in self.initial:
            self.initial["units"] = quotas[chosen]["units"]


class Share(OfTarget):
    """A project's part of a resource."""

    project = forms.ChoiceField()
    nominal_units = forms.IntegerField(
        label="Nominal units", min_value=0, max_value=MAX_UNITS, required=False,
        help_text="its own; empty: it has no share, and borrows",
    )  # fmt: skip
    borrow_units = forms.IntegerField(
        label="At most borrowed", min_value=0, max_value=MAX_UNITS, required=False,
        help_text="beyond its own; empty: whatever others leave",
    )  # fmt: skip
    lend_units = forms.IntegerField(
        label="At most lent", min_value=0, max_value=MAX_UNITS, required=False,
        help_text="while it does not use its own; empty: all of it",
    )  # fmt: skip

    def begin(self, target: Target) -> None:
        """Show the part of the first project, or of the one that was asked for."""
        shares = self._shares(target)
        projects = {*Project.objects.values_list("name", flat=True), *shares}
        chosen = self._choose("project", {name: name for name in sorted(projects)})
        if not self.initial.keys() & set(PARTS):
            self.initial |= shares.get(chosen, {})

    def _shares(self, target: Target) -> Mapping[str, Any]:
        shares: Mapping[str, Any] = target.now.get("shares", {})
        return shares


class PoolShare(Share):
    """A project's part of what the nodes of a pool have."""

    resource = forms.ChoiceField(label="Of all nodes'")
    field_order = ("resource", "project", *PARTS)

    def _shares(self, target: Target) -> Mapping[str, Any]:
        kinds = target.now.get("shares", {})
        chosen = self._choose("resource", {name: name for name in ("cpu", "gpu", *kinds)})
        parts: Mapping[str, Any] = kinds.get(chosen, {})
        return parts
