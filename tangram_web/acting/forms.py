"""What verbs ask besides their target."""

from __future__ import annotations

from django import forms

from domain.errors import InvalidRequest
from domain.policies import parse_policy
from domain.resources import MAX_UNITS


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
