"""The form of a simulation request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from django import forms

from domain.errors import InvalidRequest
from simulator.request import RIVALS, SimulationRequest, compared_policies, read_request
from tangram_web.simulations.inputs import WINDOWS

_NUMBERS: Final = ("batch", "steps", "nodes", "cores")
_WORKLOADS: Final = (
    ("ai-coding", "AI coding: recorded or generated agents"),
    ("deep-search", "Deep search: recorded or generated LLM requests"),
    ("recorded", "Live window: recent actions of this system"),
)


def _policy_choices() -> list[tuple[str, str]]:
    return [(name, name) for name in (*compared_policies(), *RIVALS)]


class SimulationForm(forms.Form):
    """Members of `simulator.request.Request`, and the source of the input."""

    project = forms.ChoiceField()
    title = forms.CharField(max_length=120, required=False)
    workload = forms.ChoiceField(choices=_WORKLOADS)
    window = forms.TypedChoiceField(
        choices=list(WINDOWS.items()), coerce=int, required=False, empty_value=None
    )
    trace = forms.FileField(required=False, allow_empty_file=True)
    pasted = forms.CharField(required=False, strip=False, widget=forms.Textarea)
    policies = forms.MultipleChoiceField(choices=_policy_choices)
    seeds = forms.CharField(max_length=60, required=False)
    batch = forms.IntegerField()
    steps = forms.IntegerField()
    nodes = forms.IntegerField()
    cores = forms.IntegerField()
    rewards = forms.ChoiceField(choices=[(name, name) for name in ("light", "medium", "heavy")])
    malleable = forms.BooleanField(required=False)

    def __init__(self, projects: Iterable[str], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["project"].choices = [(name, name) for name in projects]  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        """Build the request; errors are shown at their fields."""
        given = self.cleaned_data
        if self.errors:
            return given
        try:
            given["request"] = self._request(given)
        except InvalidRequest as error:
            self.add_pointed_error(error)
        return given

    def content(self) -> bytes | None:
        """Return the trace, if any; an uploaded file has priority over pasted text."""
        file = self.cleaned_data.get("trace")
        if file is not None:
            read: bytes = file.read()
            return read
        return self.cleaned_data.get("pasted", "").encode() or None

    def add_pointed_error(self, error: InvalidRequest) -> None:
        """Show ``error`` at the field that it points at."""
        field = (error.pointer or "").removeprefix("/").partition("/")[0]
        self.add_error(field if field in self.fields else None, str(error))

    def _request(self, given: dict[str, Any]) -> SimulationRequest:
        seeds = (given["seeds"] or "0").replace(",", " ").split()
        if not all(seed.isdecimal() for seed in seeds):
            raise InvalidRequest("give whole numbers, as in 0, 1, 2", pointer="/seeds")
        return read_request(
            {
                "workload": given["workload"],
                "policies": given["policies"],
                "seeds": [int(seed) for seed in seeds],
                "rewards": given["rewards"],
                "malleable": given["malleable"],
                **{name: given[name] for name in _NUMBERS},
            }
        )
