"""Forms of verbs: the values that a verb needs besides its target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django import forms

from domain.backends import DEFAULT_SEATS, DIALECT_NAMES
from domain.errors import InvalidRequest
from domain.policies import known_policies, parse_policy
from domain.resources import MAX_UNITS
from tangram_web.operations.verb import Target
from tangram_web.pools.models import Project

#: Members of a share, as in `domain.manifest.ShareSpec`.
PARTS: Final = ("nominal_units", "borrow_units", "lend_units")


class ReasonForm(forms.Form):
    """A reason, shown on pages and in the audit."""

    reason = forms.CharField(max_length=200, required=False, strip=True)

    def clean_reason(self) -> str:
        """Refuse characters that a text column cannot hold."""
        reason: str = self.cleaned_data["reason"]
        if not reason.isprintable():
            raise forms.ValidationError("printable characters only")
        return reason


class DrainForm(ReasonForm):
    """A reason, and whether running actions are ended."""

    running = forms.ChoiceField(
        label="Running actions",
        choices=[
            ("goes on", "continue until they end; open trajectories wait for the node"),
            ("finishes", "continue, and open trajectories finish there"),
            ("ends", "are cancelled now"),
        ],
        initial="goes on",
    )


class PriorityForm(forms.Form):
    """The priority of a task."""

    priority = forms.IntegerField(
        min_value=-1_000_000, max_value=1_000_000, required=False,
        help_text="higher is granted first; empty: each action keeps its own",
    )  # fmt: skip


#: Form of a policy → what it does, in one line.
POLICIES: Final = {
    "malleable": "takes units from running actions that allow it, and gives freed units to those that remain",
    "makespan": "shortens the step: actions of the trajectories that end last go first, at a bounded loss in the mean ACT",
    "makespan(p)": "as makespan, with p % as the bound on the loss in the mean ACT",
    "weighted": "as malleable, for the mean ACT weighted by the nominal shares of projects",
    "balanced": "as paper, and no action gets more than its share while others wait",
    "paper": "grants the counts that minimise the sum of completion times",
    "paper(free restores)": "as paper, and chooses counts of GPUs as if restores took no time",
    "minimum": "grants each action its smallest count",
    "fixed(k)": "grants each action k units, or its nearest smaller count",
}


def described_policies() -> list[tuple[str, str]]:
    """Return each known policy with its description; policies of other packages have their name alone."""
    known = [*POLICIES, *(form for form in known_policies() if form not in POLICIES)]
    return [
        (form, f"{form}: {POLICIES[form]}" if form in POLICIES else form)
        for form in known
        if form in known_policies()
    ]


class PolicyForm(forms.Form):
    """The policy of a pool: one of a described list, and its parameter where it has one."""

    policy = forms.CharField(max_length=128, widget=forms.Select)
    units = forms.IntegerField(
        label="Units (k) or percent (p)", min_value=0, max_value=MAX_UNITS, required=False,
        help_text="of policies with (k) or (p) only",
    )  # fmt: skip

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.fields["policy"].widget.choices = described_policies()
        form, count = _form_of(str(self.initial.get("policy", "")))
        self.initial["policy"] = form
        if count is not None:
            self.initial.setdefault("units", count)

    def clean(self) -> dict[str, Any]:
        """Return the policy with its parameter; the error of an unknown one names the known ones."""
        policy: str = self.cleaned_data.get("policy", "")
        units = self.cleaned_data.pop("units", None)
        if policy.endswith(("(k)", "(p)")):
            if units is None:
                needed = "a number of units" if policy.endswith("(k)") else "a percentage"
                self.add_error("units", f"policy {policy} needs {needed}")
                return self.cleaned_data
            policy = f"{policy[:-3]}({units})"
        if policy:
            try:
                parse_policy(policy)
            except InvalidRequest as error:
                self.add_error("policy", str(error))
            self.cleaned_data["policy"] = policy
        return self.cleaned_data


def _form_of(policy: str) -> tuple[str, int | None]:
    """Return the form of a policy and its parameter; an unknown one as it is."""
    try:
        return parse_policy(policy)
    except InvalidRequest:
        return policy, None


class LimitForm(forms.Form):
    """Units that may be held at once."""

    limit_units = forms.IntegerField(
        label="Units",
        min_value=0,
        max_value=MAX_UNITS,
        help_text="0 stops all grants of this resource",
    )


class SizeForm(forms.Form):
    """The number of nodes of a pool that take actions."""

    nodes = forms.IntegerField(label="Nodes in service", min_value=0, max_value=100_000)


class TargetForm(forms.Form):
    """A form whose choices follow its target."""

    def __init__(self, *given: Any, target: Target, **options: Any) -> None:
        super().__init__(*given, **options)
        self.begin(target)

    def begin(self, target: Target) -> None:
        """Set choices and initial values; a form without choices has nothing to set."""

    def _choose(self, name: str, choices: Mapping[str, str]) -> str:
        """Set the choices of a field and return the initial one."""
        self.fields[name].choices = list(choices.items())  # type: ignore[attr-defined]
        wished = str(self.initial.get(name, ""))
        return wished if wished in choices else next(iter(choices), "")


def period_of(quota: Mapping[str, Any]) -> str:
    """Return the period of a quota as text; unique among the quotas of a resource."""
    seconds = quota.get("window_seconds")
    return f"{seconds:g} s" if seconds else f"a day in {quota.get('zone') or 'UTC'}"


class QuotaForm(TargetForm):
    """The units of one of the resource's quotas."""

    period = forms.ChoiceField(label="In any")
    units = forms.FloatField(min_value=0.001, max_value=MAX_UNITS)

    def begin(self, target: Target) -> None:
        """Show the first quota, or the one in the query."""
        quotas = {period_of(each): each for each in target.now.get("quotas", ())}
        chosen = self._choose("period", {name: name for name in quotas})
        if not quotas:
            self.fields[
                "period"
            ].help_text = "this resource has no quota; add one in its configuration"
        elif "units" not in self.initial:
            self.initial["units"] = quotas[chosen]["units"]


class ShareForm(TargetForm):
    """A project's share of a resource."""

    project = forms.ChoiceField()
    nominal_units = forms.IntegerField(
        label="Nominal units", min_value=0, max_value=MAX_UNITS, required=False,
        help_text="the project's own; empty: no share, it only borrows",
    )  # fmt: skip
    borrow_units = forms.IntegerField(
        label="At most borrowed", min_value=0, max_value=MAX_UNITS, required=False,
        help_text="beyond its own; empty: no limit",
    )  # fmt: skip
    lend_units = forms.IntegerField(
        label="At most lent", min_value=0, max_value=MAX_UNITS, required=False,
        help_text="of its unused units; empty: all of them",
    )  # fmt: skip

    def begin(self, target: Target) -> None:
        """Show the share of the first project, or of the one in the query."""
        shares = self._shares(target)
        projects = {*Project.objects.values_list("name", flat=True), *shares}
        chosen = self._choose("project", {name: name for name in sorted(projects)})
        if not self.initial.keys() & set(PARTS):
            self.initial |= shares.get(chosen, {})

    def _shares(self, target: Target) -> Mapping[str, Any]:
        shares: Mapping[str, Any] = target.now.get("shares", {})
        return shares


class PoolShareForm(ShareForm):
    """A project's share of the cores or GPUs of a pool."""

    resource = forms.ChoiceField(label="Resource")
    field_order = ("resource", "project", *PARTS)

    def _shares(self, target: Target) -> Mapping[str, Any]:
        kinds = target.now.get("shares", {})
        chosen = self._choose("resource", {name: name for name in ("cpu", "gpu", *kinds)})
        parts: Mapping[str, Any] = kinds.get(chosen, {})
        return parts


class BackendForm(forms.Form):
    """A backend of a language model, as `contract.rollout_requests.BackendRequest` has it."""

    address = forms.CharField(
        max_length=2048, strip=True, help_text="http://HOST:PORT, with or without /v1"
    )
    name = forms.CharField(
        max_length=200, required=False, strip=True, help_text="by default host and port of the address"
    )  # fmt: skip
    seats = forms.IntegerField(
        min_value=1, max_value=100_000, initial=DEFAULT_SEATS,
        help_text="rollouts that may use it at once",
    )  # fmt: skip
    dialect = forms.ChoiceField(
        required=False, choices=[("", "probed"), *((name, name) for name in DIALECT_NAMES)]
    )
    model = forms.CharField(
        max_length=256, required=False, strip=True,
        help_text="name in its requests; empty: the first that it lists",
    )  # fmt: skip
